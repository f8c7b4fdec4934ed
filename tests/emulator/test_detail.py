"""GET /api/v2/files/{id}, the spelling of documents, the token, and that every option changes an answer."""

import asyncio
import itertools
import re
import typing

import pytest

from pipeline.emulator import PROFILES, Quirks, WorldPlan, make_quirks, reports, timestamps
from tests.emulator.http_client import INCLUDES, Asker, Pairs, asking

NUMBERS: dict[str, list[object]] = {
    "page_cap": [2],
    "late_commit_seconds": [9.0],
    "date_skew_seconds": [60.0],
    "report_seconds": [9.0],
    "report_ready_seconds": [9.0],
    "report_ready_polls": [3],
    "report_lost_ratio": [1.0],
}


async def _tour(quirks: Quirks, *, orders: bool) -> str:
    """Return what a still world answers to all kinds of orders or of other requests, apart from ports."""
    plan = WorldPlan(files=12, seed=4, now="2026-03-01T12:00:00Z")
    async with asking(plan=plan, quirks=quirks) as ask:
        told = "\n".join([line async for line in _answers(ask, orders=orders)])
        return re.sub(rf"\b{ask.emulator.other_port}\b", "OTHER", re.sub(rf"\b{ask.emulator.port}\b", "PORT", told))


async def _answers(ask: Asker, *, orders: bool) -> typing.AsyncIterator[str]:
    async def tell(path: str, pairs: Pairs, **options: typing.Any) -> str:
        reply = await ask.get(path, pairs, **options)
        return f"{path} {pairs} {reply.status} {sorted(reply.headers.items())} {reply.body!r}"

    world = ask.emulator.world
    (stamp, key), (_, deleted) = world.index[5], world.index[8]
    second = timestamps.format_micros_z(stamp)[:19] + "Z"
    world.delete([deleted])
    if orders:
        for more in ({}, {"files": [key, deleted]}, {"asynchronous": True}, {"asynchronous": True}):
            began = asyncio.get_running_loop().time()
            reply = await ask.post("/api/v2/reports", {"files": [key], "filename": "x", **more})
            yield f"{reply.status} {reply.body!r} after {asyncio.get_running_loop().time() - began:.0f} s"
            if url := reply.json().get("url"):
                world.clock.advance(1)
                world.edit(key, "add-upload")
                for token in (False, True, False):
                    yield await tell(url, [], token=token)
                    await asyncio.sleep(1)
            key = world.index[7][1]
        return
    includes = [("include[]", name) for name in INCLUDES]
    bounds: list[Pairs] = [[("updated_start", second)], [("updated_end", second)]]
    for pairs in (*bounds, [("limit", "3")], [("limit", "3")], [("lang", "de"), *includes]):
        yield await tell("/api/v2/files", pairs)
    for one in (*sorted(world.keys()), key, deleted):
        yield await tell(f"/api/v2/files/{one}", [("lang", "de")])
    yield await tell("/api/v2/files", [], token=False, headers={"token": ask.emulator.token})
    yield await tell("/api/v2/files", [], headers={"Accept-Encoding": "gzip"})
    world.create(1)
    yield await tell("/api/v2/files", [])


async def test_every_value_of_every_option_changes_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same requests get the same answers under the same options, and others under each other value."""
    defaults, same = Quirks(), []

    async def tour(name: str, **options: typing.Any) -> str:
        secrets = itertools.count()
        monkeypatch.setattr(reports.secrets, "token_urlsafe", lambda _: f"secret-{next(secrets)}")
        return await _tour(Quirks(**options), orders=name.startswith("report_"))

    usual = {is_order: await tour("report_" * is_order) for is_order in (False, True)}
    assert usual == {is_order: await tour("report_" * is_order) for is_order in (False, True)}
    for name, hint in typing.get_type_hints(Quirks).items():
        values = NUMBERS.get(name) or [word for word in typing.get_args(hint) if word != getattr(defaults, name)]
        assert values, name
        told = [await tour(name, **{name: value}) for value in values]
        same += [(name, value) for value, text in zip(values, told, strict=True) if text in usual.values()]
    assert same == []


async def test_list_item_and_detail_agree_where_both_speak() -> None:
    """What the list with all includes and the detail both show is equal, but for keys only the detail has."""
    async with asking(40) as ask:
        for item in (await ask.files(includes=INCLUDES)).data:
            detail = (await ask.detail(item["id"])).json()
            for name in ("id", "scan_code", "closed", "created_at", "updated_at", "workflow_runs", "locations"):
                assert detail[name] == item[name]
            for ours, theirs in zip(item["uploads"], detail["uploads"], strict=True):
                assert {key: value for key, value in ours.items() if key != "geocoding"}.items() <= theirs.items()
                assert {"file_id", "tenant_id", "image_path"} <= set(theirs)
            for ours, theirs in zip(item["fields"], detail["fields"], strict=True):
                assert ours.items() <= theirs.items()


async def test_details_hold_what_the_field_notes_saw() -> None:
    """Among a few hundred files everything the notes name occurs: big ids, nulls, blanks, dangling references."""
    async with asking(400) as ask:
        truth = list(ask.emulator.truth())
        details, items = [one["detail"] for one in truth], [one["item"] for one in truth]
        uploads = [upload for one in items for upload in one["uploads"]]
        runs = [run for one in details for run in one["workflow_runs"]]
        steps = [(run, step) for run in runs for step in run["workflow_run_steps"]]
        forms = [form for one in items for form in one["form_submits"]]
        assert any(one["id"] > 2**53 for one in details)
        assert len({one["scan_code"] for one in details}) < len(details)
        assert 4.5 < len(uploads) / len(items) < 7
        assert {None, ""} <= {upload["latitude"] for upload in uploads}
        assert {"snap", "manual", "document"} < {upload["upload_type"] for upload in uploads}
        assert any(run["completed_at"] is None for run in runs)
        assert any(step["status"] == "skipped" for _, step in steps)
        assert any(step["workflow_step_id"] not in {s["id"] for s in run["workflow"]["steps"]} for run, step in steps)
        known = {upload["id"] for upload in uploads}
        assert any(item not in known for _, step in steps for item in step["entity_ids"])
        assert len(known) == len(uploads)
        assert len({run["id"] for run in runs}) == len(runs)
        spellings = {("answers" in form, "fields" in form) for form in forms}
        assert spellings == {(False, True), (True, True), (False, False)}
        rows = [row for form in forms for row in form.get("fields", form["form"].get("fields"))]
        labels = [row.get("label", row.get("name")) for row in rows]
        assert any(label.endswith(" ") for label in labels)
        assert max(map(len, labels)) > 150
        assert any(not label.isascii() for label in labels)
        assert any(len({f["field_id"] for f in one["fields"]}) < len(one["fields"]) for one in details)
        assert any("retention_class" in one for one in items)
        assert any(len(one["locations"]) > 1 for one in details)


GONE = {
    "404": (404, None),
    "410": (410, None),
    "empty": (200, b""),
    "null": (200, b"null"),
    "[]": (200, b"[]"),
    "{}": (200, b"{}"),
    "data-null": (200, b'{"data":null}'),
    "data-list": (200, b'{"data":[]}'),
    "envelope-300": (200, b'{"status":"error","reason":"No file found","code":300}'),
    "response-error": (200, b'{"response":"error","status":"NO FILE FOUND"}'),
}


async def test_a_file_that_is_gone_answers_in_every_shape() -> None:
    """A deleted file and one that never was answer alike, as the quirk says."""
    async with asking(5) as ask:
        (key,) = ask.emulator.world.delete(ask.emulator.world.keys()[:1])
        for shape, (status, body) in GONE.items():
            ask.emulator.set_quirks(not_found=shape)
            for unknown in (key, 1):
                reply = await ask.detail(unknown)
                assert (reply.status, body or reply.body) == (status, reply.body), shape


async def test_tokens_are_looked_for_where_the_quirk_says() -> None:
    """The token counts in the query, in the header token, or in both; a wrong one is refused on every endpoint."""
    async with asking(3) as ask:
        header = {"token": ask.emulator.token}
        for place, by_query, by_header in (("both", 200, 200), ("query", 200, 401), ("header", 401, 200)):
            ask.emulator.set_quirks(token_location=place)
            assert (await ask.get("/api/v2/files")).status == by_query
            assert (await ask.get("/api/v2/files", token=False, headers=header)).status == by_header
        for path in ("/api/v2/files", "/api/v2/files/1", "/api/v2/reports", "/api/v2/share"):
            reply = await ask.get(path, [("token", "wrong")], token=False)
            assert (reply.status, reply.json()) == (401, {"response": "error", "status": "Unauthorized"})


async def test_date_is_sent_skewed_or_left_out() -> None:
    """Date is the world's clock, ahead by date_skew_seconds, or absent."""
    async with asking(3) as ask:
        ask.emulator.world.clock.set(1_700_000_000_000_000)
        assert (await ask.files()).headers["Date"] == "Tue, 14 Nov 2023 22:13:20 GMT"
        ask.emulator.set_quirks(date_skew_seconds=60)
        assert (await ask.files()).headers["Date"] == "Tue, 14 Nov 2023 22:14:20 GMT"
        ask.emulator.set_quirks(date_header="off")
        assert "Date" not in (await ask.files()).headers


async def test_every_profile_serves_lists_and_details() -> None:
    """Under every profile a list and a detail can be fetched with the token in its place."""
    for profile in PROFILES:
        async with asking(6, quirks=make_quirks(profile)) as ask:
            headers = {"token": ask.emulator.token}
            first = (await ask.get("/api/v2/files", headers=headers)).data[0]
            path = f"/api/v2/files/{first.get('file_id', first['id'])}"
            assert (await ask.get(path, headers=headers)).status == 200, profile
