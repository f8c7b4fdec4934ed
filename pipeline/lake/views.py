"""Views for people, in the catalog beside the tables: wide answers, progress, history.

The wide views have one column a field name or question. Looking those names up in a million files would hold up
every publish, so the ledger counts them as they come in.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow.parquet as pq

from pipeline.lake.parts import NAMED, names_in
from schemas.tables import FIELDS, FORM_ANSWERS, FORM_SUBMITS, TABLES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import duckdb

    from pipeline.lake.files import Layout
    from pipeline.lake.ledger import Ledger
    from pipeline.lake.records import Part

MOST_COLUMNS: Final = 500
_LONGEST: Final = 500  # signs of a column's name
_TOLD: Final = 100


@dataclass(frozen=True, slots=True)
class View:
    """A view: its name, what it shows, its columns with their comments, and its query."""

    name: str
    comment: str
    columns: tuple[tuple[str, str], ...]
    sql: str


def count_names(layout: Layout, parts: Iterable[Part]) -> Counter[tuple[str, str]]:
    """How often each name occurs in some parts, by (table, name)."""
    found: Counter[tuple[str, str]] = Counter()
    for part in parts:
        if (column := NAMED.get(part.table_name)) is not None:
            rows = pq.read_table(layout.part(part.name), columns=[column])
            found.update(names_in({part.table_name: rows}))
    return found


def write_views(db: duckdb.DuckDBPyConnection, layout: Layout, ledger: Ledger, history: str) -> frozenset[str]:
    """Write the views; returns their names. `history` is the source of the raw documents, as SQL.

    A view is bound when it is created: empty tables stand in for those of the base, and are left to be replaced.
    """
    for table in TABLES:
        columns = ", ".join(f'"{column.name}" {column.kind.sql}' for column in table.columns)
        db.execute(f"CREATE TABLE main.{table.name} ({columns})")
    views = _views(layout, ledger, history)
    for view in views:
        db.execute(f"CREATE VIEW main.{view.name} AS {view.sql}")
        db.execute(f"COMMENT ON VIEW main.{view.name} IS {literal(view.comment)}")
        for name, comment in view.columns:
            db.execute(f"COMMENT ON COLUMN main.{view.name}.{identifier(name)} IS {literal(comment)}")
    return frozenset(view.name for view in views)


def _views(layout: Layout, ledger: Ledger, history: str) -> list[View]:
    names = _known_names(layout, ledger)
    return [
        _fields_wide(names[FIELDS.name]),
        _answers_wide(names[FORM_ANSWERS.name]),
        _DAMAGE,
        _PROGRESS,
        _OPEN_RUNS,
        View("file_history", _HISTORY.comment, _HISTORY.columns, _HISTORY.sql.format(history=history)),
    ]


def _known_names(layout: Layout, ledger: Ledger) -> dict[str, dict[str, int]]:
    """Names by table, with their counts. A ledger that never counted any does so now, once."""
    rows = ledger.query("SELECT table_name, name, count FROM wide_name")
    counted: Mapping[tuple[str, str], int] = {(row["table_name"], row["name"]): row["count"] for row in rows}
    if not counted and (parts := [part for part in ledger.parts() if part.table_name in NAMED]):
        counted = count_names(layout, parts)
        with ledger.transaction() as db:
            db.executemany("INSERT INTO wide_name VALUES (?, ?, ?)", [(*key, count) for key, count in counted.items()])
    return {table: {name: count for (of, name), count in counted.items() if of == table} for table in NAMED}


# Wide views


def columns_of(names: Mapping[str, int], taken: Sequence[str]) -> list[tuple[str, list[str]]]:
    """Columns for the most frequent names: what each is called, and the spellings that it gathers.

    Names that differ in case, in spaces around them or in how Unicode composes a sign are one column: SQL could
    not tell them apart.
    """
    gathered: dict[str, Counter[str]] = {}
    for name, count in names.items():
        gathered.setdefault(_shown(name).casefold(), Counter())[name] += count
    frequent = sorted(gathered.items(), key=lambda pair: (-pair[1].total(), pair[0]))[:MOST_COLUMNS]
    used = {name.casefold() for name in taken}
    columns = []
    for _, spellings in sorted(frequent):
        best = min(spellings, key=lambda name: (-spellings[name], name))
        shown, number = _shown(best)[:_LONGEST], 1
        column = shown
        while column.casefold() in used:
            number += 1
            column = f"{shown} ({number})"
        used.add(column.casefold())
        columns.append((column, sorted(spellings)))
    return columns


def _shown(name: str) -> str:
    """A name as a column's: on one line, composed, never empty."""
    visible = "".join(" " if unicodedata.category(sign) == "Cc" else sign for sign in name)
    return unicodedata.normalize("NFC", visible.strip()) or "(empty)"


def _fields_wide(names: Mapping[str, int]) -> View:
    fixed = (("file_id", "The file."), ("scan_code", "Its reference."))
    columns = columns_of(names, [name for name, _ in fixed])
    latest = "arg_max(value, (coalesce(updated_at, created_at, TIMESTAMP '1970-01-01'), position))"
    return View(
        "fields_wide",
        "One row a file, one column a custom field: its latest value. Every value stands in fields.",
        (*fixed, *((column, f"Latest value of the field {_told(spellings)}.") for column, spellings in columns)),
        f"SELECT files.file_id, files.scan_code{_chosen(columns)} FROM main.files LEFT JOIN (SELECT file_id"
        f"{_aggregated(columns, latest, 'name')} FROM main.fields GROUP BY file_id) AS wide USING (file_id)",
    )


def _answers_wide(names: Mapping[str, int]) -> View:
    fixed = (
        ("file_id", "The file."),
        ("form_submit_id", "Submission; see form_submits.id."),
        ("form_id", "Form that was filled in."),
        ("title", "Title of the form."),
    )
    columns = columns_of(names, [name for name, _ in fixed])
    joined = "string_agg(value, ' | ' ORDER BY position)"
    return View(
        "form_answers_wide",
        "One row a submitted form, one column a question. Several answers under one label are joined with |.",
        (*fixed, *((column, f"Answer to {_told(spellings)}.") for column, spellings in columns)),
        f"SELECT sent.file_id, sent.id AS form_submit_id, sent.form_id, sent.title{_chosen(columns)}"
        f" FROM main.{FORM_SUBMITS.name} AS sent LEFT JOIN (SELECT file_id, form_submit_id"
        f"{_aggregated(columns, joined, 'label')} FROM main.form_answers GROUP BY file_id, form_submit_id) AS wide"
        " ON wide.file_id = sent.file_id AND wide.form_submit_id IS NOT DISTINCT FROM sent.id",
    )


def _chosen(columns: Sequence[tuple[str, list[str]]]) -> str:
    return "".join(f", wide.{identifier(column)}" for column, _ in columns)


def _aggregated(columns: Sequence[tuple[str, list[str]]], aggregate: str, named_by: str) -> str:
    """One aggregate a column, so that a query pays for the columns it names and no others."""
    return "".join(
        f", {aggregate} FILTER ({named_by} IN ({', '.join(map(literal, spellings))})) AS {identifier(column)}"
        for column, spellings in columns
    )


def _told(spellings: Sequence[str]) -> str:
    return ", ".join(repr(name[:_TOLD]) for name in spellings[:5])


def identifier(name: str) -> str:
    """The name as SQL has it, whatever is in it."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """The text as a literal of SQL; a NUL would end the statement."""
    quoted = " || chr(0) || ".join("'" + piece.replace("'", "''") + "'" for piece in text.split("\0"))
    return f"({quoted})" if "\0" in text else quoted


# The others

_DAMAGE: Final = View(
    "damage_by_month",
    "One row a month: images taken, and how many of them show damage.",
    (
        ("month", "First day of the month, UTC, by when the image was taken."),
        ("images", "Images and documents."),
        ("with_damage", "Images that the app user marked as showing damage."),
        ("share", "Their share of the images."),
        ("files", "Files they belong to."),
        ("files_with_damage", "Files with at least one such image."),
    ),
    "SELECT date_trunc('month', coalesce(scan_date_time, created_at)) AS month, count(*) AS images,"
    " count(*) FILTER (has_damage) AS with_damage, count(*) FILTER (has_damage) / count(*) AS share,"
    " count(DISTINCT file_id) AS files, count(DISTINCT file_id) FILTER (has_damage) AS files_with_damage"
    " FROM main.uploads GROUP BY ALL ORDER BY month",
)
_PROGRESS: Final = View(
    "workflow_progress",
    "One row a workflow run that was not removed: how many of its steps are done, skipped and open.",
    (
        ("file_id", "The file."),
        ("workflow_run_id", "The run; see workflow_runs.id."),
        ("workflow_id", "Its workflow."),
        ("workflow", "Name of the workflow."),
        ("steps", "Steps of the workflow's latest known definition."),
        ("done", "Steps executed: any status but skipped."),
        ("skipped", "Steps skipped."),
        ("open", "Steps of the definition neither executed nor skipped."),
        ("started_at", "Started on the device, or submitted, or created (UTC)."),
        ("completed_at", "Completed; empty while the run is open."),
    ),
    "WITH defined AS (SELECT id, workflow_id FROM main.workflow_steps WHERE deleted_at IS NULL),"
    " sizes AS (SELECT workflow_id, count(*) AS steps FROM defined GROUP BY ALL),"
    " taken AS (SELECT file_id, workflow_run_id, workflow_id, workflow_step_id,"
    " bool_or(lower(status) IS DISTINCT FROM 'skipped') AS done FROM main.workflow_run_steps GROUP BY ALL),"
    " counted AS (SELECT taken.file_id, taken.workflow_run_id, count(*) FILTER (done) AS done,"
    " count(*) FILTER (NOT done) AS skipped, count(defined.id) AS known FROM taken LEFT JOIN defined"
    " ON defined.id = taken.workflow_step_id AND defined.workflow_id = taken.workflow_id GROUP BY ALL)"
    " SELECT run.file_id, run.id AS workflow_run_id, run.workflow_id, workflow.name AS workflow,"
    " coalesce(sizes.steps, 0) AS steps, coalesce(counted.done, 0) AS done,"
    " coalesce(counted.skipped, 0) AS skipped,"
    " greatest(coalesce(sizes.steps, 0) - coalesce(counted.known, 0), 0) AS open,"
    " coalesce(run.started_on_device_at, run.submit_date_time, run.created_at) AS started_at, run.completed_at"
    " FROM main.workflow_runs AS run LEFT JOIN main.workflows AS workflow ON workflow.id = run.workflow_id"
    " LEFT JOIN sizes ON sizes.workflow_id = run.workflow_id"
    " LEFT JOIN counted ON counted.file_id = run.file_id AND counted.workflow_run_id = run.id"
    " WHERE run.deleted_at IS NULL",
)
_OPEN_RUNS: Final = View(
    "open_workflow_runs",
    "One row a workflow run that was begun and is not completed.",
    (
        ("file_id", "The file."),
        ("scan_code", "Its reference."),
        *(column for column in _PROGRESS.columns[1:] if column[0] != "completed_at"),
        ("age_days", "Days since it was started, by this machine's clock."),
    ),
    "SELECT file_id, scan_code, progress.* EXCLUDE (file_id, completed_at),"
    " (epoch(now()) - epoch(progress.started_at)) / 86400 AS age_days"
    " FROM main.workflow_progress AS progress JOIN main.files USING (file_id) WHERE progress.completed_at IS NULL",
)
_HISTORY: Final = View(
    "file_history",
    "One row a version of a file that the lake has fetched: what changed when. raw_keep limits how far it goes back.",
    (
        ("file_id", "The file."),
        ("seq", "Commit that brought the version; later ones are greater."),
        ("fetched_at", "Fetched from the service (UTC)."),
        ("updated_at", "Last updated, as the version says."),
        ("run_id", "Run that fetched it; see meta.runs."),
        ("list_item", "The list item as received; NULL where it is not UTF-8."),
        ("detail", "The detail as received; NULL where there is none or it is not UTF-8."),
    ),
    "SELECT file_id, _seq AS seq, _fetched_at AS fetched_at, updated_at, _run_id AS run_id,"
    " TRY(decode(list_item)) AS list_item, TRY(decode(detail)) AS detail FROM {history}",
)
