"""Images on object storage: whole, uploaded once, erased with their files, and checked."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import duckdb
import pytest

from pipeline.errors import ExitCode
from pipeline.findings import Severity
from pipeline.publish.mirror import MirrorOptions
from pipeline.publish.object_store import open_store
from pipeline.publish.target_layout import LATEST
from tests.findings import printed_lines
from tests.images.image_harness import errors_of, files_in, rows_of, scene
from tests.lake.operations import called, republish
from tests.lake_copies import copy_lake
from tests.processes import forked
from tests.publish.stopping_store import PublisherStopped, StoppingStore
from tests.publish.target_reading import latest, published
from tests.soaking import SOAKING

if TYPE_CHECKING:
    from pathlib import Path

    from tests.images.image_harness import PicturedLakes
    from tests.publish.conftest import S3Server

_WITH_IMAGES = MirrorOptions(images=True)


def _images_at(url: str) -> dict[str, bytes]:
    """The images of a target, by path."""
    store = open_store(url)
    return {item.path: store.read(item.path) for item in store.list("images")}


def _publish(lake: Path, url: str, *arguments: str, **environment: str) -> dict[str, Any]:
    answer = called(lake, "publish", "--to", url, "--json", *arguments, **environment)
    assert answer.code == ExitCode.OK, answer.lines
    mirror: dict[str, Any] = answer.json["mirror"]
    return mirror


def _purge_one(lake: Path, **environment: str) -> None:
    purged = min(key[0] for key in rows_of(lake))
    assert forked(lake, "purge", str(purged), "--yes", **environment).code == ExitCode.OK


def test_readers_find_each_image_by_its_path(pictured: PicturedLakes, tmp_path: Path) -> None:
    """The table of the target's catalog leads a stock DuckDB to every image, byte for byte; new ones come alone.

    A purge deletes the images of its file from the target, too, and no other.
    """
    url = f"file://{tmp_path / 'target'}"
    half, lake = copy_lake(pictured.half, tmp_path / "half"), copy_lake(pictured.whole, tmp_path / "lake")
    assert _publish(half, url)["images"] is None
    assert _images_at(url) == {}
    first = _publish(half, url, "--with-images")
    assert first["images"] == first["images_uploaded"] == len(files_in(half)) > 0
    assert not _publish(half, url, "--with-images")["changed"]
    second = _publish(lake, url, SCANLAKE_PUBLISH_IMAGES="true")
    assert second["images"] == len(files_in(lake)) == first["images"] + second["images_uploaded"]
    assert _images_at(url) == files_in(lake)
    with duckdb.connect(tmp_path / "target" / "catalog.duckdb", read_only=True) as db:
        rows = db.execute(
            "SELECT images.sha256, content FROM images"
            f" JOIN read_blob('{tmp_path}/target/images/*/*') ON ends_with(filename, path) WHERE state = 'stored'"
        ).fetchall()
    assert len(rows) == len(rows_of(lake))
    assert all(hashlib.sha256(content).hexdigest() == sha256 for sha256, content in rows)
    checked = called(lake, "check", "--published", "--read-data", "--json")
    [line] = printed_lines(checked.json, "target", Severity.OK)
    assert (checked.code, f"{second['images']} images" in line) == (ExitCode.OK, True)
    _purge_one(lake)
    assert len(files_in(lake)) < second["images"]
    assert _images_at(url) == files_in(lake)
    assert latest(open_store(url)).images is not None
    assert called(lake, "check", "--published").code == ExitCode.OK


async def test_a_sync_publishes_the_images_that_it_fetched(tmp_path: Path) -> None:
    """With all three settings one sync brings its images to the target, and the next publish keeps them."""
    target = tmp_path / "target"
    environment = {
        "SCANLAKE_PUBLISH_TO": f"file://{target}",
        "SCANLAKE_PUBLISH_AFTER_SYNC": "true",
        "SCANLAKE_PUBLISH_IMAGES": "true",
        "SCANLAKE_IMAGES_AFTER_SYNC": "true",
    }
    async with scene(tmp_path, 5) as here:
        here.emulator.world.update(here.emulator.world.pick_random(3))
        answer = await here.run("sync", "--json", **environment)
        assert (answer.code, answer.json["publish"]["problem"]) == (ExitCode.OK, None), answer.lines
        assert _images_at(f"file://{target}") == files_in(here.lake)
        assert len(files_in(here.lake)) > 0
        republish(here.lake)
        assert called(here.lake, "publish", **environment).code == ExitCode.OK
        record = latest(open_store(f"file://{target}"))
        assert record.images is not None
        assert record.images.pictures == len(files_in(here.lake))


def test_damage_on_either_side_is_named_and_delays_no_table(pictured: PicturedLakes, tmp_path: Path) -> None:
    """A damaged image is exit code 9 and one line; tables and the other images are published all the same."""
    target, lake = tmp_path / "target", copy_lake(pictured.whole, tmp_path / "lake")
    damaged = sorted(files_in(lake))[3]
    file = lake / damaged
    whole = file.read_bytes()
    file.chmod(0o600)
    file.write_bytes(whole[:-1] + b"?")
    arguments = ("publish", "--to", f"file://{target}", "--with-images")
    answer = called(lake, *arguments)
    assert (answer.code, len(errors_of(answer))) == (ExitCode.DAMAGE, 1)
    assert file.name in errors_of(answer)[0]
    assert _images_at(f"file://{target}").keys() == files_in(lake).keys() - {damaged}
    assert latest(open_store(f"file://{target}")).catalog.files == 12
    assert called(lake, "check", "--published").code == ExitCode.OK
    assert called(lake, *arguments).code == ExitCode.DAMAGE, "not repaired yet"
    file.write_bytes(whole)
    assert called(lake, *arguments).code == ExitCode.OK
    cut, changed, missing = (target / path for path in sorted(files_in(lake))[:3])
    for path, content in ((cut, b"cut"), (changed, changed.read_bytes()[:-1] + b"?")):
        path.chmod(0o600)
        path.write_bytes(content)
    missing.unlink()
    plain = called(lake, "check", "--published", "--json").json
    lines = [
        f"images/{cut.parent.name}/{cut.name}: 3 bytes",
        f"images/{missing.parent.name}/{missing.name}: missing",
    ]
    found = printed_lines(plain, "target")
    assert len(found) == len(lines)
    assert all(any(line in other for other in found) for line in lines)
    thorough = called(lake, "check", "--published", "--read-data", "--json")
    assert thorough.code == ExitCode.DAMAGE
    assert len(printed_lines(thorough.json, "target")) == 3


def test_a_publish_that_stops_at_any_write_is_completed(pictured: PicturedLakes, tmp_path: Path) -> None:
    """Whichever write stops the publisher, the next publish has every image, and what a purge erased is not there."""
    lake = copy_lake(pictured.half, tmp_path / "lake")
    count = StoppingStore()
    published(lake, count, _WITH_IMAGES)
    image = count.written.index(min(files_in(lake))) + 1
    for stop_at in range(1, count.writes + 1) if SOAKING else (image, image + 1, count.written.index(LATEST) + 1):
        store = StoppingStore(stop_at=stop_at)
        with pytest.raises(PublisherStopped):
            published(lake, store, _WITH_IMAGES)
        repeated = store.fork()
        published(lake, repeated, MirrorOptions(images=stop_at % 2 == 0))
        images = {item.path for item in repeated.list("images")}
        assert images <= files_in(lake).keys()
        assert stop_at % 2 or images == files_in(lake).keys(), stop_at
    left = {item.path for item in repeated.list("images")}
    purged = min(key[0] for key in rows_of(lake))
    answer = forked(lake, "purge", str(purged), "--yes")
    assert answer.code == ExitCode.PUBLISH, "no other process reaches this target"
    published(lake, repeated, MirrorOptions())
    assert {item.path for item in repeated.list("images")} == left & files_in(lake).keys()


def test_a_publish_without_images_costs_what_it_did(
    pictured: PicturedLakes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lake without images is listed once, with the option or without it."""
    lake, store, lists = copy_lake(pictured.bare, tmp_path / "lake"), StoppingStore(), list[str]()
    listed = store.list

    def list_and_note(prefix: str = "") -> Any:
        lists.append(prefix)
        return listed(prefix)

    monkeypatch.setattr(store, "list", list_and_note)
    published(lake, store, _WITH_IMAGES)
    assert lists == ["", "images"]
    republish(lake)
    published(lake, store)
    assert lists == ["", "images", ""]


@pytest.mark.soak
def test_images_on_s3(pictured: PicturedLakes, tmp_path: Path, s3_server: S3Server, s3_url: str) -> None:
    """Images go to S3 and are checked and erased there as in a folder."""
    lake, environment = copy_lake(pictured.whole, tmp_path / "lake"), s3_server.environment
    _publish(lake, s3_url, "--with-images", **environment)
    assert _images_at(s3_url) == files_in(lake)
    _purge_one(lake, **environment)
    assert _images_at(s3_url) == files_in(lake)
    checked = called(lake, "check", "--published", "--read-data", **environment)
    assert checked.code == ExitCode.OK, checked.lines
