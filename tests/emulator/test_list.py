"""GET /api/v2/files: the query, the pages, the limits, the includes."""

from pipeline.emulator import Quirks, WorldPlan, timestamps
from tests.emulator.http_client import INCLUDES, asking


async def test_window_bounds_are_inclusive_by_default_and_exclusive_on_request() -> None:
    """A file stamped exactly at a bound is inside, unless the quirk says outside."""
    async with asking() as ask:
        entry = ask.emulator.world.index[60]
        text = timestamps.format_micros_z(entry[0])[:19] + "Z"
        pairs = [("updated_start", text), ("updated_end", text)]
        assert entry[1] in [row["id"] for row in (await ask.files(*pairs)).data]
        ask.emulator.set_quirks(start_bound="exclusive")
        assert (await ask.files(*pairs)).data == []
        ask.emulator.set_quirks(start_bound="inclusive", end_bound="exclusive")
        assert (await ask.files(*pairs)).data == []


async def test_all_spellings_of_a_moment_mean_the_same() -> None:
    """A bound may have T or a space, and Z or nothing."""
    async with asking(plan=WorldPlan(files=100, days=2, now="2026-03-03T00:00:00Z")) as ask:
        bound = timestamps.parse_timestamp("2026-03-02T10:00:00Z")
        wanted = {key for stamp, key in ask.emulator.world.index if stamp >= bound}
        for text in ("2026-03-02T10:00:00Z", "2026-03-02 10:00:00", "2026-03-02T10:00:00", "2026-03-02 10:00:00Z"):
            assert {row["id"] for row in await ask.every(("updated_start", text))} == wanted
        assert 0 < len(wanted) < 100


async def test_a_date_alone_is_the_start_of_the_day_or_for_ends_its_end() -> None:
    """updated_start and updated_end with one and the same date take in that whole day."""
    async with asking(plan=WorldPlan(files=200, days=5, spread="even", now="2026-03-06T00:00:00Z")) as ask:
        rows = await ask.every(("updated_start", "2026-03-03"), ("updated_end", "2026-03-03"))
        day = {
            key for stamp, key in ask.emulator.world.index if timestamps.format_micros_z(stamp).startswith("2026-03-03")
        }
        assert {row["id"] for row in rows} == day
        assert len(day) == 40


async def test_active_files_are_those_whose_life_touches_the_period() -> None:
    """Startdate and enddate find files created before its end and updated after its start."""
    async with asking(plan=WorldPlan(files=200, days=30, now="2026-03-06T00:00:00Z")) as ask:
        rows = await ask.every(("startdate", "2026-02-20"), ("enddate", "2026-02-22"))
        low, high = timestamps.parse_timestamp("2026-02-20"), timestamps.parse_timestamp("2026-02-22", end_of_day=True)
        world = ask.emulator.world.records.values()
        assert {row["id"] for row in rows} == {r.key for r in world if r.created <= high and r.updated >= low}
        assert rows


async def test_reference_is_exact_find_is_partial_and_closed_filters() -> None:
    """Each search parameter narrows the list as the interface says."""
    async with asking() as ask:
        record = next(iter(ask.emulator.world.records.values()))
        rows = await ask.every(("reference", record.scan_code))
        assert record.key in {row["id"] for row in rows}
        assert {row["scan_code"] for row in rows} == {record.scan_code}
        assert await ask.every(("reference", record.scan_code[:-1])) == []
        assert record.key in {row["id"] for row in await ask.every(("find", record.scan_code[1:-1].lower()))}
        both = await ask.every()
        opened, closed = await ask.every(("closed", "0")), await ask.every(("closed", "1"))
        assert {row["closed"] for row in opened} == {0}
        assert {row["closed"] for row in closed} == {1}
        assert len(opened) + len(closed) == len(both) == 120


async def test_field_id_finds_files_with_that_value() -> None:
    """field_id[N]=value shows only files that contain the custom field with that value."""
    async with asking() as ask:
        truth = list(ask.emulator.truth())
        field = next(row for one in truth for row in one["detail"]["fields"])
        wanted = {
            one["id"]
            for one in truth
            if any(
                (row["field_id"], row["value"]) == (field["field_id"], field["value"]) for row in one["item"]["fields"]
            )
        }
        rows = await ask.every((f"field_id[{field['field_id']}]", field["value"]))
        assert {row["id"] for row in rows} == wanted


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
    """An include brings its own key and no other; geocoding alone brings none."""
    keys = {"uploads": "uploads", "forms": "form_submits", "fields": "fields", "locations": "locations"}
    keys["workflows"] = "workflow_runs"
    async with asking(5) as ask:
        for include in INCLUDES:
            row = (await ask.files(includes=(include,))).data[0]
            assert set(row) & set(keys.values()) == ({keys[include]} if include in keys else set())


async def test_geocoding_stands_in_uploads_when_both_are_asked_for() -> None:
    """Geocoding belongs to uploads and comes only with them."""
    async with asking() as ask:
        for includes, expected in ((("uploads",), False), (("uploads", "geocoding"), True)):
            rows = (await ask.files(includes=includes)).data
            uploads = [upload for row in rows for upload in row["uploads"]]
            assert {"geocoding" in upload for upload in uploads} == {expected}


async def test_pages_are_disjoint_and_together_whole() -> None:
    """Default pages hold 50; in a still world the pages are the list, and one past the end is an empty 200."""
    async with asking(120) as ask:
        pages = [await ask.files(("page", str(number))) for number in (1, 2, 3, 4)]
        assert [len(page.data) for page in pages] == [50, 50, 20, 0]
        assert len({row["id"] for page in pages for row in page.data}) == 120
        body = pages[1].json()
        assert (body["current_page"], body["last_page"], body["per_page"], body["total"]) == (2, 3, "50", 120)
        assert (body["from"], body["to"]) == (51, 100)


async def test_every_order_shows_every_file() -> None:
    """Whatever the order, one full page of 120 holds 120 files, and the order is the one asked for."""
    async with asking() as ask:
        for order in ("updated-desc", "updated-asc", "id-asc", "id-desc"):
            ask.emulator.set_quirks(order=order)
            rows = (await ask.files(("limit", "250"))).data
            keys = [row["id" if order.startswith("id") else "updated_at"] for row in rows]
            assert len({row["id"] for row in rows}) == 120
            assert keys == sorted(keys, reverse=order.endswith("desc"))
        ask.emulator.set_quirks(order="shuffled")
        first, again = [[row["id"] for row in (await ask.files(("limit", "250"))).data] for _ in range(2)]
        assert set(first) == set(again)
        assert first != again


async def test_next_page_url_comes_in_every_style() -> None:
    """next_page_url is what the quirk says, and never carries the token."""
    async with asking() as ask:
        base, other = ask.emulator.base_url, ask.emulator.other_url
        expected = {
            "http-page-only": f"{base}/api/v2/files?page=2",
            "complete": f"{base}/api/v2/files?limit=20&page=2",
            "relative": "/api/v2/files?limit=20&page=2",
            "other-host": f"{other}/api/v2/files?limit=20&page=2",
            "null": None,
            "absent": None,
        }
        for style, link in expected.items():
            ask.emulator.set_quirks(next_page_url=style)
            body = (await ask.files(("limit", "20"))).json()
            assert body.get("next_page_url") == link
            assert ("next_page_url" in body) == (style != "absent")


async def test_page_counts_stand_where_the_quirk_says() -> None:
    """Counts stand beside data, in a nested object, nowhere but next_page_url, or there is data alone."""
    async with asking() as ask:
        for style in ("top", "meta", "pagination", "links", "none", "bare"):
            ask.emulator.set_quirks(paging=style, per_page="integer")
            body = (await ask.files()).json()
            holder = body.get(style, body) if style in {"meta", "pagination"} else body
            assert len(body["data"]) == 50
            assert holder.get("total") == (None if style in {"none", "bare"} else 120)
            assert ("next_page_url" in holder) == (style != "bare")
            assert ("links" in body) == (style == "links")
        ask.emulator.set_quirks(paging="top", per_page="string", page_cap=7)
        body = (await ask.files(("limit", "50"))).json()
        assert (len(body["data"]), body["per_page"], body["last_page"]) == (7, "7", 18)


async def test_ignored_windows_and_hidden_stamps() -> None:
    """windows=ignored shows everything whatever the bounds; updated_in_list=absent hides the stamp."""
    async with asking(quirks=Quirks(windows="ignored", updated_in_list="absent")) as ask:
        rows = await ask.every(("updated_start", "2099-01-01"))
        assert len(rows) == 120
        assert all("updated_at" not in row for row in rows)


async def test_a_late_commit_shows_in_lists_only_after_its_time() -> None:
    """With late_commit_seconds the detail is new at once and the list only later, with the earlier stamp."""
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


async def test_instances_share_an_id_and_differ_in_file_id() -> None:
    """With instances=on some ids have several list objects; by id the newest comes, by file_id each one."""
    async with asking(600, quirks=Quirks(instances="on")) as ask:
        rows = await ask.every()
        shared: dict[int, list[dict[str, object]]] = {}
        for row in rows:
            shared.setdefault(row["id"], []).append(row)
        several = {key: group for key, group in shared.items() if len(group) > 1}
        assert several
        key, group = next(iter(several.items()))
        assert len({row["file_id"] for row in group}) == len(group)
        for row in group:
            reply = (await ask.get(f"/api/v2/files/{row['file_id']}")).json()
            assert (reply["id"], reply["file_id"], reply["updated_at"]) == (key, row["file_id"], row["updated_at"])
        newest = (await ask.detail(key)).json()["updated_at"]
        assert newest == max(str(row["updated_at"]) for row in group)
