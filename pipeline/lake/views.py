"""Views of the catalog that are computed from its tables: wide answers, progress, history.

The wide views have one column per field name or question. To look those names up in a million files would delay
every publish, so the ledger counts them at every commit.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import pyarrow.parquet as pq

from pipeline.lake.parts import WIDE_NAME_COLUMNS, count_wide_names
from pipeline.lake.sql import sql_comment, sql_identifier, sql_literal
from schemas.tables import FIELDS, FORM_ANSWERS, FORM_SUBMITS, TABLES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import duckdb

    from pipeline.lake.layout import LakeLayout
    from pipeline.lake.ledger import Ledger
    from pipeline.lake.models import Part

MAX_WIDE_COLUMNS: Final = 500
_MAX_COLUMN_NAME_LENGTH: Final = 500
_MAX_SHOWN_CHARS: Final = 100
_MAX_SHOWN_SPELLINGS: Final = 5


@dataclass(frozen=True, slots=True)
class View:
    """A view: name, comment, columns with their comments, query."""

    name: str
    comment: str
    columns: tuple[tuple[str, str], ...]
    sql: str


def count_wide_names_in_parts(layout: LakeLayout, parts: Iterable[Part]) -> Counter[tuple[str, str]]:
    """Count how often each name occurs in some parts, by (table, name)."""
    counts: Counter[tuple[str, str]] = Counter()
    for part in parts:
        if (column := WIDE_NAME_COLUMNS.get(part.table_name)) is not None:
            rows = pq.read_table(layout.part_path(part.name), columns=[column])
            counts.update(count_wide_names({part.table_name: rows}))
    return counts


def write_views(db: duckdb.DuckDBPyConnection, layout: LakeLayout, ledger: Ledger, history: str) -> frozenset[str]:
    """Create the views and return their names. `history` is the SQL source of the raw documents.

    DuckDB binds a view when it is created, so empty tables are created as placeholders. The caller replaces them.
    """
    for table in TABLES:
        columns = ", ".join(f'"{column.name}" {column.kind.sql}' for column in table.columns)
        db.execute(f"CREATE TABLE main.{table.name} ({columns})")
    names = _load_wide_columns(layout, ledger)
    raw = replace(_HISTORY, sql=_HISTORY.sql.format(history=history))
    wide = (_fields_wide(names[FIELDS.name]), _answers_wide(names[FORM_ANSWERS.name]))
    views = (*wide, _DAMAGE, _PROGRESS, _OPEN_RUNS, raw)
    for view in views:
        db.execute(f"CREATE VIEW main.{view.name} AS {view.sql}")
        db.execute(sql_comment("VIEW", f"main.{view.name}", view.comment, view.columns))
    return frozenset(view.name for view in views)


def _load_wide_columns(layout: LakeLayout, ledger: Ledger) -> dict[str, dict[str, int]]:
    """Return the names with their counts, by table. A rebuilt ledger has none; then the parts are counted once."""
    counted: Mapping[tuple[str, str], int] = ledger.wide_columns()
    if not counted and (parts := [part for part in ledger.parts() if part.table_name in WIDE_NAME_COLUMNS]):
        counted = count_wide_names_in_parts(layout, parts)
        ledger.record_wide_columns(counted)
    return {
        table: {name: count for (owner, name), count in counted.items() if owner == table}
        for table in WIDE_NAME_COLUMNS
    }


# Wide views


def wide_columns(names: Mapping[str, int], taken: Sequence[str]) -> list[tuple[str, list[str]]]:
    """Return the columns for the most frequent names, each with the spellings that it combines.

    Names that differ only in case, in surrounding spaces or in Unicode composition share one column, because SQL
    does not distinguish them.
    """
    by_label: dict[str, Counter[str]] = {}
    for name, count in names.items():
        by_label.setdefault(_column_label(name).casefold(), Counter())[name] += count
    frequent = sorted(by_label.items(), key=lambda pair: (-pair[1].total(), pair[0]))[:MAX_WIDE_COLUMNS]
    used = {name.casefold() for name in taken}
    columns = []
    for _, spellings in sorted(frequent):
        best = min(spellings, key=lambda name: (-spellings[name], name))
        label, number = _column_label(best)[:_MAX_COLUMN_NAME_LENGTH], 1
        column = label
        while column.casefold() in used:
            number += 1
            column = f"{label} ({number})"
        used.add(column.casefold())
        columns.append((column, sorted(spellings)))
    return columns


def _column_label(name: str) -> str:
    """Return a name as a column label: one line, composed, never empty."""
    visible = "".join(" " if unicodedata.category(character) == "Cc" else character for character in name)
    return unicodedata.normalize("NFC", visible.strip()) or "(empty)"


def _fields_wide(names: Mapping[str, int]) -> View:
    fixed = (("file_id", "The file."), ("scan_code", "Its reference."))
    columns = wide_columns(names, [name for name, _ in fixed])
    latest = "arg_max(value, (coalesce(updated_at, created_at, TIMESTAMP '1970-01-01'), position))"
    return View(
        "fields_wide",
        "One row per file, one column per custom field: its latest value. Table fields has every value.",
        (
            *fixed,
            *((column, f"Latest value of field {_format_spellings(spellings)}.") for column, spellings in columns),
        ),
        f"SELECT files.file_id, files.scan_code{_selected_columns(columns)} FROM main.files LEFT JOIN (SELECT file_id"
        f"{_aggregates(columns, latest, 'name')} FROM main.fields GROUP BY file_id) AS wide USING (file_id)",
    )


def _answers_wide(names: Mapping[str, int]) -> View:
    fixed = (
        ("file_id", "The file."),
        ("form_submit_id", "Submission; see form_submits.id."),
        ("form_id", "Form that was filled in."),
        ("title", "Title of the form."),
    )
    columns = wide_columns(names, [name for name, _ in fixed])
    joined = "string_agg(value, ' | ' ORDER BY position)"
    return View(
        "form_answers_wide",
        "One row per submitted form, one column per question. Several answers under one label are joined with |.",
        (*fixed, *((column, f"Answer to {_format_spellings(spellings)}.") for column, spellings in columns)),
        f"SELECT sent.file_id, sent.id AS form_submit_id, sent.form_id, sent.title{_selected_columns(columns)}"
        f" FROM main.{FORM_SUBMITS.name} AS sent LEFT JOIN (SELECT file_id, form_submit_id"
        f"{_aggregates(columns, joined, 'label')} FROM main.form_answers GROUP BY file_id, form_submit_id) AS wide"
        " ON wide.file_id = sent.file_id AND wide.form_submit_id IS NOT DISTINCT FROM sent.id",
    )


def _selected_columns(columns: Sequence[tuple[str, list[str]]]) -> str:
    return "".join(f", wide.{sql_identifier(column)}" for column, _ in columns)


def _aggregates(columns: Sequence[tuple[str, list[str]]], aggregate: str, name_column: str) -> str:
    """Return one aggregate per column, so that a query computes only the columns that it names."""
    return "".join(
        f", {aggregate} FILTER ({name_column} IN ({', '.join(map(sql_literal, spellings))}))"
        f" AS {sql_identifier(column)}"
        for column, spellings in columns
    )


def _format_spellings(spellings: Sequence[str]) -> str:
    return ", ".join(repr(name[:_MAX_SHOWN_CHARS]) for name in spellings[:_MAX_SHOWN_SPELLINGS])


# Other views

_DAMAGE: Final = View(
    "damage_by_month",
    "One row per month: images taken, and how many of them show damage.",
    (
        ("month", "First day of the month in which the image was taken (UTC)."),
        ("images", "Images and documents."),
        ("with_damage", "Images that the app user marked as showing damage."),
        ("damage_ratio", "Images with damage divided by images."),
        ("files", "Files that the images belong to."),
        ("files_with_damage", "Files with at least one such image."),
    ),
    "SELECT date_trunc('month', coalesce(scan_date_time, created_at)) AS month, count(*) AS images,"
    " count(*) FILTER (has_damage) AS with_damage, count(*) FILTER (has_damage) / count(*) AS damage_ratio,"
    " count(DISTINCT file_id) AS files, count(DISTINCT file_id) FILTER (has_damage) AS files_with_damage"
    " FROM main.uploads GROUP BY ALL ORDER BY month",
)
_PROGRESS: Final = View(
    "workflow_progress",
    "One row per workflow run that was not removed: how many of its steps are done, skipped, open.",
    (
        ("file_id", "The file."),
        ("workflow_run_id", "Run; see workflow_runs.id."),
        ("workflow_id", "Workflow of the run."),
        ("workflow", "Name of the workflow."),
        ("steps", "Steps of the workflow's latest known definition."),
        ("done", "Steps executed: every status except skipped."),
        ("skipped", "Steps skipped."),
        ("open", "Steps of the definition that are neither executed nor skipped."),
        ("started_at", "Start on the device, otherwise submission, otherwise creation (UTC)."),
        ("completed_at", "Completion; NULL while the run is open."),
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
    "One row per workflow run that is not completed.",
    (
        ("file_id", "The file."),
        ("scan_code", "Its reference."),
        *(column for column in _PROGRESS.columns[1:] if column[0] != "completed_at"),
        ("age_days", "Days since the start, by the reader's clock."),
    ),
    "SELECT file_id, scan_code, progress.* EXCLUDE (file_id, completed_at),"
    " (epoch(now()) - epoch(progress.started_at)) / 86400 AS age_days"
    " FROM main.workflow_progress AS progress JOIN main.files USING (file_id) WHERE progress.completed_at IS NULL",
)
_HISTORY: Final = View(
    "file_history",
    "One row per fetched version of a file, with its documents. keep_raw_versions limits how many are kept.",
    (
        ("file_id", "The file."),
        ("commit_seq", "Commit that wrote the version; later commits have greater numbers."),
        ("fetched_at", "Fetch from the service (UTC)."),
        ("updated_at", "Last update according to this version (UTC)."),
        ("run_id", "Run that fetched it; see meta.runs."),
        ("list_item", "List item as received; NULL if it is not UTF-8."),
        ("detail", "Detail as received; NULL if there is none or it is not UTF-8."),
    ),
    "SELECT file_id, _seq AS commit_seq, _fetched_at AS fetched_at, updated_at, _run_id AS run_id,"
    " TRY(decode(list_item)) AS list_item, TRY(decode(detail)) AS detail FROM {history}",
)
