"""Views of the catalog that are computed from its tables.

view_definitions has those whose query is the same in every lake. The wide views have one column per field name or
question of the tables that were just written: 0.02 s at 100,000 files.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

from pipeline.lake.history_views import FILE_EVENTS, FILE_VERSIONS
from pipeline.lake.sql import sql_identifier, sql_literal
from pipeline.lake.view_definitions import (
    ADDRESSES,
    DAMAGE,
    FILE_SUMMARY,
    OPEN_RUNS,
    PROGRESS,
    WORKFLOW_STEPS,
    WORKFLOWS,
    View,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import duckdb

    from pipeline.lake.duckdb import TableWriter

MAX_WIDE_COLUMNS: Final = 500
_MAX_NAME_LENGTH: Final = 1_000
_MAX_QUESTION_LABELS: Final = 2_000  # of all forms: a service may invent them without end
_MAX_COLUMN_NAME_LENGTH: Final = 500
_MAX_SHOWN_CHARS: Final = 100
_MAX_SHOWN_SPELLINGS: Final = 5
_MAX_FORM_VIEWS: Final = 100  # every publish writes them
_FIXED: Final = (DAMAGE, ADDRESSES, PROGRESS, OPEN_RUNS, FILE_SUMMARY)
FIXED_VIEWS: Final = (WORKFLOWS, WORKFLOW_STEPS, *_FIXED)
"""The views that every catalog has with the same query."""
_WIDTH_NOTE: Final = (
    "Names with equal labels get a number: status, Status (2); the comment of a column has its name."
    f" At most {MAX_WIDE_COLUMNS} columns, for the most frequent names."
)


def list_views(db: duckdb.DuckDBPyConnection) -> tuple[View, ...]:
    """Return the views over the tables of a catalog, and the tables of what happened to files."""
    wide = (_fields_wide(_list_names(db, "fields", "name")), _answers_wide(_list_names(db, "form_answers", "label")))
    return (WORKFLOWS, WORKFLOW_STEPS, *wide, *_forms_wide(db), *_FIXED, FILE_VERSIONS, FILE_EVENTS)


def write_views(writer: TableWriter, views: Iterable[View], former: Mapping[str, str]) -> dict[str, str]:
    """Create the views, and return a hash of each by its name.

    Those in `former` exist already; a view whose hash is the same stays.
    """
    hashes = {view.name: blake2b(repr(view).encode(), digest_size=8).hexdigest() for view in views}
    for name in former.keys() - hashes.keys():
        writer.db.execute(f"DROP VIEW main.{name}")
    for view in views:
        if former.get(view.name) != hashes[view.name]:
            writer.db.execute(f"CREATE OR REPLACE VIEW main.{view.name} AS {view.sql}")
            writer.comment("VIEW", f"main.{view.name}", view.comment, view.columns)
    return hashes


# Wide views


def _list_names(db: duckdb.DuckDBPyConnection, table: str, column: str) -> list[str]:
    """Return the most frequent names in a column of a table, the most frequent first."""
    rows = db.execute(
        f"SELECT {column} FROM main.{table} WHERE length({column}) <= {_MAX_NAME_LENGTH}"
        f" GROUP BY {column} ORDER BY count(*) DESC, {column} LIMIT {MAX_WIDE_COLUMNS}"
    ).fetchall()
    return [name for (name,) in rows]


def wide_columns(names: Iterable[str], taken: Sequence[str]) -> list[tuple[str, str]]:
    """Return a column for each name, as (column, name), in the order of the columns. The most frequent name is first.

    SQL ignores case and a column label is one line, so different names can have one label. The most frequent of them
    gets the label itself, the others get it with a number: no value of one name hides a value of another.
    """
    used = {name.casefold() for name in taken}
    return sorted(((_unused_label(name, used), name) for name in names), key=lambda pair: pair[0].casefold())


def _unused_label(name: str, used: set[str]) -> str:
    """Return a name as a column label that is not in `used`, and add it there."""
    label, number = _column_label(name)[:_MAX_COLUMN_NAME_LENGTH], 1
    column = label
    while column.casefold() in used:
        number += 1
        column = f"{label} ({number})"
    used.add(column.casefold())
    return column


def _column_label(name: str) -> str:
    """Return a name as a column label: one line, composed, never empty."""
    visible = "".join(" " if unicodedata.category(character) == "Cc" else character for character in name)
    return unicodedata.normalize("NFC", visible.strip()) or "(empty)"


def _fields_wide(names: Sequence[str]) -> View:
    fixed = (("file_id", "The file."), ("scan_code", "Its reference."))
    columns = wide_columns(names, [name for name, _ in fixed])
    latest = "arg_max(value, (coalesce(updated_at, created_at, TIMESTAMP '1970-01-01'), position))"
    return View(
        "fields_wide",
        "One row per file, one column per name of a custom field: its latest value."
        f" {_WIDTH_NOTE} Table fields has every value.",
        (*fixed, *((column, f"Latest value of field {_format_name(name)}.") for column, name in columns)),
        f"SELECT files.file_id, files.scan_code{_selected_columns(columns)} FROM main.files LEFT JOIN (SELECT file_id"
        f"{_aggregates(columns, latest, 'name')} FROM main.fields GROUP BY file_id) AS wide USING (file_id)",
    )


def _answers_wide(names: Sequence[str]) -> View:
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
        "One row per submitted form, one column per label of a question. Several answers under one label are joined"
        f" with |. {_WIDTH_NOTE} Table form_answers has every value.",
        (*fixed, *((column, f"Answer to {_format_name(name)}.") for column, name in columns)),
        f"SELECT sent.file_id, sent.id AS form_submit_id, sent.form_id, sent.title{_selected_columns(columns)}"
        f" FROM main.form_submits AS sent LEFT JOIN (SELECT file_id, submit_position"
        f"{_aggregates(columns, joined, 'label')} FROM main.form_answers GROUP BY file_id, submit_position) AS wide"
        " ON wide.file_id = sent.file_id AND wide.submit_position = sent.position",
    )


def _forms_wide(db: duckdb.DuckDBPyConnection) -> list[View]:
    """Return one view per form, the most frequent forms first."""
    rows = db.execute(
        "SELECT form_id, question_id, label, count(*) AS answers FROM main.form_answers WHERE form_id IS NOT NULL"
        f" AND length(question_id) <= {_MAX_NAME_LENGTH} AND coalesce(length(label) <= {_MAX_NAME_LENGTH}, true)"
        f" GROUP BY ALL ORDER BY answers DESC, form_id, question_id, label LIMIT {_MAX_QUESTION_LABELS}"
    ).fetchall()
    forms: dict[int, dict[str, Counter[str]]] = {}
    for form_id, question_id, label, count in rows:
        forms.setdefault(form_id, {}).setdefault(question_id, Counter())[label or ""] += count
    frequent = sorted(forms, key=lambda form_id: (-sum(map(Counter.total, forms[form_id].values())), form_id))
    return [_form_wide(form_id, forms[form_id]) for form_id in frequent[:_MAX_FORM_VIEWS]]


def _form_wide(form_id: int, questions: Mapping[str, Counter[str]]) -> View:
    """Return the view of one form. A question keeps its column when its label changes, and shares it with no other."""
    fixed = (
        ("file_id", "The file."),
        ("form_submit_id", "Submission; see form_submits.id."),
        ("submit_position", "Position of the submission; see form_submits.position."),
        ("title", "Title of the form."),
    )
    used = {name.casefold() for name, _ in fixed}
    columns: list[tuple[str, str]] = []
    comments: list[tuple[str, str]] = []
    frequent = sorted(questions, key=lambda question_id: (-questions[question_id].total(), question_id))
    for question_id in sorted(frequent[:MAX_WIDE_COLUMNS], key=_question_sort_key):
        labels = questions[question_id]
        column = _unused_label(min(labels, key=lambda label: (-labels[label], label)), used)
        columns.append((column, question_id))
        quoted = ", ".join(map(_format_name, sorted(labels)[:_MAX_SHOWN_SPELLINGS]))
        comments.append((column, f"Answer to question {question_id}: {quoted}."))
    joined = "string_agg(value, ' | ' ORDER BY position)"
    return View(
        f"form_{form_id}_wide".replace("-", "minus_"),
        f"One row per submission of form {form_id}, one column per question, by the question's id.",
        (*fixed, *comments),
        f"SELECT sent.file_id, sent.id AS form_submit_id, sent.position AS submit_position, sent.title"
        f"{_selected_columns(columns)} FROM main.form_submits AS sent LEFT JOIN (SELECT file_id, submit_position"
        f"{_aggregates(columns, joined, 'question_id')} FROM main.form_answers WHERE form_id = {form_id}"
        " GROUP BY file_id, submit_position) AS wide ON wide.file_id = sent.file_id"
        f" AND wide.submit_position = sent.position WHERE sent.form_id = {form_id}",
    )


def _question_sort_key(question_id: str) -> tuple[int, int, str]:
    return (0, int(question_id), "") if question_id.isdecimal() else (1, 0, question_id)


def _selected_columns(columns: Sequence[tuple[str, str]]) -> str:
    return "".join(f", wide.{sql_identifier(column)}" for column, _ in columns)


def _aggregates(columns: Sequence[tuple[str, str]], aggregate: str, name_column: str) -> str:
    """Return one aggregate per column, so that a query computes only the columns that it names."""
    return "".join(
        f", {aggregate} FILTER ({name_column} = {sql_literal(name)}) AS {sql_identifier(column)}"
        for column, name in columns
    )


def _format_name(name: str) -> str:
    return repr(name[:_MAX_SHOWN_CHARS])
