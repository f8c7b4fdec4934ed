"""The lake against a plain reading of the service over HTTP, by somebody who shares no belief with scanlake."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from pipeline.emulator import PROFILES, Emulator, make_quirks
from tests.plain_reading import Reading, count, read_service
from tests.sync.sync_harness import SEED, opened, synced

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


@pytest.mark.usefixtures("sockets")
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
    """Each run's steps, done, skipped and open follow from the definition that the run carries, and from no other."""
    progress = rows(db, "SELECT file_id, workflow_run_id AS id, steps, done, skipped, open FROM workflow_progress")
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
    names = ["file_id", "id", "steps", "done", "skipped", "open"]
    runs = reading.rows["workflow_runs"]
    assert count(progress, names) == count((run for run in runs if not run["removed"]), names)
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
