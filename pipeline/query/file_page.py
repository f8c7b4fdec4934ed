"""The page of one file: its time line, uploads, forms, fields and workflow runs, and its stored images."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Final

from pipeline.lake.catalog.history import FILE_EVENTS
from pipeline.lake.catalog.sql import sql_literal
from pipeline.lake.catalog.tables import IMAGES_TABLE
from pipeline.query.catalog_access import (
    BrowsePage,
    NothingFoundError,
    read_queries,
    read_query,
)
from pipeline.query.reader import fetch_dicts
from pipeline.query.stored_images import read_images
from schemas.tables import TABLES

if TYPE_CHECKING:
    import duckdb

    from pipeline.query.catalog_access import QueryRows

_MAX_SECTION_ROWS: Final = 200
"""Rows of a section. The links at the end of the page lead to all rows."""
_QUERIES: Final = read_queries("file.sql")
_SECTIONS: Final = {
    "fields": "Fields",
    "runs": "Workflow runs",
    "open_steps": "Open workflow steps",
    "locations": "Locations",
    "events": "Closing, reopening, new references",
}


def find_file(lake: duckdb.DuckDBPyConnection, text: str) -> BrowsePage:
    """Return the page of the file with this reference or id; a list of them if there are several."""
    matches = read_query(lake, _QUERIES["matches"].format(text=sql_literal(text)), _MAX_SECTION_ROWS)
    if not matches.rows:
        raise NothingFoundError(
            f"No file has the reference or id {text}.", hint="Filter the table files for part of the reference."
        )
    if len(matches.rows) == 1:
        return build_file_page(lake, int(matches.rows[0][0] or 0))
    return BrowsePage("browse_files.html.jinja", f"Files {text}", {"matches": matches})


def build_file_page(lake: duckdb.DuckDBPyConnection, file_id: int) -> BrowsePage:
    """Return the page of a file, also of a deleted one. Raises `NothingFoundError` if the lake has never had it."""
    rows = fetch_dicts(lake, _QUERIES["facts"].format(file_id=file_id))
    if not rows:
        raise NothingFoundError(f"No file {file_id} in the lake.", hint="Look for it by its reference.")
    facts = {name: str(value) for name, value in rows[0].items() if value is not None}
    heading = f"File {facts.get('Reference') or file_id}"
    if "Deletion detected" in facts:
        return BrowsePage("browse_deleted.html.jinja", heading, {"facts": facts})

    def read(name: str) -> QueryRows:
        return read_query(lake, _QUERIES[name].format(file_id=file_id), _MAX_SECTION_ROWS)

    answers = read("answers")
    names = [table.name for table in TABLES if table.is_per_file and table.schema == "main"]
    values = {
        "file_id": file_id,
        "facts": facts,
        "images": read_images(lake, file_id),
        "timeline": read("timeline"),
        "uploads": read("uploads"),
        "answers": answers,
        "forms": _group_answers(answers),
        "sections": [(key, name, read(key)) for key, name in _SECTIONS.items()],
        "tables": [*names, FILE_EVENTS.name, IMAGES_TABLE],
    }
    return BrowsePage("browse_file.html.jinja", heading, values)


def _group_answers(answers: QueryRows) -> list[tuple[str | None, list[dict[str, str | None]]]]:
    """Return the answers of each form with its title; a form without answers has none."""
    groups = groupby(answers.dicts, key=lambda row: (row["position"], row["title"]))
    return [(title, [row for row in rows if row["answer_position"] is not None]) for (_, title), rows in groups]
