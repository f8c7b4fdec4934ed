"""Hostile documents: bounded, kept, and never the end of a batch."""

from __future__ import annotations

import json
from itertools import product

import pytest

from pipeline.flatten.flatten import flatten
from pipeline.flatten.rows import MAX_DRIFT, OTHER_KEYS
from tests.flatten.flatten_helpers import drift, rows, take, version
from tests.rows import every
from tests.soaking import sample


@pytest.mark.parametrize("count", [20_000, pytest.param(1_000_000, marks=pytest.mark.soak)])
def test_many_keys_are_kept_and_counted_under_one_name(count: int) -> None:
    """All unknown keys stand in extra; the drift names a hundred and counts the rest together."""
    keys = {f"k{number}": number for number in range(count)}
    flat = take({"id": 17, **keys})
    assert json.loads(flat.tables["files"]["extra"].to_pylist()[0]) == keys
    noted = drift(flat)
    assert len(noted) == MAX_DRIFT + 1
    assert noted["files", OTHER_KEYS, "unknown_key"] == count - MAX_DRIFT


def test_a_string_of_20_megabytes_is_kept() -> None:
    """A long text is stored whole, as value, as key and as an answer; its drift is short."""
    long = "x" * 20_000_000
    short = "y" * 120
    flat = take({"id": 17, "scan_code": long, long: 1, short: 2})
    assert flat.tables["files"]["scan_code"].to_pylist() == [long]
    assert rows(flat, "files")[0]["extra"] == {long: 1, short: 2}
    assert {key for _, key, _ in flat.drift} == {"x" * 117 + "...", short}


_NESTS = (b'{"k":%s}', b'{"uploads":%s}', b'{"uploads":[{"id":%s,"geocoding":1,"file_id":2}]}')


@every("template", [*_NESTS, b'{"uploads":[{"geocoding":%s}]}', b'{"workflow_runs":[{"workflow":{"steps":%s}}]}'])
def test_a_deep_document_ends_nothing(template: bytes) -> None:
    """A document near the end of Python's stack is kept whole or is a reject; the other files are taken."""
    outcomes = set()
    for depth in [300, 600, *sample(range(860, 1_000), 28)]:
        nest = b"[" * depth + b"]" * depth
        body = template % nest
        held = [version({"id": 1}, key=1), version(body, key=2), version({"id": 3}, key=3)]
        flat = flatten(held, run_id="run", seq=1)
        taken = flat.tables["files"]["file_id"].to_pylist()
        assert [*taken, *(reject.file_id for reject in flat.rejects)] in ([1, 2, 3], [1, 3, 2])
        stored = "".join(str(row) for table in flat.tables.values() for row in table.to_pylist())
        assert (nest.decode() in stored) == (2 in taken)
        outcomes |= {2 in taken}
    assert outcomes == {True, False}


_NUMBERS = (b"9" * 25, b"9" * 4300, b"9" * 5000, b"1e999", b"1e99999999999999999999", b"NaN")
_PLACES = (
    *(b'{"id":%b}', b'{"closed":%b,"updated_at":%b}', b'{"scan_code":%b,"k":{"%%":%b}}'),
    b'{"uploads":[{"id":%b,"latitude":%b,"geocoding":[%b],"file_id":%b}]}',
    b'{"form_submits":[{"form_id":%b,"fields":[{"id":%b,"value":%b}],"answers":[{"id":%b}]}]}',
    b'{"workflow_runs":[{"id":%b,"workflow":{"id":%b,"order":%b},"workflow_run_steps":[{"entity_ids":[%b]}]}]}',
    b'{"fields":[{"field_id":%b,"snap_id":%b}]}',
)


@every(("template", "number"), product(_PLACES, _NUMBERS))
def test_a_number_beyond_all_types_ends_nothing(template: bytes, number: bytes) -> None:
    """A number that no column can hold costs its column at most: the row and the batch are there."""
    body = template.replace(b"%b", number)
    flat = flatten([version({"id": 1}, key=1), version(body, body, key=2)], run_id="run", seq=1)
    assert flat.tables["files"]["file_id"].to_pylist() == [1, 2]
    assert not flat.rejects
    stored = "".join(str(row) for name in flat.tables for row in flat.tables[name].to_pylist())
    assert number.decode() in stored


def test_drift_of_many_rows_is_summed() -> None:
    """The same unknown key in many rows is one entry with its count, past the bound too."""
    uploads = [{"id": number, "same": 1, f"k{number}": 1} for number in range(1_500)]
    noted = drift(take({"uploads": uploads}))
    assert noted["uploads", "same", "unknown_key"] == 1_500
    assert sum(noted.values()) == 3_000
    assert len(noted) == MAX_DRIFT + 1


def test_keys_that_are_ours_take_nothing_away() -> None:
    """A service that sends keys named as our own columns, or as where we keep things, loses none of them."""
    sent = {"extra": 1, "_seq": 2, "_run_id": 3, "position": 4, "_fetched_at": 5, "detail.uploads": 6, "_has_detail": 7}
    flat = take({"uploads": "junk", **sent}, {"uploads": [{"id": 5}]})
    assert rows(flat, "files")[0]["extra"] == sent | {"detail.uploads'": "junk"}
    form = {"fields": "junk", "form": {"fields": "other", "x": 1}, "form.x": 2, "form.fields": 3}
    (row,) = rows(take({"form_submits": [form]}), "form_submits")
    assert sorted(map(str, row["extra"].values())) == ["1", "2", "3", "junk", "other"]
