"""GET /api/v2/files/{id}, the spelling of documents, and the token."""

import re

import pytest

from pipeline.emulator import PROFILES, Quirks, make_quirks
from tests.emulator.http_client import INCLUDES, asking


async def test_list_item_and_detail_agree_where_both_speak() -> None:
    """What the list with all includes and the detail both show is equal, but for keys only the detail has."""
    async with asking(40) as ask:
        for item in (await ask.files(includes=INCLUDES)).data:
            detail = (await ask.detail(item["id"])).json()
            assert {
                key: detail[key] for key in ("id", "scan_code", "closed", "created_at", "updated_at")
            }.items() <= item.items()
            assert detail["workflow_runs"] == item["workflow_runs"]
            assert detail["locations"] == item["locations"]
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
        assert len({upload["id"] for upload in uploads}) == len(uploads)
        assert len({run["id"] for run in runs}) == len(runs)
        spellings = {("answers" in form, "fields" in form) for form in forms}
        assert spellings == {(False, True), (True, True), (False, False)}
        labels = [
            row.get("label", row.get("name"))
            for form in forms
            for row in form.get("fields", form["form"].get("fields"))
        ]
        assert any(label.endswith(" ") for label in labels)
        assert max(map(len, labels)) > 150
        assert any(not label.isascii() for label in labels)
        assert any(len({f["field_id"] for f in one["fields"]}) < len(one["fields"]) for one in details)
        assert any("retention_class" in one for one in items)
        assert any(len(one["locations"]) > 1 for one in details)


@pytest.mark.parametrize(
    ("times", "pattern"),
    [
        ("micros-z", r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z"),
        ("offset", r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?\+00:00"),
        ("space", r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d+)?"),
    ],
)
async def test_timestamps_come_in_one_spelling_each(times: str, pattern: str) -> None:
    """The times quirk rules every timestamp of a document; mixed has two in one."""
    async with asking(5, quirks=Quirks(times=times)) as ask:  # type: ignore[arg-type]
        for one in ask.emulator.truth():
            found = [one["detail"]["created_at"], *(upload["created_at"] for upload in one["detail"]["uploads"])]
            assert all(re.fullmatch(pattern, text) for text in found)


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
                assert reply.status == status, shape
                assert body is None or reply.body == body


async def test_quirks_of_the_detail() -> None:
    """The detail can be wrapped, carry forms and counts, and bear another stamp than the list."""
    quirks = Quirks(detail_wrap="data", detail_forms="yes", detail_keys="full", detail_stamp="newer")
    async with asking(5, quirks=quirks) as ask:
        item = (await ask.files()).data[0]
        wrapped = (await ask.detail(item["id"])).json()
        assert set(wrapped) == {"data"}
        assert {"form_submits", "scan_code_format", "snap_count"} <= set(wrapped["data"])
        assert wrapped["data"]["updated_at"] > item["updated_at"]


async def test_ids_flags_and_blanks_change_their_types() -> None:
    """ids=string, flags=boolean and empties=null reach every level of a document."""
    async with asking(60, quirks=Quirks(ids="string", flags="boolean", empties="null", extra_keys="many")) as ask:
        for one in ask.emulator.truth():
            detail = one["detail"]
            assert detail["id"] == str(one["id"])
            assert isinstance(detail["closed"], bool)
            assert all(isinstance(upload["id"], str) and upload["comment"] != "" for upload in detail["uploads"])
            for run in detail["workflow_runs"]:
                assert all(isinstance(item, str) for step in run["workflow_run_steps"] for item in step["entity_ids"])
            assert "x_note" in detail


async def test_damage_texts_follow_lang_where_it_is_heeded() -> None:
    """Lang changes damage_type_desc, in the detail only where the quirk says so."""
    async with asking(200) as ask:
        world = ask.emulator
        damaged = next(one for one in world.truth() if any(u["damage_type_id"] for u in one["detail"]["uploads"]))
        english = (await ask.detail(damaged["id"])).body
        german = await ask.get(f"/api/v2/files/{damaged['id']}", [("lang", "de")])
        assert german.body != english
        world.set_quirks(lang_texts="list-only")
        assert (await ask.get(f"/api/v2/files/{damaged['id']}", [("lang", "de")])).body == english


async def test_fresh_image_urls_differ_from_answer_to_answer() -> None:
    """Signed addresses can be made anew in every answer, as real ones are."""
    async with asking(5, quirks=Quirks(image_urls="fresh")) as ask:
        key = next(one["id"] for one in ask.emulator.truth() if one["detail"]["uploads"])
        assert (await ask.detail(key)).body != (await ask.detail(key)).body


async def test_the_token_is_looked_for_where_the_quirk_says() -> None:
    """The token counts in the query, in the header token, or in both."""
    async with asking(3) as ask:
        for place, query, header in (("both", 200, 200), ("query", 200, 401), ("header", 401, 200)):
            ask.emulator.set_quirks(token_location=place)
            assert (await ask.get("/api/v2/files")).status == query
            by_header = await ask.get("/api/v2/files", token=False, headers={"token": ask.emulator.token})
            assert by_header.status == header


async def test_a_wrong_token_is_refused_on_every_endpoint() -> None:
    """A wrong token answers 401 Unauthorized on each endpoint."""
    async with asking(3) as ask:
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


@pytest.mark.parametrize("profile", PROFILES)
async def test_every_profile_serves_lists_and_details(profile: str) -> None:
    """Under every profile a list and a detail can be fetched with the token in its place."""
    async with asking(60, quirks=make_quirks(profile)) as ask:
        headers = {"token": ask.emulator.token}
        reply = await ask.get("/api/v2/files", headers=headers)
        key = reply.data[0].get("file_id", reply.data[0]["id"])
        assert (await ask.get(f"/api/v2/files/{key}", headers=headers)).status == 200
