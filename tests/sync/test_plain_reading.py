"""The lake against a plain reading of the service over HTTP, by somebody who shares no belief with scanlake."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from pipeline.emulator import PROFILES, Emulator, make_quirks
from pipeline.emulator.generator import EDIT_KINDS
from pipeline.sync.verify import VerifyMode
from tests.plain_counts import COUNTED, count_cells, count_views
from tests.plain_reading import Reading, count, read_service
from tests.sync.sync_harness import SEED, opened, synced, verified

if TYPE_CHECKING:
    from pathlib import Path

    import duckdb

FILES = 60
STEADY = {"image_urls": "stable", "order": "id-asc"}
"""A plain reader pages by number and compares links, so neither may change between two answers."""
ODD = (
    "definitions=lose-steps identifiers=text answer_values=mixed escapes=html detail_geocoding=null detail_forms=empty"
)
WORLDS = {
    "extra keys, microseconds": "extra_keys=many precision=micros",
    "contrary": "token_location=both",
    "hostile": "late_commit_seconds=0",
    "sparse": "",
    "everything as text": "ids=string flags=string times=offset detail_wrap=data detail_geocoding=empty",
    "forms and geocoding in the detail": "detail_forms=yes empties=null detail_geocoding=full",
    "all that is odd": ODD,
}
ALONE = {option: option for option in ODD.split()}


def rows(db: duckdb.DuckDBPyConnection, sql: str) -> list[dict[str, Any]]:
    """The rows of a query, ids as text, JSON decoded."""
    result = db.execute(sql)
    names = [column[0] for column in result.description]
    return [dict(zip(names, row, strict=True)) for row in result.fetchall()]


def as_told(told: Any) -> Any:
    """A value as text: what a column of texts must show."""
    return None if told is None else told if isinstance(told, str) else json.dumps(told)


@pytest.mark.usefixtures("published")
@pytest.mark.parametrize("world", [*WORLDS, *(pytest.param(name, marks=pytest.mark.soak) for name in ALONE)])
async def test_the_lake_is_as_told(lake: Path, world: str) -> None:
    """The lake has what a plain reader of lists and details is told, no more and no less."""
    options = dict(option.split("=") for option in (WORLDS | ALONE)[world].split())
    quirks = make_quirks(world if world in PROFILES else "seen", STEADY | options)
    async with Emulator(FILES, seed=SEED, quirks=quirks) as emulator:
        await synced(emulator, lake)
        reading = await asyncio.to_thread(read_service, emulator.base_url, emulator.token)
    with opened(lake) as db:
        _check_children(db, reading)
        _check_answers(db, reading)
        _check_runs(db, reading)
        _check_extra(db, reading)
        _check_counts(db, reading)


def _check_children(db: duckdb.DuckDBPyConnection, reading: Reading) -> None:
    """Every upload, field and location is in the lake once, in its place, with the texts that were sent."""
    uploads = "id device_id upload_type comment damage_type_desc image_name workflow_id workflow_step_id position"
    tables = {
        "uploads": uploads.split(),
        "fields": ["field_id", "name", "value", "snap_id", "position"],
        "locations": ["id", "location", "position"],
    }
    assert db.execute("SELECT count(*) FROM files").fetchone() == (len(reading.rows["files"]),)
    for table, names in tables.items():
        texts = [f"{name}::VARCHAR AS {name}" for name in names if name != "position"]
        held = rows(db, f"SELECT file_id, position, {', '.join(texts)} FROM {table}")
        assert count(held, ["file_id", *names]) == count(reading.rows[table], ["file_id", *names]), table
    found = rows(db, "SELECT file_id, id::VARCHAR AS id, geocoding::VARCHAR AS geocoding FROM uploads")
    shown = {(row["file_id"], row["id"]): row["geocoding"] for row in found}
    for row in reading.rows["uploads"]:
        text = shown[row["file_id"], row["id"]]
        assert (text and json.loads(text)) == (row.get("geocoding") and json.loads(row["geocoding"]))


def _check_answers(db: duckdb.DuckDBPyConnection, reading: Reading) -> None:
    """Every answer of every form is there with its label as sent, and lists and objects as text and as JSON."""
    names = ["file_id", "form_submit_id", "submit_position", "position", "question_id", "label"]
    held = rows(db, f"SELECT {', '.join(names)}, value, value_json::VARCHAR AS value_json FROM form_answers")
    assert count(held, names) == count(reading.rows["form_answers"], names)
    place = {(row["file_id"], row["submit_position"], row["position"]): row for row in held}
    for row in reading.rows["form_answers"]:
        here = place[row["file_id"], row["submit_position"], row["position"]]
        if isinstance(row["value"], list | dict):
            assert json.loads(here["value_json"]) == row["value"]
            assert isinstance(here["value"], str)
        else:
            assert here["value"] == as_told(row["value"])
            assert here["value_json"] is None


def _check_runs(db: duckdb.DuckDBPyConnection, reading: Reading) -> None:
    """Each run names the definition that it carries, and no other."""
    defined = rows(db, "SELECT _definition_hash FROM workflow_definitions")
    made = rows(
        db,
        "SELECT run.file_id, run.id, count(made._definition_hash) AS definitions, any_value(made.name) AS name"
        " FROM workflow_runs AS run LEFT JOIN workflow_definitions AS made USING (_definition_hash) GROUP BY ALL",
    )
    unnamed = db.execute(
        "SELECT count(*) FROM workflow_run_steps AS step"
        " JOIN workflow_runs AS run ON run.file_id = step.file_id AND run.id = step.workflow_run_id"
        " LEFT JOIN workflow_definition_steps AS defined ON defined._definition_hash = run._definition_hash"
        " AND defined.id = step.workflow_step_id WHERE defined.id IS NULL"
    ).fetchone()
    runs = reading.rows["workflow_runs"]
    assert len(defined) == len(reading.definitions)
    assert {(row["file_id"], row["id"]) for row in made} == {(row["file_id"], row["id"]) for row in runs}
    assert {row["definitions"] for row in made} == {1}
    assert {(row["file_id"], row["id"]): row["name"] for row in made} == {
        (run["file_id"], run["id"]): reading.definitions[run["definition"]]["name"] for run in runs
    }
    assert unnamed == (sum(run["undefined"] for run in runs),)


def _check_extra(db: duckdb.DuckDBPyConnection, reading: Reading) -> None:
    """Every key beyond the interface and the field notes stands in `extra` of its row, as sent, and nothing else."""
    tables = {name: ["id", "position"] for name in ("uploads", "locations", "workflow_runs", "workflow_run_steps")}
    for table, names in (tables | {"files": [], "fields": ["field_id", "position"]}).items():
        texts = ", ".join(["file_id", *(f"{name}::VARCHAR AS {name}" for name in names), "extra::VARCHAR AS extra"])
        held = rows(db, f"SELECT {texts} FROM {table}")
        for row in held:
            row["extra"] = row["extra"] and json.dumps(json.loads(row["extra"]), sort_keys=True)
        told = [{**row, **{name: str(row[name]) for name in names}} for row in reading.rows[table]]
        assert count(held, ["file_id", *names, "extra"]) == count(told, ["file_id", *names, "extra"]), table


def _check_counts(db: duckdb.DuckDBPyConnection, reading: Reading) -> None:
    """Every number of every view is what somebody counts who reads the documents; all but ids and ages are compared."""
    for view, told in count_views(reading).items():
        held = rows(db, f"FROM {view}")
        differing = (count(held, COUNTED[view]) - count(told, COUNTED[view])).total(), len(held) - len(told)
        assert differing == (0, 0), view
    for view, (told_rows, told_cells) in count_cells(reading).items():
        fixed = "file_id scan_code form_submit_id form_id title".split()
        held = rows(db, f"FROM {view}")
        cells = sum(value is not None for row in held for name, value in row.items() if name not in fixed)
        assert (len(held), cells) == (told_rows, told_cells), view
    numbers = db.execute(
        "SELECT table_name, column_name FROM duckdb_columns() SEMI JOIN duckdb_views() AS view"
        " ON table_name = view_name AND NOT view.internal WHERE schema_name = 'main' AND data_type <> 'VARCHAR'"
        " AND (numeric_precision IS NOT NULL OR data_type = 'DOUBLE')"
    ).fetchall()
    others = {"tenant_id", "workflow_id", "form_id", "latitude", "longitude", "age_days"}
    counted = {(view, name) for view, names in COUNTED.items() for name in names}
    missing = {(view, name) for view, name in numbers if name not in others} - counted
    assert missing == {("fields_wide", "file_id"), ("form_answers_wide", "file_id")}


@pytest.mark.usefixtures("published")
@pytest.mark.parametrize("files", [60, pytest.param(2_000, marks=pytest.mark.soak)])
async def test_a_lake_that_has_lived_counts_what_is_there(lake: Path, files: int) -> None:
    """New, after edits of all kinds, after deletions and new definitions each view counts what the service tells."""
    quirks = make_quirks("seen", STEADY)
    async with Emulator(files, seed=SEED, quirks=quirks) as emulator:
        world, reading = emulator.world, Reading()

        async def live() -> None:
            nonlocal reading
            world.clock.advance(60)
            await synced(emulator, lake)
            await verified(emulator, lake, VerifyMode(accept_deletions=True))
            former, reading = reading, await asyncio.to_thread(read_service, emulator.base_url, emulator.token)
            reading.definitions = former.definitions | reading.definitions
            with opened(lake) as db:
                _check_counts(db, reading)

        await live()
        for kind in EDIT_KINDS:
            for key in world.pick_random(files // 10):
                world.edit(key, kind)
        world.create(files // 20)
        await live()
        emulator.set_quirks(definitions="remove-steps")
        world.touch(world.keys())
        world.delete(world.pick_random(files // 20))
        await live()
    removed = sum(run["other_steps"] - run["undefined"] for run in reading.rows["workflow_runs"])
    with opened(lake) as db:
        assert db.execute("SELECT files, deleted_files, ? > 0 FROM meta.freshness", [removed]).fetchall() == [
            (len(reading.rows["files"]), files // 20, True)
        ]


async def test_texts_are_in_the_language_that_was_asked_for(tmp_path: Path) -> None:
    """With `lang`, texts are in that language whichever of the two calls heeds it."""
    german = {"Delle", "Kratzer", "Nasse Verpackung", "Siegel gebrochen", "Fehlendes Teil", "Lackfehler — größer"}
    async with Emulator(FILES, seed=SEED, quirks=make_quirks("seen", {**STEADY, "escapes": "html"})) as emulator:
        for texts in ("list-only", "detail-only", "off"):
            emulator.set_quirks(lang_texts=texts)
            await synced(emulator, tmp_path / texts, lang="de")
            with opened(tmp_path / texts) as db:
                held = {text for (text,) in db.execute("SELECT DISTINCT damage_type_desc FROM uploads").fetchall()}
            held -= {None, ""}
            assert held, texts
            assert (held <= german, bool(held & german)) == ((True, True) if texts != "off" else (False, False)), texts
