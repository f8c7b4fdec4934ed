"""The views for people: wide answers, progress, history, and what the catalog says of itself."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import defaultdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from pipeline.lake.catalog import catalog
from pipeline.lake.catalog.sql import sql_identifier, sql_literal
from pipeline.lake.catalog.views import FIXED_VIEWS, list_wide_views, wide_columns
from pipeline.lake.lake import Lake
from schemas.tables import TABLES
from schemas.timestamps import to_datetime
from tests.lake.lake_builder import AT, commit, publish_files
from tests.made_once import make_once
from tests.oracle import expected
from tests.sync.sync_harness import opened

if TYPE_CHECKING:
    from tests.lake.history import History

CLIENT: Final = Path(sys.executable).with_name("duckdb")
VIEWS: Final = (
    "fields_wide form_answers_wide damage_by_month workflow_progress open_workflow_runs open_workflow_steps workflows"
    " workflow_steps upload_addresses file_summary"
).split()
ODD: Final = (
    "plain",
    "Plain ",
    'quo"ted',
    "it's",
    "größe",
    "Gro\u0308ße",
    "GRÖSSE",
    "日本 🙂",
    "",
    " ",
    "a\nb",
    "n\0ul",
)


NAMES: Final = (*ODD, "file_id", "Scan_Code", "x" * 600, "x" * 601, "status", "STATUS", "Status", "Status (2)", "'; --")


def _fields(names: tuple[str, ...], **more: Any) -> list[dict[str, Any]]:
    return [
        {"file_id": 1, "field_id": place, "name": name, "value": f"v{place}", "position": place, **more}
        for place, name in enumerate(names)
    ]


def _make_people(folder: Path) -> Path:
    """Publish file 1 with odd names, 2 without fields, 3 with several values of one, 4 with forms."""
    values = _fields(('quo"ted',) * 3, file_id=3)
    for value, stamp in zip(values, (2, 3, 1), strict=True):
        value["updated_at"] = AT + stamp
    submits = [
        {"file_id": 4, "id": key, "form_id": form, "title": "T", "position": place}
        for place, (key, form) in enumerate(((None, 7), (None, 7), ("s", 8)))
    ]
    names = ("form_submit_id", "submit_position", "form_id", "question_id", "label", "value")
    answers = [
        dict(zip(names, answer, strict=True))
        for answer in (
            (None, 0, 7, "10", "Seal?", "yes"),
            (None, 0, 7, "2", "Side", "front"),
            (None, 0, 7, "3", "Side ", "rear"),
            (None, 1, 7, "10", "Is the seal whole?", "no"),
            (None, 1, 7, "10", "Is the seal whole?", "really"),
            ("s", 2, 8, "10", "Side", "another form's"),
        )
    ]
    odd = [{"form_submit_id": "s", "label": name, "value": "v"} for name in ODD]
    rows: list[dict[str, Any]] = [{"file_id": 1, "position": place, **each} for place, each in enumerate(odd)]
    rows += [{"file_id": 4, "position": place, **each} for place, each in enumerate(answers)]
    submits = [{"file_id": 1, "id": "s"}, *submits]
    children = {"fields": [*_fields(NAMES), *values], "form_answers": rows, "form_submits": submits}
    publish_files(folder / "lake", dict.fromkeys(range(1, 5), 0), children)
    return folder / "lake"


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """That lake, only to be read."""
    return make_once(tmp_path_factory, "people", _make_people)


FIXED_COLUMNS: Final = {
    "fields_wide": ("file_id", "scan_code"),
    "form_answers_wide": ("file_id", "form_submit_id", "form_id", "title"),
}


def _most_frequent_first(db: duckdb.DuckDBPyConnection, table: str, column: str) -> list[str]:
    ordered = f"SELECT {column} FROM {table} GROUP BY {column} ORDER BY count(*) DESC, {column}"
    return [name for (name,) in db.execute(ordered).fetchall()]


def asked(db: duckdb.DuckDBPyConnection, sql: str) -> list[dict[str, Any]]:
    """The rows of an answer, as dicts."""
    answer = db.execute(sql)
    names = [column[0] for column in answer.description or ()]
    return [dict(zip(names, row, strict=True)) for row in answer.fetchall()]


def test_a_month_has_one_type_in_every_client() -> None:
    """A view casts what date_trunc returns: a DATE in DuckDB 1.4, which then refuses the view, and else a TIMESTAMP."""
    calls = [call for view in FIXED_VIEWS for call in re.findall(r"date_trunc\(.*?\)+(?:::\w+)?(?= AS)", view.sql)]
    assert calls
    assert all(call.endswith("::TIMESTAMP") for call in calls), calls


def test_against_the_service(history: History) -> None:
    """Each view says what the documents of a synced world say; tests/sync/test_plain_reading.py judges the runs."""
    rows = expected(history.old.truth)
    with opened(history.old.lake) as db:
        wide = {row["file_id"]: row for row in asked(db, "FROM fields_wide")}
        assert wide.keys() == {row["file_id"] for row in rows["files"]}
        newest = defaultdict(list)
        for row in rows["fields"]:
            if row["value"]:
                at = row["updated_at"] or row["created_at"]
                newest[row["file_id"], row["name"]].append((at, row["position"], row))
        for (file_id, name), found in newest.items():
            assert wide[file_id][name.strip()] == max(found, key=lambda each: each[:2])[2]["value"]
        assert sum(value is not None for row in wide.values() for value in row.values()) == len(newest) + 2 * len(wide)
        answers = defaultdict(list)
        for row in sorted(rows["form_answers"], key=lambda row: row["position"]):
            if row["value"]:
                answers[row["file_id"], row["form_submit_id"], row["label"].strip()].append(row["value"])
        sent = {(row["file_id"], row["form_submit_id"]): row for row in asked(db, "FROM form_answers_wide")}
        assert len(sent) == len(rows["form_submits"])
        for (file_id, submit, label), values in answers.items():
            assert sent[file_id, submit][label] == " | ".join(values)
        months = asked(db, "FROM damage_by_month")
        photos = [row for row in rows["uploads"] if row["upload_type"] == "snap"]
        assert sum(row["photos"] for row in months) == len(photos) < len(rows["uploads"])
        assert sum(row["with_damage"] for row in months) == sum(row["has_damage"] is True for row in photos)
        progress = {(row["file_id"], row["workflow_run_id"]): row for row in asked(db, "FROM workflow_progress")}
        here = [row for row in rows["workflow_runs"] if row["deleted_at"] is None]
        assert progress.keys() == {(row["file_id"], row["id"]) for row in here}
        unfinished = asked(db, "FROM open_workflow_runs")
        assert len(unfinished) == sum(row["completed_at"] is None for row in here)
        assert all(row["age_days"] > 0 for row in unfinished)


@pytest.mark.parametrize("view", ["fields_wide", "form_answers_wide"])
def test_a_wide_view_has_one_aggregate_of_each_name(view: str, people: Path, history: History) -> None:
    """A wide view has the rows of a plain query with one filtered aggregate for each name, of any lake."""
    latest = "arg_max(value, (coalesce(updated_at, created_at, TIMESTAMP '1970-01-01'), position))"
    table, name, aggregate, key, fixed, owner = {
        "fields_wide": ("fields", "name", latest, "file_id", "file_id, scan_code", "files AS owner USING (file_id)"),
        "form_answers_wide": (
            *("form_answers", "label", "string_agg(value, ' | ' ORDER BY position)", "file_id, submit_position"),
            "owner.file_id, owner.id AS form_submit_id, owner.form_id, owner.title",
            "form_submits AS owner ON owner.file_id = row.file_id AND owner.position = submit_position",
        ),
    }[view]  # fmt: skip
    for lake in (people, history.today.lake):
        with opened(lake) as db:
            names = [found for (found,) in db.execute(f"SELECT DISTINCT {name} FROM {table}").fetchall()]
            columns = wide_columns(_most_frequent_first(db, table, name), FIXED_COLUMNS[view])
            assert len(columns) == len(names)
            filled = "trim(value) <> ''"
            filtered = "".join(
                f", {aggregate} FILTER ({name} = {sql_literal(found)} AND {filled}) AS {sql_identifier(column)}"
                for column, found in columns
            )
            values = ", ".join(f"row.{sql_identifier(column)}" for column, _ in columns)
            plain = f"SELECT {fixed}, {values} FROM (SELECT {key}{filtered} FROM {table} GROUP BY ALL) AS row"
            plain += f" RIGHT JOIN {owner}"
            assert db.execute(f"SELECT count(*) FROM {view}").fetchall() > [(0,)]
            assert (
                db.execute(f"(FROM {view} EXCEPT ALL {plain}) UNION ALL ({plain} EXCEPT ALL FROM {view})").fetchall()
                == []
            )


def test_a_month_has_the_photos_that_were_taken_in_it(tmp_path: Path) -> None:
    """A photo counts in the month it was taken; if that is unknown, in the month in which it was created.

    A month without a damage flag has no ratio of damage.
    """
    august, september, created = (datetime(2026, month, 1) for month in (8, 9, 10))  # noqa: DTZ001 - UTC unsaid
    photos = [
        {"file_id": 1, "id": key, "position": key, "upload_type": "snap", "has_damage": flag, "scan_date_time": at,
         "created_at": created}
        for key, (flag, at) in enumerate([(None, august), (True, september), (False, None), (True, None), (None, None)])
    ]  # fmt: skip
    publish_files(tmp_path / "lake", {1: 0}, {"uploads": photos})
    with opened(tmp_path / "lake") as db:
        months = db.execute("SELECT strftime(month, '%Y-%m'), photos, with_damage, damage_ratio FROM damage_by_month")
        assert sorted(months.fetchall()) == [("2026-08", 1, 0, None), ("2026-09", 1, 1, 1.0), ("2026-10", 3, 1, 0.5)]


def test_an_empty_text_hides_no_value(tmp_path: Path) -> None:
    """Tables have '' and NULL as sent; the views that gather texts leave both out, so NULL there is no value."""
    texts = ("A", "", None, " ", "B", " ")
    own = [{"file_id": 1, "position": place} for place in range(len(texts))]
    children: dict[str, list[dict[str, Any]]] = {
        "fields": [
            row | {"field_id": 1, "name": name, "value": text, "updated_at": AT}
            for row, text in zip(own, texts, strict=True)
            for name in ("Lot", *["Never"] * (text not in {"A", "B"}))
        ],
        "form_submits": [own[0]],
        "form_answers": [
            row | {"label": label, "value": text}
            for row, text in zip(own, texts, strict=True)
            for label in ("Side", *["Open"] * (text not in {"A", "B"}))
        ],
        "locations": [row | {"id": row["position"], "location": text} for row, text in zip(own, texts, strict=True)],
    }
    publish_files(tmp_path / "lake", {1: 0, 2: 0}, children)
    with opened(tmp_path / "lake") as db:
        fields = db.execute("SELECT Lot, Never FROM fields_wide ORDER BY file_id").fetchall()
        assert fields == [("B", None), (None, None)]
        assert db.execute("SELECT Side, Open FROM form_answers_wide").fetchall() == [("A | B", None)]
        assert db.execute("SELECT locations FROM file_summary ORDER BY file_id").fetchall() == [("A | B",), (None,)]
        sent = [value for (value,) in db.execute("SELECT value FROM fields WHERE name = 'Lot'").fetchall()]
        assert sorted(sent, key=str) == sorted(texts, key=str)


RUN_STEPS: Final[dict[str, tuple[str | None, dict[int | None, str | None], tuple[int | None, ...]]]] = {
    # Run: definition, then steps taken with their status, then steps, done, skipped, open and other_steps.
    "each of a kind": ("three", {1: "done", 2: "Skipped"}, (3, 1, 1, 1, 0)),
    "removed and unknown ones": ("three", {4: "done", 99: "skipped", None: "done"}, (3, 0, 0, 3, 3)),
    "all, but no completion": ("three", {1: "done", 2: None, 3: "skipped"}, (3, 2, 1, 0, 0)),
    "a definition of none": ("none", {1: "done"}, (0, 0, 0, 0, 1)),
    "no definition": (None, {1: "done", 2: "skipped"}, (None, None, None, None, 2)),
    "no definition and no step": (None, {}, (None, None, None, None, 0)),
}


def test_the_steps_of_a_run_add_up(tmp_path: Path) -> None:
    """Steps of the definition are done, skipped or open, others are counted apart, and each open one is a row."""
    steps = [
        {"id": step, "order": step, "description": f" {step}" * (step != 3), **more}
        for step, more in (
            (1, {}),
            (2, {}),
            (3, {"platform_description": "the last"}),
            (4, {"deleted_at": "2026-11-18"}),
        )
    ]
    definitions = {name: {"id": 3, "name": f"flow {name}", "steps": some} for name, some in (("a", steps), ("b", []))}
    sent = {"three": definitions["a"], "none": definitions["b"], None: None}
    runs: list[dict[str, Any]] = []
    for file_id, (definition, states, _) in enumerate(RUN_STEPS.values(), 1):
        taken = [
            {"id": place, "workflow_step_id": step, "status": status}
            for place, (step, status) in enumerate([*states.items(), *[(1, "skipped")] * (states.get(1) == "done")])
        ]
        run: dict[str, Any] = {
            "file_id": file_id,
            "id": 7,
            "workflow_id": 3,
            "workflow": sent[definition],
            "created_at": AT,
        }
        run |= {"workflow_run_steps": taken}
        runs += [run | {"position": 0}, run | {"id": 8, "position": 1, "completed_at": AT}]
        runs.append(run | {"id": 9, "position": 2, "deleted_at": AT})
    other = {"file_id": 1, "id": 7, "position": 3, "workflow": definitions["b"]}  # the id of another run
    with Lake(tmp_path / "lake", doing="test") as lake:
        files = dict.fromkeys(range(1, len(RUN_STEPS) + 1), 0)
        commit(lake, files, {"workflow_runs": [*runs, other]})
        lake.publish("", at=AT, complete=True, watermark=None)
    numbers = "steps, done, skipped, open, other_steps"
    with opened(tmp_path / "lake") as db:
        for file_id, (name, (_, _, expected_numbers)) in enumerate(RUN_STEPS.items(), 1):
            query = f"SELECT {numbers} FROM {{}} WHERE file_id = {file_id} ORDER BY steps DESC"
            twin = [(0, 0, 0, 0, 2)] * (file_id == 1)
            assert db.execute(query.format("workflow_progress")).fetchall() == [expected_numbers] * 2 + twin, name
            assert db.execute(query.format("open_workflow_runs")).fetchall() == [expected_numbers, *twin], name
            missing = db.execute(
                "SELECT workflow_run_id, workflow, workflow_step_id, step_order, trim(description), started_at"
                f" FROM open_workflow_steps WHERE file_id = {file_id} ORDER BY step_order"
            ).fetchall()
            assert len(missing) == (expected_numbers[3] or 0), name
            summary = "SELECT workflow_runs, open_workflow_runs, open_steps FROM file_summary WHERE file_id = "
            assert db.execute(f"{summary}{file_id}").fetchall() == [(2 + len(twin), 1 + len(twin), len(missing))], name
            if name == "each of a kind":
                assert missing == [(7, "flow a", 3, 3, "the last", to_datetime(AT).replace(tzinfo=None))]
            if name == "removed and unknown ones":
                assert [row[4] for row in missing] == ["1", "2", "the last"]


def test_everything_has_a_comment(history: History) -> None:
    """Every table, view and column of the catalog says what it is, and each declared column is there."""
    with opened(history.today.lake) as db:
        for what in ("duckdb_tables()", "duckdb_views()", "duckdb_columns()"):
            name = "table_name || '.' || column_name" if "columns" in what else what[7:-3] + "_name"
            silent = db.execute(
                f"SELECT {name} FROM {what} WHERE NOT internal AND coalesce(comment, '') = ''"
            ).fetchall()
            assert silent == [], what
        times = "SELECT table_name, column_name FROM duckdb_columns() WHERE data_type = 'TIMESTAMP'"
        assert db.execute(f"{times} AND NOT internal AND NOT contains(comment, 'UTC')").fetchall() == []
        for table in TABLES:
            names = [name for name, *_ in db.execute(f"DESCRIBE {table.qualified_name}").fetchall()]
            assert names[: len(table.columns)] == [column.name for column in table.columns]
        shown = {row[0] for row in db.execute("SELECT view_name FROM duckdb_views() WHERE NOT internal").fetchall()}
        assert shown >= set(VIEWS)


def test_the_dictionary_lists_everything_in_main(history: History) -> None:
    """meta.data_dictionary has every column of every table and view that people see, with its comment."""
    with opened(history.today.lake) as db:
        listed = db.execute("SELECT table_name, column_name, comment FROM meta.data_dictionary").fetchall()
        there = db.execute(
            "SELECT table_name, column_name, comment FROM duckdb_columns() WHERE NOT internal AND schema_name = 'main'"
        ).fetchall()
        assert sorted(listed) == sorted(there)
        types = "SELECT table_name, column_name, {} FROM {} ORDER BY ALL"
        declared = db.execute(types.format("type", "meta.data_dictionary")).fetchall()
        where = "duckdb_columns() WHERE NOT internal AND schema_name = 'main'"
        assert declared == db.execute(types.format("data_type", where)).fetchall()
        targets = db.execute("SELECT DISTINCT refers_to FROM meta.data_dictionary WHERE refers_to <> ''").fetchall()
        assert {"files.file_id", "workflow_runs.id", "uploads.id"} <= {name for (name,) in targets}
        assert {name for (name,) in targets} <= {f"{table}.{column}" for table, column, _ in there}
        views = db.execute("SELECT DISTINCT table_name FROM meta.data_dictionary WHERE is_view").fetchall()
        assert {name for (name,) in views} == set(VIEWS)


@pytest.mark.parametrize("fill", [True, False])
def test_older_clients_read_every_view(people: Path, tmp_path: Path, fill: bool) -> None:  # noqa: FBT001
    """The DuckDB 1.5 command line opens the catalog and reads every table and view, also when all are empty."""
    if not fill:
        with Lake(tmp_path / "lake", doing="test") as lake:
            lake.publish("", at=AT, complete=True, watermark=None)
    catalog = str((people if fill else tmp_path / "lake") / "catalog.duckdb")
    with duckdb.connect(catalog, read_only=True) as db:
        found = db.execute("SELECT schema_name || '.' || view_name FROM duckdb_views() WHERE NOT internal").fetchall()
    questions = ";".join(f"SELECT '{name}' AS seen, count(*) FROM (FROM {name})" for (name,) in found)
    process = subprocess.run(
        [CLIENT, "-readonly", "-csv", catalog, f"{questions}; FROM fields_wide; FROM form_answers_wide"],
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert process.stderr == ""
    assert process.stdout.count("main.") + process.stdout.count("meta.") == len(found)


def test_odd_names(people: Path) -> None:
    """Every name has a column: names with one label for SQL get numbers, and no value of one hides another's.

    Of several values of one field the one updated last stands there, whatever its position.
    """
    with opened(people) as db:
        first, second, third, _ = asked(db, "FROM fields_wide ORDER BY file_id")
    assert third['quo"ted'] == "v1"
    assert second == dict.fromkeys(second) | {"file_id": 2, "scan_code": "ref 2"}
    assert sorted(first.values(), key=str)[2:] == sorted(f"v{place}" for place in range(len(NAMES)))
    assert (first["Plain"], first["plain (2)"]) == ("v1", "v0")
    assert (first['quo"ted'], first["日本 🙂"], first["(empty)"], first["(empty) (2)"]) == ("v2", "v7", "v8", "v9")
    assert (first["a b"], first["n ul"]) == ("v10", "v11")
    assert (first["file_id (2)"], first["Scan_Code (2)"]) == ("v12", "v13")
    assert (first["x" * 500], first["x" * 500 + " (2)"]) == ("v14", "v15")


@given(st.lists(st.text(max_size=8) | st.sampled_from(ODD), max_size=30, unique=True))
def test_every_name_has_its_own_column(names: list[str]) -> None:
    """Whatever the names are, each has one column, no two columns are equal for SQL, and they are in order."""
    columns = wide_columns(names, ["file_id"])
    assert sorted(name for _, name in columns) == sorted(names)
    labels = [column.casefold() for column, _ in columns]
    assert len({"file_id", *labels}) == len(labels) + 1
    assert labels == sorted(labels)
    assert not any("\n" in label for label in labels)


def test_no_more_columns_than_fit() -> None:
    """Of very many names and labels the most frequent have columns, in one order; a huge one has none."""
    huge, last = "x" * 1001, "ORDER BY i DESC"
    many = f"SELECT printf('n%03d', i % 501) AS name, i // 501 % 2 AS label, i FROM range(2200) AS row(i) {last}"
    with duckdb.connect() as db:
        db.execute(f"CREATE TABLE fields AS {many}")
        db.execute(f"INSERT INTO fields SELECT '{huge}', i, i FROM range(9) AS row(i)")
        db.execute("CREATE TABLE form_answers AS SELECT name AS label FROM fields")
        fields, answers = list_wide_views(db)
    assert [name for name, _ in fields.columns[2:]] == [f"n{number:03}" for number in range(500)]
    assert "for the most frequent names of at most 1,000 characters" in fields.comment
    assert answers.columns[4:] == tuple((name, f"Answer to {name!r}.") for name, _ in fields.columns[2:])


def test_a_column_is_for_a_name_of_the_tables(tmp_path: Path) -> None:
    """A publish makes the columns from the rows it has just written: a name that no file has any more has none."""
    with Lake(tmp_path / "lake", doing="test") as lake:
        for names in ("ab", "ac"):
            commit(lake, {1: 0}, {"fields": _fields(tuple(names))})
            lake.publish("", at=AT, complete=True, watermark=None)
    with opened(tmp_path / "lake") as db:
        assert asked(db, "FROM fields_wide") == [{"file_id": 1, "scan_code": "ref 1", "a": "v0", "c": "v1"}]


def test_an_update_brings_the_views_of_this_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A catalog that was made with fewer and other views is updated, and has those of today with their columns."""
    with Lake(tmp_path / "lake", doing="test") as lake:
        with monkeypatch.context() as patch:
            former = replace(FIXED_VIEWS[-1], columns=(("one", "One."),), sql="SELECT 1 AS one")
            patch.setattr(catalog, "_empty_catalogs", {})
            patch.setattr(catalog, "FIXED_VIEWS", (*FIXED_VIEWS[:-2], former))
            commit(lake, {1: 0})
            lake.publish("", at=AT, complete=True, watermark=None)
        commit(lake, {2: 0}, stamp=1)
        lake.publish("", at=AT + 1, complete=True, watermark=None)
    with opened(tmp_path / "lake") as db:
        for view in FIXED_VIEWS:
            described = db.execute(
                f"SELECT column_name FROM meta.data_dictionary WHERE table_name = '{view.name}'"
            ).fetchall()
            assert described == [(name,) for name, _ in view.columns]


def test_answers_of_equal_labels_are_joined(people: Path) -> None:
    """A submission has one row with all its answers, several under one label joined; form_id selects a form."""
    with opened(people) as db:
        both = asked(
            db, 'SELECT "Seal?" AS first, "Is the seal whole?" AS second FROM form_answers_wide WHERE form_id = 7'
        )
        assert sorted(map(str, both)) == sorted(
            map(str, [{"first": "yes", "second": None}, {"first": None, "second": "no | really"}])
        )
