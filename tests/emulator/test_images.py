"""The image host: pictures that decode, links that expire, and answers that are broken on purpose."""

import asyncio
import hashlib
import io
from collections import Counter
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pypdf
import pytest
from PIL import Image

from pipeline.emulator import Faults, ImageOptions, Quirks, WorldPlan
from pipeline.emulator.faults import ScriptedFault
from tests.emulator.http_client import Asker, asking


def _uploads(ask: Asker, **fields: Any) -> list[dict[str, Any]]:
    """Return the uploads of all files with these values, each with the key of its file."""
    rows = [{**upload, "file": one["key"]} for one in ask.emulator.truth() for upload in one["detail"]["uploads"]]
    return [row for row in rows if all(row[name] == value for name, value in fields.items())]


async def _link(ask: Asker, upload: dict[str, Any], name: str = "image_url") -> str:
    """Return the link of an upload in a fresh answer."""
    document = (await ask.detail(upload["file"])).json()
    return str(next(one[name] for one in document["uploads"] if one["id"] == upload["id"]))


async def _truth(ask: Asker) -> list[dict[str, Any]]:
    assert ask.emulator.images is not None
    return list(ask.emulator.images.truth())


async def test_every_picture_is_what_the_truth_says_and_decodes() -> None:
    """Each link gives the bytes of the truth; its size is what an image library reads."""
    async with asking(25, images=ImageOptions()) as ask:
        truth = {(row["upload_id"], row["kind"]): row for row in await _truth(ask)}
        uploads = _uploads(ask)
        assert len(truth) == 2 * len(uploads)
        for upload in uploads:
            for name, kind in (("image_url", "image"), ("image_thumb", "thumbnail")):
                row = truth[upload["id"], kind]
                reply = await ask.get(await _link(ask, upload, name), token=False)
                assert (reply.status, reply.headers["Content-Type"]) == (200, row["mime"])
                assert hashlib.sha256(reply.body).hexdigest() == row["sha256"]
                assert ask.emulator.images is not None
                assert reply.body == ask.emulator.images.read_picture(upload["id"], kind)  # type: ignore[arg-type]
                if row["mime"] == "application/pdf":
                    assert len(pypdf.PdfReader(io.BytesIO(reply.body), strict=True).pages) == 1
                    continue
                picture = Image.open(io.BytesIO(reply.body))
                picture.load()
                assert picture.size == (row["width"], row["height"])
        mimes = Counter(row["mime"] for row in truth.values() if row["kind"] == "image")
        assert mimes["application/pdf"] > 0
        assert len({row["sha256"] for row in truth.values()}) == len(truth)
        sizes = [row["bytes"] for row in truth.values() if row["kind"] == "image" and row["mime"] == "image/jpeg"]
        assert 24_000 <= min(sizes) < 27_000
        assert 33_000 < max(sizes) <= 36_000


async def test_pictures_are_an_option_and_depend_on_the_seed() -> None:
    """Pictures depend on the seed and the time of the world; without the option links lead nowhere.

    With duplicate_ratio some uploads share a few pictures, and the others keep their own.
    """
    plan = WorldPlan(files=60, seed=5, now="2026-01-01")
    found = []
    for _ in range(2):
        options = ImageOptions(duplicate_ratio=0.5, duplicate_pictures=3)
        async with asking(plan=plan, images=options, prerender=True) as ask:
            found.append(await _truth(ask))
    assert found[0] == found[1]
    images = [row for row in found[0] if row["kind"] == "image"]
    shared = [count for count in Counter(row["sha256"] for row in images).values() if count > 1]
    assert len(shared) == 3
    assert 0.35 * len(images) < sum(shared) < 0.65 * len(images)
    async with asking(5) as ask:
        urls = {urlsplit(await _link(ask, upload)).netloc for upload in _uploads(ask)}
        assert urls == {"images.example.invalid"}
        assert (ask.emulator.images, "images" in ask.emulator.read_state()) == (None, False)


async def test_a_link_expires_and_a_fresh_answer_renews_it() -> None:
    """After its lifetime a link answers 403; the next detail shows a link that works."""
    plan: dict[str, Any] = {"quirks": Quirks(image_urls="fresh"), "images": ImageOptions(link_seconds=60)}
    async with asking(5, **plan) as ask:
        ask.emulator.world.clock.set(ask.emulator.world.clock.now())
        upload = _uploads(ask)[0]
        first = await _link(ask, upload)
        assert (await ask.get(first, token=False)).status == 200
        ask.emulator.world.clock.advance(61)
        assert (await ask.get(first, token=False)).status == 403
        second = await _link(ask, upload)
        assert second != first
        assert (await ask.get(second, token=False)).status == 200
        listed = (await ask.files(includes=("uploads",))).data
        urls = {one["id"]: one["image_url"] for row in listed for one in row["uploads"]}
        assert (await ask.get(urls[upload["id"]], token=False)).status == 200


async def test_a_stable_link_changes_once_in_a_lifetime() -> None:
    """Stable links are the same in two answers, change with the time, and then still work for a lifetime."""
    async with asking(5, images=ImageOptions(link_seconds=60)) as ask:
        ask.emulator.world.clock.set(1_700_000_000 * 1_000_000)
        upload = _uploads(ask)[0]
        first = await _link(ask, upload)
        assert await _link(ask, upload) == first
        ask.emulator.world.clock.advance(60)
        assert await _link(ask, upload) != first
        assert (await ask.get(first, token=False)).status == 200
        ask.emulator.world.clock.advance(60)
        assert (await ask.get(first, token=False)).status == 403


async def test_a_link_that_the_service_did_not_sign_is_refused() -> None:
    """Without a signature, with another one, or with a later end a link answers 403."""
    async with asking(5, images=ImageOptions(link_seconds=60)) as ask:
        link = await _link(ask, _uploads(ask)[0])
        bare, _, query = link.partition("?")
        other, later = query.replace("signature=0", "signature=1"), query.replace("expires=", "expires=9")
        links = (link, bare, f"{bare}?{other}", f"{bare}?{later}")
        assert [(await ask.get(each, token=False)).status for each in links] == [200, 403, 403, 403]


async def test_a_credential_that_reaches_the_image_host_is_counted() -> None:
    """The image host is another origin; token, cookie and referrer in a request to it are exposed."""
    async with asking(3, images=ImageOptions()) as ask:
        assert ask.emulator.images is not None
        link = await _link(ask, _uploads(ask)[0])
        assert link.startswith(ask.emulator.images.url + "/")
        assert urlsplit(link).port not in {ask.emulator.port, ask.emulator.other_port}
        await ask.get(link, token=False)
        assert ask.emulator.images.leaks == []
        await ask.get(link, token=False, headers={"Authorization": "Bearer x", "token": "x", "Cookie": "a=b"})
        await ask.get(f"{link}&token=x", token=False)
        assert ask.emulator.read_state()["images"]["leaks"] == ["token", "authorization", "cookie", "query"]


async def test_a_broken_picture_never_arrives_complete() -> None:
    """The body ends early: only a promised length shows it to the connection, and no image library decodes it."""
    for broken, has_length in (("cut-close", False), ("cut-json", True)):
        async with asking(5, images=ImageOptions(broken_ratio=1.0, broken=broken)) as ask:  # type: ignore[arg-type]
            link = await _link(ask, _uploads(ask, image_mime="image/jpeg")[0])
            reply = await ask.get(link, token=False)
            assert (reply.status, "Content-Length" in reply.headers) == (200, has_length)
            with pytest.raises((OSError, SyntaxError)):
                Image.open(io.BytesIO(reply.body)).load()


async def test_each_outcome_is_served_and_named_by_the_truth() -> None:
    """Removed, HTML, huge and slow pictures are those uploads that the truth names."""
    options = ImageOptions(
        removed_ratio=0.2, html_ratio=0.2, huge_ratio=0.2, huge_bytes=300_000, slow_ratio=0.2, slow_seconds=0.05
    )  # fmt: skip
    async with asking(20, images=options) as ask:
        outcomes = {row["upload_id"]: row["outcome"] for row in await _truth(ask)}
        for upload in _uploads(ask, image_mime="image/jpeg"):
            reply = await ask.get(await _link(ask, upload), token=False)
            match outcomes[upload["id"]]:
                case "removed":
                    assert reply.status == 404
                case "html":
                    assert (reply.status, reply.headers["Content-Type"]) == (200, "text/html; charset=UTF-8")
                    assert reply.body.startswith(b"<!DOCTYPE html>")
                case "huge":
                    assert (reply.status, len(reply.body)) == (200, 300_000)
                case _:
                    assert reply.status == 200
                    Image.open(io.BytesIO(reply.body)).load()
        assert set(outcomes.values()) == {"removed", "html", "huge", "slow", "served"}
        ask.emulator.images.set_options(removed_ratio=0.0, html_ratio=0.0, huge_ratio=0.0, slow_ratio=0.0)  # type: ignore[union-attr]
        assert {row["outcome"] for row in await _truth(ask)} == {"served"}


async def test_the_image_host_has_faults_of_its_own() -> None:
    """An outage or a limit of the image host leaves the service alone."""
    async with asking(3, images=ImageOptions(), image_faults=Faults(outage=True)) as ask:
        upload = _uploads(ask)[0]
        link = await _link(ask, upload)
        assert (await ask.get(link, token=False)).status == 503
        script = [ScriptedFault("429"), ScriptedFault("cut-length")]
        host = ask.emulator.images
        assert host is not None
        host.set_faults(outage=False, retry_after_seconds=7)
        for fault in script:
            host.faults.add(fault)
        reply = await ask.get(link, token=False)
        assert (reply.status, reply.headers["Retry-After"]) == (429, "7")
        with pytest.raises(aiohttp.ClientPayloadError):
            await ask.get(link, token=False)
        assert (await ask.get(link, token=False)).status == 200


async def test_a_picture_of_a_deleted_file_or_upload_does_not_exist() -> None:
    """After its file was deleted or its upload removed, a link that is still valid answers 404."""
    async with asking(10, images=ImageOptions()) as ask:
        first, second = _uploads(ask)[0], _uploads(ask)[-1]
        links = [await _link(ask, upload) for upload in (first, second)]
        ask.emulator.world.delete([first["file"]])
        ask.emulator.world.edit(second["file"], "clear")
        assert [(await ask.get(link, token=False)).status for link in links] == [404, 404]


async def test_complete_answers_are_counted_by_upload() -> None:
    """The state shows how many pictures were fetched, and how many of the fetches were repetitions."""
    async with asking(5, images=ImageOptions()) as ask:
        links = [await _link(ask, upload) for upload in _uploads(ask)]
        await asyncio.gather(*(ask.get(link, token=False) for link in [*links, links[0]]))
        state = ask.emulator.read_state()["images"]
        assert (state["fetched"], state["repeated"], state["requests"]) == (len(links), 1, len(links) + 1)
        ask.emulator.reset()
        assert ask.emulator.read_state()["images"]["requests"] == 0
