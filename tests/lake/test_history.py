"""The views of what happened to files, and the summary of each file."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import duckdb
import pytest

from pipeline.errors import LakeCorruptedError
from pipeline.lake.catalog import current_rows, documents
from pipeline.lake.catalog.history import FILE_EVENTS, FILE_VERSIONS, select_events_sql
from pipeline.lake.lake import Lake
from pipeline.lake.ledger.queries import Commit
from pipeline.lake.storage.parts import RAW_TABLE
from pipeline.settings.settings import Settings
from schemas.file_versions import FileVersion
from schemas.tables import FILES
from schemas.timestamps import to_datetime
from tests.lake.corruption import flip_column
from tests.lake.lake_builder import AT, commit, publish_files, write_documents
from tests.lake.operations import compact_all
from tests.lake.test_views import asked
from tests.sync.sync_harness import opened

if TYPE_CHECKING:
    from pathlib import Path

    from tests.lake.history import History

SECOND: Final = 1_000_000
TYPED: Final = (
    "file_id, scan_code, scan_code_format, closed, created_at, updated_at, recent_snap_id, snap_count,"
    " snap_count_with_damage"
)


def _commit_version(lake: Lake, stamp: int, item: dict[str, Any], detail: dict[str, Any] | None) -> None:
    """Commit a version of file 1 with the given documents, fetched `stamp` seconds after AT."""
    seq, at = lake.ledger.next_commit_seq(), AT + stamp * SECOND
    sent = {"id": 1, "updated_at": to_datetime(at - SECOND).isoformat()}
    documents = [None if each is None else json.dumps(sent | each).encode() for each in (item, detail)]
    version = FileVersion(1, documents[0] or b"", documents[1], at - SECOND, at, "detail")
    lake.commit(write_documents(lake, Commit(seq, "r", at, versions=[version])))


def test_events_are_between_two_fetches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Closing, reopening and a new reference are events with the fetch before and after; other changes are none."""
    monkeypatch.setattr(documents, "_DOCUMENTS_PER_BATCH", 1)
    monkeypatch.setattr(current_rows, "_TASK_FILES", 1)  # documents in many tasks give the same rows
    monkeypatch.setattr(current_rows, "run_beside", current_rows.run_here)
    with Lake(tmp_path / "lake", doing="test") as lake:
        _commit_version(lake, 10, {"scan_code": "A", "closed": 0}, {"scan_code": "A"})
        _commit_version(lake, 20, {"scan_code": "A", "closed": 1}, {"scan_code": "A", "closed": True})
        _commit_version(lake, 30, {"scan_code": "A", "closed": "1"}, None)
        _commit_version(lake, 40, {"scan_code": "B", "closed": 0}, {"scan_code": "B", "closed": False})
        _commit_version(lake, 50, {"scan_code": "B", "closed": 0}, {"scan_code": None, "closed": 1})
        lake.publish("", at=AT, complete=True, watermark=AT)
    with opened(tmp_path / "lake") as db:
        versions = db.execute("SELECT scan_code, closed FROM file_versions ORDER BY commit_seq").fetchall()
        events = db.execute(
            f"SELECT event, scan_code, former_scan_code, (epoch_us(seen_after) - {AT}) // {SECOND},"
            f" (epoch_us(seen_at) - {AT}) // {SECOND}, (epoch_us(updated_at) - {AT}) // {SECOND}, is_observed"
            " FROM file_events ORDER BY commit_seq, event"
        ).fetchall()
    assert versions == [("A", False), ("A", True), ("A", True), ("B", False), (None, True)]
    assert events == [
        ("closed", "A", "A", 10, 20, 19, True),
        ("reference_changed", "B", "A", 30, 40, 39, True),
        ("reopened", "B", "A", 30, 40, 39, True),
        ("closed", None, "B", 40, 50, 49, True),
        ("reference_changed", None, "B", 40, 50, 49, True),
    ]


def test_the_time_of_a_closing_is_known_or_null(tmp_path: Path) -> None:
    """A file that came closed, or whose former state is unknown, has the event without a time that could be its own."""
    with Lake(tmp_path / "lake", doing="test") as lake:
        for stamp, closed in enumerate((1, "unknown", 1, 0, 1), 1):
            _commit_version(lake, 10 * stamp, {"scan_code": "A", "closed": closed}, None)
        lake.publish("", at=AT, complete=True, watermark=AT)
    with opened(tmp_path / "lake") as db:
        found = db.execute(
            "SELECT event, is_observed, updated_at IS NULL, seen_after IS NULL, former_scan_code,"
            f" (epoch_us(closed_seen_at) - {AT}) // {SECOND} FROM file_events ORDER BY commit_seq"
        ).fetchall()
    assert found == [
        ("closed", False, True, True, None, None),
        ("closed", False, True, True, "A", None),
        ("reopened", True, False, False, "A", None),
        ("closed", True, False, False, "A", 50),
    ]


def type_documents_sql(documents: str) -> str:
    """The query for typed versions from documents alone: the detail's value, also a null, else the list item's."""
    inherited = {"id", "file_id", "updated_at"}
    columns = [
        f"TRY_CAST(coalesce(detail -> '$.{column.wire_key}', item -> '$.{column.wire_key}') ->> '$' AS"
        f" {column.kind.sql}) AS {column.name}"
        for column in FILES.from_wire
        if column.wire_key not in inherited
    ]
    return (
        "SELECT file_id, _seq AS commit_seq, _fetched_at AS fetched_at, _run_id AS run_id, updated_at,"
        f" {', '.join(columns)} FROM (SELECT *, decode(detail_sent)::JSON AS detail, decode(list_item)::JSON AS item"
        f" FROM (SELECT * RENAME (detail AS detail_sent) FROM {documents})) WHERE kind = 'fetched'"
    )


def list_documents(lake: Lake) -> list[Path]:
    """Return the parts of documents."""
    return [lake.layout.part_path(part.name) for part in lake.ledger.parts() if part.table_name == RAW_TABLE]


def test_history_is_that_of_the_kept_documents(tmp_path: Path) -> None:
    """Publish by publish, and when documents go, the tables are what the documents say."""
    with Lake(tmp_path / "lake", doing="test") as lake:

        def publish() -> list[tuple[Any, ...]]:
            lake.publish("", at=AT, complete=True, watermark=AT)
            with duckdb.connect(str(lake.layout.catalog), read_only=True) as db:
                documents = f"read_parquet({[str(path) for path in list_documents(lake)]})"
                versions = type_documents_sql(documents)
                for view, sql in ((FILE_VERSIONS, versions), (FILE_EVENTS, select_events_sql(f"({versions})"))):
                    expected = db.execute(f"FROM ({sql}) ORDER BY ALL").fetchall()
                    assert db.execute(f"FROM {view.name} ORDER BY ALL").fetchall() == expected
                sql = "SELECT event, is_observed FROM file_events WHERE file_id = 1 ORDER BY ALL"
                return db.execute(sql).fetchall()

        commit(lake, dict.fromkeys(range(1, 30), 0))
        assert publish() == []
        base = lake.ledger.properties.delta_base
        commit(lake, {1: 2, 2: 2}, gone=[3])
        commit(lake, {1: 3})  # two versions in one publish
        assert publish() == [("closed", True)]
        commit(lake, {1: 0, 3: 2})
        assert publish() == [("closed", True), ("reopened", True)]
        commit(lake, {}, gone=[1])
        assert publish() == [("closed", True), ("reopened", True)]
        now = lake.ledger.properties.delta_base
        assert base is not None
        assert now is not None
        assert now["built_rows"] == base["built_rows"], "each publish was an update"
        compact_all(lake, Settings(lake=tmp_path / "lake", keep_raw_versions=2))
        assert publish() == [("closed", False), ("reopened", True)]


def test_versions_have_the_types_of_files(history: History) -> None:
    """The latest version of every file is its row in files, column by column, in any time zone of the reader."""
    count = [(len(history.today.truth),)]
    with opened(history.today.lake) as db:
        db.execute("SET TimeZone = 'Asia/Tokyo'")
        types = dict(db.execute("SELECT column_name, column_type FROM (DESCRIBE files)").fetchall())
        shown = dict(db.execute("SELECT column_name, column_type FROM (DESCRIBE file_versions)").fetchall())
        assert {name: types[name] for name in TYPED.split(", ")} == {name: shown[name] for name in TYPED.split(", ")}
        newest = "row_number() OVER (PARTITION BY file_id ORDER BY commit_seq DESC) = 1"
        latest = f"SELECT {TYPED} FROM file_versions QUALIFY {newest}"
        assert db.execute(f"SELECT count(*) FROM ({latest})").fetchall() == count
        assert db.execute(f"SELECT {TYPED} FROM files EXCEPT {latest}").fetchall() == []
        assert db.execute("SELECT count(*) FROM file_versions").fetchall() > count
    sent = {column.name for column in FILES.from_wire} - {"service_id", "instance_file_id"}
    assert sent <= set(shown), "a new column of files is in file_versions too"


def test_a_summary_counts_a_file_once(tmp_path: Path) -> None:
    """file_summary has one row per file with its own counts, whatever number of uploads, locations and runs it has."""
    uploads = [
        {"file_id": 1, "id": number, "position": number, "device_id": f"d{number % 2}", "has_damage": number == 0}
        | {"scan_date_time": AT + number * SECOND, "tenant_id": 7}
        for number in range(3)
    ]
    places = [{"file_id": 1, "id": number, "position": number, "location": f"L{number}"} for number in range(2)]
    runs = [{"file_id": 1, "id": 1, "position": 0, "completed_at": AT}, {"file_id": 1, "id": 2, "position": 1}]
    children = {"uploads": uploads, "locations": places, "workflow_runs": runs}
    publish_files(tmp_path / "lake", {1: 3, 2: 0}, children, watermark=AT)
    with opened(tmp_path / "lake") as db:
        first, second = asked(db, "FROM file_summary ORDER BY file_id")
    counts = ("uploads", "damaged_uploads", "devices", "form_submits", "workflow_runs", "open_workflow_runs")
    assert [first[name] for name in counts] == [3, 1, 2, 0, 2, 1]
    assert [second[name] for name in counts] == [0] * 6
    assert (first["tenant_id"], first["locations"]) == (7, "L0 | L1")
    assert (first["last_scan_at"] - first["first_scan_at"]).total_seconds() == 2


def test_a_publish_names_documents_that_cannot_be_read(tmp_path: Path) -> None:
    """Damaged documents of a former version stop a publish with the command that helps."""
    lake = tmp_path / "lake"
    with Lake(lake, doing="test") as held:
        commit(held, {11: 1})
        (part,) = lake.glob("documents/*")
        commit(held, {11: 2}, stamp=1)
        flip_column(part, "detail")
        with pytest.raises(LakeCorruptedError, match=part.name) as failure:
            held.publish("", at=AT, complete=True, watermark=AT)
    assert failure.value.hint == "Run `scanlake repair`."
