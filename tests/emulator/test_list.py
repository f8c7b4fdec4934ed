"""GET /api/v2/files: the query, the pages, the limits, the includes."""

from collections import defaultdict
from typing import Any

from pipeline.emulator import Quirks, WorldPlan, timestamps
from tests.emulator.http_client import INCLUDES, Asker, asking


def _ids(rows: list[dict[str, Any]]) -> set[int]:
    return {row["id"] for row in rows}


async def test_window_bounds_are_inclusive_by_default_and_exclusive_on_request() -> None:
    """A file stamped exactly at a bound is inside, unless the quirk says outside."""
    async with asking() as ask:
        stamp, key = ask.emulator.world.index[60]
        text = timestamps.format_micros_z(stamp)[:19] + "Z"
        pairs = [("updated_start", text), ("updated_end", text)]
        assert key in _ids((await ask.files(*pairs)).data)
        for quirks in ({"start_bound": "exclusive"}, {"start_bound": "inclusive", "end_bound": "exclusive"}):
            ask.emulator.set_quirks(**quirks)
            assert (await ask.files(*pairs)).data == []


async def test_moments_may_be_spelled_in_many_ways_and_dates_alone_are_whole_days() -> None:
    """A bound may have T or a space, and Z or nothing; one date as start and end takes in that whole day."""
    async with asking(plan=WorldPlan(files=100, days=4, spread="even", now="2026-03-05T00:00:00Z")) as ask:
        index = ask.emulator.world.index
        bound = timestamps.parse_timestamp("2026-03-02T10:00:00Z")
        wanted = {key for stamp, key in index if stamp >= bound}
        for text in ("2026-03-02T10:00:00Z", "2026-03-02 10:00:00", "2026-03-02T10:00:00", "2026-03-02 10:00:00Z"):
            assert _ids(await ask.every(("updated_start", text))) == wanted
        assert 0 < len(wanted) < 100
        rows = await ask.every(("updated_start", "2026-03-03"), ("updated_end", "2026-03-03"))
        day = {key for stamp, key in index if timestamps.format_micros_z(stamp).startswith("2026-03-03")}
        assert _ids(rows) == day
        assert len(day) == 25


async def test_active_files_are_those_whose_life_touches_the_period() -> None:
    """Startdate and enddate find files created before its end and updated after its start."""
    async with asking(plan=WorldPlan(files=200, days=30, now="2026-03-06T00:00:00Z")) as ask:
        rows = await ask.every(("startdate", "2026-02-20"), ("enddate", "2026-02-22"))
        low, high = timestamps.parse_timestamp("2026-02-20"), timestamps.parse_timestamp("2026-02-22", end_of_day=True)
        world = ask.emulator.world.records.values()
        assert rows
        assert _ids(rows) == {r.key for r in world if r.created <= high and r.updated >= low}


async def test_each_search_parameter_narrows_the_list() -> None:
    """Reference is exact, find partial, closed a state, and field_id[N] the value of a field."""
    async with asking() as ask:
        record = next(iter(ask.emulator.world.records.values()))
        rows = await ask.every(("reference", record.scan_code))
        assert record.key in _ids(rows)
        assert {row["scan_code"] for row in rows} == {record.scan_code}
        assert await ask.every(("reference", record.scan_code[:-1])) == []
        assert record.key in _ids(await ask.every(("find", record.scan_code[1:-1].lower())))
        opened, closed = await ask.every(("closed", "0")), await ask.every(("closed", "1"))
        assert ({row["closed"] for row in opened}, {row["closed"] for row in closed}) == ({0}, {1})
        assert len(opened) + len(closed) == len(await ask.every()) == 120
        values = defaultdict(set)
        for one in ask.emulator.truth():
            for field in one["item"]["fields"]:
                values[field["field_id"], field["value"]].add(one["id"])
        (number, value), wanted = next(iter(values.items()))
        assert _ids(await ask.every((f"field_id[{number}]", value))) == wanted


async def test_what_the_interface_forbids_answers_422() -> None:
    """A parameter that breaks a rule answers 422 with the parameter's name in the body."""
    forbidden = [
        *(("limit", value) for value in ("251", "0", "x")),
        *(("page", "-1"), ("closed", "2"), ("include[]", "everything"), ("format", "xml")),
        *(("updated_start", "yesterday"), ("updated_end", "2026-02-30"), ("startdate", "2026-01-01T25:00:00Z")),
    ]
    async with asking(5) as ask:
        for pairs in [*([pair] for pair in forbidden), [("limit", "51"), ("include[]", "forms")]]:
            reply = await ask.files(*pairs)
            assert reply.status == 422, pairs
            assert pairs[0][0].removesuffix("[]") in str(reply.json()["errors"])


async def test_includes_that_were_not_asked_for_are_absent() -> None:
    """An include brings its own key and no other; geocoding stands in uploads, and comes only with them."""
    keys = {"uploads": "uploads", "forms": "form_submits", "fields": "fields", "locations": "locations"}
    keys["workflows"] = "workflow_runs"
    async with asking(20) as ask:
        for include in INCLUDES:
            row = (await ask.files(includes=(include,))).data[0]
            assert set(row) & set(keys.values()) == ({keys[include]} if include in keys else set())
        for includes, expected in ((("uploads",), False), (("uploads", "geocoding"), True)):
            uploads = [upload for row in (await ask.files(includes=includes)).data for upload in row["uploads"]]
            assert {"geocoding" in upload for upload in uploads} == {expected}


async def test_pages_are_disjoint_and_together_whole() -> None:
    """Default pages hold 50; in a still world the pages are the list, and one past the end is an empty 200."""
    async with asking(120) as ask:
        pages = [await ask.files(("page", str(number))) for number in (1, 2, 3, 4)]
        assert [len(page.data) for page in pages] == [50, 50, 20, 0]
        assert len(_ids([row for page in pages for row in page.data])) == 120
        assert [page.json()["next_page_url"] is None for page in pages] == [False, False, True, True]
        body = pages[1].json()
        assert (body["current_page"], body["last_page"], body["per_page"], body["total"]) == (2, 3, "50", 120)
        assert (body["from"], body["to"]) == (51, 100)
        ask.emulator.set_quirks(page_cap=7)
        body = (await ask.files(("limit", "50"))).json()
        assert (len(body["data"]), body["per_page"], body["last_page"]) == (7, "7", 18)


async def test_every_order_shows_every_file() -> None:
    """Whatever the order, one full page of 120 holds 120 files, and the order is the one asked for."""
    async with asking() as ask:
        for order in ("updated-desc", "updated-asc", "id-asc", "id-desc"):
            ask.emulator.set_quirks(order=order)
            rows = (await ask.files(("limit", "250"))).data
            keys = [row["id" if order.startswith("id") else "updated_at"] for row in rows]
            assert len(_ids(rows)) == 120
            assert keys == sorted(keys, reverse=order.endswith("desc"))
        ask.emulator.set_quirks(order="shuffled")
        first, again = [[row["id"] for row in (await ask.files(("limit", "250"))).data] for _ in range(2)]
        assert set(first) == set(again)
        assert first != again


async def _read_hints(ask: Asker) -> tuple[object, object, bool]:
    body = (await ask.files(("limit", "20"))).json()
    holder = body.get("meta") or body.get("pagination") or body
    return holder.get("next_page_url", "absent"), holder.get("total"), "links" in body


async def test_counts_and_next_pages_stand_where_the_quirk_says() -> None:
    """next_page_url is what the quirk says, without the token; counts stand beside data, nested, or nowhere."""
    async with asking() as ask:
        base, other = ask.emulator.base_url, ask.emulator.other_url
        literal = f"{base}/api/v2/files?page=2"
        expected = [
            ("next_page_url", "http-page-only", (literal, 120, False)),
            ("next_page_url", "complete", (f"{base}/api/v2/files?limit=20&page=2", 120, False)),
            ("next_page_url", "relative", ("/api/v2/files?limit=20&page=2", 120, False)),
            ("next_page_url", "other-host", (f"{other}/api/v2/files?limit=20&page=2", 120, False)),
            ("next_page_url", "null", (None, 120, False)),
            ("next_page_url", "absent", ("absent", 120, False)),
            ("next_page_url", "http-page-only", (literal, 120, False)),
            ("paging", "meta", (literal, 120, False)),
            ("paging", "pagination", (literal, 120, False)),
            ("paging", "links", (literal, 120, True)),
            ("paging", "none", (literal, None, False)),
            ("paging", "bare", ("absent", None, False)),
        ]
        for quirk, value, hints in expected:
            ask.emulator.set_quirks(**{quirk: value})
            assert await _read_hints(ask) == hints, value


async def test_ignored_windows_and_late_commits() -> None:
    """windows=ignored shows everything whatever the bounds.

    With late_commit_seconds the detail is new at once and the list only later, with the earlier stamp.
    """
    plan = WorldPlan(files=20, seed=3, now="2026-05-01T00:00:00Z")
    async with asking(plan=plan, quirks=Quirks(late_commit_seconds=60)) as ask:
        world = ask.emulator.world
        window = ("updated_start", "2026-05-01T00:00:00Z")
        (key,) = world.create()
        world.update([world.index[0][1]])
        assert (await ask.detail(key)).status == 200
        assert (await ask.files(window)).data == []
        world.clock.advance(61)
        assert len((await ask.files(window)).data) == 2
        ask.emulator.set_quirks(windows="ignored")
        assert len(await ask.every(("updated_start", "2099-01-01"))) == 21


async def test_instances_share_an_id_and_differ_in_file_id() -> None:
    """With instances=on some ids have several list objects; by id the newest comes, by file_id each one."""
    async with asking(600, quirks=Quirks(instances="on")) as ask:
        shared = defaultdict(list)
        for row in await ask.every():
            shared[row["id"]].append(row)
        key, group = next((key, group) for key, group in shared.items() if len(group) > 1)
        assert len({row["file_id"] for row in group}) == len(group)
        for row in group:
            reply = (await ask.get(f"/api/v2/files/{row['file_id']}")).json()
            assert (reply["id"], reply["file_id"], reply["updated_at"]) == (key, row["file_id"], row["updated_at"])
        newest = (await ask.detail(key)).json()["updated_at"]
        assert newest == max(str(row["updated_at"]) for row in group)
