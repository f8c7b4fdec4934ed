"""GET /api/v2/files/{id}, the spelling of documents, the token, and that every option changes an answer."""

import asyncio
import itertools
import re
import typing

import pytest

from pipeline.emulator import Quirks, WorldPlan, timestamps
from tests.emulator.http_client import INCLUDES, Asker, Pairs, asking

NUMBERS: dict[str, list[object]] = {
    "page_cap": [2],
    "null_times": [1.0],
    "filter_misses": [1.0],
    "list_cache_seconds": [9.0],
    "detail_cache_seconds": [9.0],
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
    yield await tell("/api/v2/files", [("updated_end", "2027-01-01")])
    world.edit(world.find_serial(4).key, "add-upload")  # type: ignore[union-attr]
    yield await tell("/api/v2/files", [])
    yield await tell(f"/api/v2/files/{world.find_serial(4).key}", [("lang", "de")])  # type: ignore[union-attr]


async def test_every_value_of_every_option_changes_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same requests get the same answers under the same options, and others under each other value."""
    defaults, same = Quirks(), []

    async def tour(name: str, **options: typing.Any) -> str:
        secrets = itertools.count()
        monkeypatch.setattr("pipeline.emulator.reports.secrets.token_urlsafe", lambda _: f"secret-{next(secrets)}")
        return await _tour(Quirks(**options), orders=name.startswith("report_"))

    usual = {is_order: await tour("report_" * is_order) for is_order in (False, True)}
    assert usual == {is_order: await tour("report_" * is_order) for is_order in (False, True)}
    for name, hint in typing.get_type_hints(Quirks).items():
        values = NUMBERS.get(name) or [word for word in typing.get_args(hint) if word != getattr(defaults, name)]
        assert values, name
        told = [await tour(name, **{name: value}) for value in values]
        same += [(name, value) for value, text in zip(values, told, strict=True) if text in usual.values()]
    assert same == []


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


async def test_a_wrong_token_is_refused_on_every_endpoint() -> None:
    """A wrong token answers 401 Unauthorized on each endpoint."""
    async with asking(3) as ask:
        for path in ("/api/v2/files", "/api/v2/files/1", "/api/v2/reports", "/api/v2/share"):
            reply = await ask.get(path, [("token", "wrong")], token=False)
            assert (reply.status, reply.json()) == (401, {"response": "error", "status": "Unauthorized"})
