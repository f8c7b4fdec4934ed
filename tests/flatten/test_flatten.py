"""Documents become rows: the way of one file and of a batch."""

from __future__ import annotations

import os
import time
from collections import Counter
from datetime import UTC, datetime
from itertools import product
from typing import TYPE_CHECKING, Any, Final

from pipeline.emulator import Emulator, Quirks, WorldPlan, make_quirks
from pipeline.flatten.flatten import FlattenResult, flatten
from schemas import tables, wire
from tests.flatten.flatten_helpers import FETCHED, drift, rows, take, version
from tests.rows import every

if TYPE_CHECKING:
    import pytest

    from schemas.file_versions import FileVersion


def _world(quirks: Quirks | None = None, files: int = 60) -> list[FileVersion]:
    plan = WorldPlan(files=files, seed=5, now="2024-06-01T00:00:00Z")
    emulator = Emulator(plan=plan, quirks=quirks or Quirks())
    return [version(true["detail"], true["item"], key=true["key"]) for true in emulator.truth()]


def _flat(versions: list[FileVersion]) -> FlattenResult:
    return flatten(versions, run_id="run", seq=7)


def test_a_file_is_a_row_with_its_marks() -> None:
    """A file's row has its key, its values, whether the detail answered, and when, by whom and as what it was taken."""
    (row,) = take({"id": 17, "scan_code": "A", "closed": 1}).tables["files"].to_pylist()
    fetched = datetime.fromtimestamp(FETCHED // 1_000_000, UTC).replace(tzinfo=None)
    assert {key: value for key, value in row.items() if value is not None} == {
        "file_id": 17,
        "service_id": 17,
        "scan_code": "A",
        "closed": True,
        "_has_detail": True,
        "_fetched_at": fetched,
        "_run_id": "run",
        "_seq": 1,
    }
    assert take(item={"id": 17}).tables["files"]["_has_detail"].to_pylist() == [False]


def test_every_child_has_its_file_and_place() -> None:
    """Uploads, fields and locations are rows in the order sent, each with the key of its file."""
    fields = [{"id": 1, "field_id": 9, "donotuse": "x"}]  # clients must not use it, and the id is mapped wrongly
    flat = take({"id": 1, "uploads": [{"id": 5}, {"id": 4}], "fields": fields, "locations": [{"id": 2}]})
    assert rows(flat, "uploads") == [{"file_id": 17, "id": key, "position": place} for place, key in enumerate((5, 4))]
    assert rows(flat, "fields") == [{"file_id": 17, "deprecated_id": 1, "field_id": 9, "position": 0}]
    assert rows(flat, "locations") == [{"file_id": 17, "id": 2, "position": 0}]
    assert not flat.drift


@every("key", [key for key, value in wire.FILE.items() if value is None])
def test_every_list_of_a_file_becomes_rows(key: str) -> None:
    """A list that schemas/wire.py declares leaves `extra`, so its items are rows, merged of list item and detail."""
    flat = take({key: [{"id": 5}]}, {key: [{"id": 5, "only_listed": 1}]})
    todo = f"{key} is lost: declare a Table of this name with the parent files in schemas/tables.py"
    assert [row.get("extra") for row in rows(flat, key)] == [{"only_listed": 1}], todo


def test_runs_become_runs_steps_and_items() -> None:
    """A run gives a row, so does each of its steps and their items, joined by ids that need not exist elsewhere."""
    step = {"id": 9, "workflow_step_id": 31, "entity_type": "uploads", "entity_ids": [5, "6", None]}
    other = {"id": 10, "workflow_run_id": 7, "entity_ids": [11]}
    run = {"id": 8, "workflow_id": 3, "workflow": {"id": 3, "steps": [{"id": 30}]}, "workflow_run_steps": [step, other]}
    flat = take({"uploads": [{"workflow_step_id": 998}], "workflow_runs": [run]})
    owner = {"file_id": 17, "workflow_run_id": 8, "workflow_run_step_id": 9, "entity_type": "uploads"}
    assert rows(flat, "workflow_runs") == [{"file_id": 17, "id": 8, "workflow_id": 3, "position": 0}]
    first, second = rows(flat, "workflow_run_steps")
    assert (first["workflow_run_id"], first["workflow_id"], first["workflow_step_id"]) == (8, 3, 31)
    assert (second["workflow_run_id"], second["position"]) == (7, 1)
    assert rows(flat, "uploads")[0]["workflow_step_id"] == "998"
    assert rows(flat, "workflow_run_step_items") == [
        owner | {"entity_id": 5, "position": 0},
        owner | {"entity_id": 6, "position": 1},
        owner | {"position": 2},
        {"file_id": 17, "workflow_run_id": 7, "workflow_run_step_id": 10, "entity_id": 11, "position": 0},
    ]


def test_unknown_keys_go_to_extra_and_are_counted() -> None:
    """A key that the schema does not know is kept as sent in its row and counted by table and key."""
    flat = take({"id": 17, "new": {"a": [1, None]}, "uploads": [{"id": 5, "new": 1.50}, {"id": 6, "new": None}]})
    assert rows(flat, "files")[0]["extra"] == {"new": {"a": [1, None]}}
    assert [row["extra"] for row in rows(flat, "uploads")] == [{"new": 1.5}, {"new": None}]
    assert flat.tables["uploads"]["extra"].to_pylist()[0] == '{"new":1.5}'
    assert drift(flat) == {("files", "new", "unknown_key"): 1, ("uploads", "new", "unknown_key"): 2}


@every(
    ("key", "sent"),
    [
        *(("id", sent) for sent in (2**63, 10**30, "007")),
        *(("closed", sent) for sent in ("perhaps", 2)),
        *(("updated_at", sent) for sent in ("yesterday", True)),
        *(("scan_code", {"a": 1}), ("scan_code", []), ("snap_count", [3]), ("file_id", {})),
    ],
)
def test_a_misfit_is_null_in_its_column_and_kept_in_extra(key: str, sent: object) -> None:
    """A value that does not fit is NULL in its column, stands as sent in extra, and is counted; its row goes on."""
    flat = take({"scan_code_format": "x", key: sent})
    (row,) = rows(flat, "files")
    assert row["extra"] == {key: sent}
    assert (row.get(key), row["scan_code_format"]) == (None, "x") or key == "file_id"
    assert drift(flat) == {("files", key, "type_mismatch"): 1}


def test_misfits_are_rows_with_place_reason_and_text() -> None:
    """Each value that does not fit is a row that names its table, key, column and reason, with the text as sent."""
    upload = {"id": 5, "latitude": "52,37", "has_damage": 2, "device_id": "dev-7"}
    steps = {"steps": [{"id": 31, "order": "first"}], "id": "w-1"}
    flat = take({"id": 17, "fields": "none", "uploads": [{"id": 4}, upload], "workflow_runs": [{"workflow": steps}]})
    found = [tuple(row.values())[:6] for row in flat.tables["misfits"].to_pylist()]
    (digest,) = flat.definitions
    step = f'{{"_definition_hash":"{digest}","id":31,"position":0}}'
    assert found == [
        (17, "files", "{}", "fields", "a type or a place that the interface does not have", "none"),
        (17, "uploads", '{"id":5,"position":1}', "has_damage", "neither 0 nor 1", "2"),
        (17, "uploads", '{"id":5,"position":1}', "latitude", "not a number", "52,37"),
        (17, "workflow_definitions", f'{{"_definition_hash":"{digest}"}}', "id", "not an exact 64-bit integer", "w-1"),
        (17, "workflow_definition_steps", step, "workflow_id", "not an exact 64-bit integer", "w-1"),
        (17, "workflow_definition_steps", step, "step_order", "not an exact 64-bit integer", "first"),
    ]
    assert rows(flat, "uploads")[1]["device_id"] == "dev-7"


def test_a_key_that_does_not_fit_is_a_misfit_of_its_own_row_only() -> None:
    """A parent's key is NULL in the rows below it if it does not fit; the keys of misfits have columns' values."""
    item = {"id": 9, "entity_ids": ["x"], "entity_type": 7}
    run = {"id": "r-1", "workflow_id": "w-1", "workflow_run_steps": [item]}
    submit = {"id": 5, "form_id": "f-1", "fields": [{"id": 1, "label": "Q", "value_json": 3, "value": "v"}]}
    flat = take({"workflow_runs": [run], "form_submits": [submit, {**submit, "fields": [{"label": [1]}]}]})
    found = [tuple(row.values())[1:4] for row in flat.tables["misfits"].to_pylist()]
    item_key = '{"workflow_run_id":null,"workflow_run_step_id":9,"entity_id":"x","position":0}'
    assert found == [
        ("form_submits", '{"id":5,"position":0}', "form_id"),
        ("form_submits", '{"id":5,"position":1}', "form_id"),
        ("form_answers", '{"form_submit_id":"5","question_id":null,"position":0}', "label"),
        ("workflow_runs", '{"id":"r-1","position":0}', "id"),
        ("workflow_runs", '{"id":"r-1","position":0}', "workflow_id"),
        ("workflow_run_step_items", item_key, "entity_id"),
    ]
    assert "workflow_run_id" not in rows(flat, "workflow_run_steps")[0]
    assert rows(flat, "workflow_run_step_items")[0]["entity_type"] == "7"
    assert [row["form_submit_id"] for row in rows(flat, "form_answers")] == ["5", "5"]


def test_misfits_of_many_files_name_each_its_own() -> None:
    """Across chunks and files, each misfit stands with the file that sent it."""
    versions = [version({"id": key, "uploads": [{"id": 1, "latitude": f"x{key}"}] * 3}, key=key) for key in range(700)]
    table = _flat(versions).tables["misfits"]
    assert table["file_id"].to_pylist() == [key for key in range(700) for _ in range(3)]
    assert table["value"].to_pylist() == [f"x{key}" for key in range(700) for _ in range(3)]


def test_text_that_utf8_cannot_say_is_escaped_and_noted() -> None:
    """A lone surrogate is escaped in its column, and extra and the drift tell that it was one."""
    flat = take({"scan_code": "a\ud800", "\udfff": "b"})
    (row,) = rows(flat, "files")
    assert (row["scan_code"], row["extra"]) == ("a\\ud800", {"scan_code": "a\\ud800", "\\udfff": "b"})
    assert drift(flat) == {("files", "scan_code", "type_mismatch"): 1, ("files", "\\udfff", "unknown_key"): 1}


_COLLECTIONS: Final = ("uploads", "form_submits", "fields", "locations", "workflow_runs")


@every(("key", "odd"), product(_COLLECTIONS, ({"0": {"id": 5}}, "gone", 0, False, 7, {})))
def test_a_collection_that_is_no_list_goes_to_extra(key: str, odd: object) -> None:
    """Where a collection should stand and an object or a scalar does, it is kept with the file, and counted."""
    flat = take({"id": 17, key: odd})
    assert rows(flat, "files")[0]["extra"] == {key: odd}
    assert drift(flat) == {("files", key, "type_mismatch"): 1}
    assert set(flat.tables) == {"files", "misfits"}


def test_what_is_no_object_in_a_collection_goes_to_extra() -> None:
    """Entries that are no objects are kept with their owner; the others keep the place they were sent at."""
    flat = take({"uploads": [None, {"id": 5}, [1], "x"], "workflow_runs": [{"workflow_run_steps": [3, {"id": 9}]}]})
    assert rows(flat, "files")[0]["extra"] == {"uploads": [None, [1], "x"]}
    assert rows(flat, "uploads")[0]["position"] == 1
    assert rows(flat, "workflow_runs")[0]["extra"] == {"workflow_run_steps": [3]}
    assert rows(flat, "workflow_run_steps")[0]["position"] == 1


@every("odd", ["5,6", 5, {"0": 5}, False])
def test_items_that_are_no_list_stay_with_their_step(odd: object) -> None:
    """`entity_ids` in another shape are kept in the step's extra."""
    flat = take({"workflow_runs": [{"workflow_run_steps": [{"id": 9, "entity_ids": odd}]}]})
    assert rows(flat, "workflow_run_steps")[0]["extra"] == {"entity_ids": odd}


def test_an_item_that_is_no_id_is_a_row_all_the_same() -> None:
    """An entry of `entity_ids` that is no integer has a row, and stands there as sent."""
    odd = ["x", {"id": 6}, 2**64]
    flat = take({"workflow_runs": [{"workflow_run_steps": [{"id": 9, "entity_ids": [5, *odd]}]}]})
    found = [row.get("extra") for row in rows(flat, "workflow_run_step_items")]
    assert found == [None, *({"entity_id": each} for each in odd)]


@every(("named", "kept"), [(17, False), ("17", False), (99, False), (18, True), ("x", True)])
def test_a_child_of_another_file_says_so(named: object, kept: bool) -> None:  # noqa: FBT001 - a table of cases
    """A child's own `file_id` is dropped where it names its file, by id or instance, and else kept once."""
    for key in ("uploads", "fields", "locations", "workflow_runs"):
        flat = take({"id": 17, "file_id": 99, key: [{"id": 5, "file_id": named}]})
        assert rows(flat, key)[0].get("extra") == ({"file_id": named} if kept else None), key


@every("digits", [b"1e22", b"1E5", b"0.0000001", b"1.10", b"-0.0", b"1e999"])
def test_a_number_has_the_digits_that_were_sent(digits: bytes) -> None:
    """A number with a fraction or an exponent is as sent, in a text column and in extra."""
    flat = take(b'{"id":17,"scan_code":%b,"new":%b}' % (digits, digits))
    assert flat.tables["files"]["scan_code"].to_pylist() == [digits.decode()]
    assert flat.tables["files"]["extra"].to_pylist() == [f'{{"new":{digits.decode()}}}']


_UNREADABLE: Final = (b"", b"<html>", b'{"id":', b"[]", b"null", b'"x"', b"\xff", b"[" * 100_000)


@every(("bad", "side"), product(_UNREADABLE, ("detail", "item")))
def test_an_unreadable_document_is_a_reject_and_the_batch_goes_on(bad: bytes, side: str) -> None:
    """A version with a document that cannot be read becomes a reject with that document; the others are taken."""
    broken = version(**{"detail": {"id": 2}, "item": {"id": 2}, side: bad}, key=2)
    flat = _flat([version({"id": 1}, key=1), broken, version({"id": 3}, key=3)])
    assert flat.tables["files"]["file_id"].to_pylist() == [1, 3]
    (reject,) = flat.rejects
    assert (reject.file_id, reject.document) == (2, bad)
    assert reject.reason.startswith("document: ")


def test_nothing_gives_nothing() -> None:
    """An empty batch has no tables, no drift and no rejects."""
    assert _flat([]) == FlattenResult({}, Counter(), (), frozenset())


@every("profile", ["seen", "plain", "sparse", "contrary", "hostile", "instances"])
def test_every_profile_of_the_service_fits(profile: str) -> None:
    """Whatever the service answers where the interface is silent, every value has its column and none is a misfit."""
    versions = _world(make_quirks(profile))
    flat = _flat(versions)
    assert not flat.rejects
    assert flat.tables["files"].num_rows == len(versions)
    assert {kind for _, _, kind in drift(flat)} <= {"unknown_key"}
    assert all(table.schema.equals(tables.BY_NAME[name].arrow) for name, table in flat.tables.items())


@every(
    "answers",
    [
        *({"ids": "string"}, {"flags": "boolean"}, {"flags": "string"}, {"times": "space"}),
        {"detail_forms": "yes", "detail_keys": "full"},
    ],
)
def test_every_spelling_of_the_service_gives_the_same_rows(answers: dict[str, Any]) -> None:
    """Ids as text, flags as booleans, times in another form, forms in both answers: the rows are the same."""
    plain: dict[str, Any] = {"extra_keys": "none", "empties": "null"}
    assert _flat(_world(Quirks(**plain, **answers), 30)).tables == _flat(_world(Quirks(**plain), 30)).tables


def test_the_same_bytes_give_the_same_tables_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows do not depend on the time zone of the machine, not even around a change of the clocks."""
    versions = _world(Quirks(times="space"), files=10)
    versions += [version({"updated_at": f"2024-{day} 02:30:00"}, key=2) for day in ("03-31", "10-27")]
    seen = []
    for zone in ("UTC", "Europe/Berlin", "Asia/Kathmandu", "Pacific/Apia"):
        monkeypatch.setenv("TZ", zone)
        time.tzset()
        seen.append(_flat(versions).tables)
    assert all(each == seen[0] for each in seen)
    assert os.environ["TZ"] == "Pacific/Apia"


def test_rows_keep_their_order_across_chunks() -> None:
    """Many rows, turned into Arrow in chunks, come out whole, in order, with their extra beside them."""
    uploads: list[Any] = [{"id": place, "odd": place} if place % 500 == 3 else {"id": place} for place in range(2_000)]
    uploads[1_999]["tenant_id"] = "x"
    flat = take({"uploads": uploads})
    table = flat.tables["uploads"]
    assert table["id"].to_pylist() == list(range(2_000))
    extra = {place: text for place, text in enumerate(table["extra"].to_pylist()) if text}
    assert extra == {**{place: f'{{"odd":{place}}}' for place in (3, 503, 1003, 1503)}, 1999: '{"tenant_id":"x"}'}


def test_list_item_and_detail_that_say_the_same_are_one_document() -> None:
    """List item and detail alone, or both the same, give the same children."""
    document = {"id": 17, "uploads": [{"id": 5}], "locations": [{"id": 2}]}
    alone = rows(take(document), "uploads")
    assert rows(take(document, document), "uploads") == alone == rows(take(item=document), "uploads")
