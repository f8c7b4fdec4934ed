"""The page of one file: its time line, uploads with their images, forms, fields and workflow runs."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Final, NamedTuple

from pipeline.dashboard.browse.catalog_access import NothingFoundError, list_catalog_tables, read_query
from pipeline.dashboard.browse.frame import (
    BrowsePage,
    count_note,
    format_value,
    outer_link,
    plain_table,
    rows_link,
    rows_table,
)
from pipeline.dashboard.browse.image_view import image_cell, image_link
from pipeline.dashboard.browse.stored_images import UploadImages, read_images
from pipeline.dashboard.html import Child, element, empty_note, section
from pipeline.lake.catalog_images import IMAGES_TABLE
from pipeline.lake.reader import fetch_dicts
from pipeline.lake.sql import sql_literal
from schemas.tables import TABLES

if TYPE_CHECKING:
    from collections.abc import Container, Mapping, Sequence
    from xml.etree.ElementTree import Element

    import duckdb

MAX_ROWS: Final = 200
"""Rows of a section. The links at the end of the page lead to all rows."""

_SECOND: Final = "strftime({}, '%Y-%m-%d %H:%M:%S')"
_FACTS: Final = f"""
    SELECT file_id AS "Id", scan_code AS "Reference", scan_code_format AS "Format",
           CASE WHEN closed THEN 'closed' WHEN NOT closed THEN 'open' END AS "State",
           {_SECOND.format("created_at")} AS "Registered", {_SECOND.format("updated_at")} AS "Updated",
           {_SECOND.format("_fetched_at")} AS "Fetched",
           if(_has_detail, NULL, 'only the list item of this file is in the lake') AS "Incomplete"
    FROM files WHERE file_id = {{file_id}}"""
_DELETED: Final = f"""
    SELECT file_id AS "Id", scan_code AS "Reference", {_SECOND.format("updated_at")} AS "Updated",
           {_SECOND.format("deletion_detected_at")} AS "Deletion detected", evidence AS "Evidence"
    FROM deleted_files WHERE file_id = {{file_id}}"""
_TIMELINE: Final = f"""
    WITH named_steps AS (
        SELECT DISTINCT ON (step.id) step.*, defined.description
        FROM workflow_run_steps AS step
        LEFT JOIN workflow_runs AS run ON run.file_id = step.file_id AND run.id = step.workflow_run_id
        LEFT JOIN workflow_definition_steps AS defined
               ON defined._definition_hash = run._definition_hash AND defined.id = step.workflow_step_id
        WHERE step.file_id = {{file_id}}
    ),
    events AS (
        SELECT created_at AS happened_at, 'file' AS kind, 'Registered' AS what, NULL AS url, false AS is_damage,
               NULL AS upload_id
        FROM files WHERE file_id = {{file_id}}
        UNION ALL
        SELECT updated_at, 'file', if(closed, 'Last update; the file is closed', 'Last update'), NULL, false, NULL
        FROM files WHERE file_id = {{file_id}}
        UNION ALL
        SELECT coalesce(scan_date_time, created_at), 'upload',
               concat_ws(', ', coalesce(upload_type, 'upload'), nullif(trim(document_type_desc), ''),
                         CASE WHEN has_damage THEN 'damage: ' || coalesce(damage_type_desc, 'kind unknown') END,
                         nullif(trim(comment), ''), nullif(trim(device_nick), '')),
               image_url, coalesce(has_damage, false), id::VARCHAR
        FROM uploads WHERE file_id = {{file_id}}
        UNION ALL
        SELECT coalesce(updated_at, created_at), 'field', concat_ws(': ', name, value), NULL, false, NULL
        FROM fields WHERE file_id = {{file_id}}
        UNION ALL
        SELECT started_at, 'workflow', coalesce(workflow, 'Workflow ' || workflow_id) || ' started', NULL, false,
               NULL
        FROM workflow_progress WHERE file_id = {{file_id}}
        UNION ALL
        SELECT completed_at, 'workflow', coalesce(workflow, 'Workflow ' || workflow_id) || ' completed', NULL, false,
               NULL
        FROM workflow_progress WHERE file_id = {{file_id}}
        UNION ALL
        SELECT coalesce(submit_date_time, created_at), 'step',
               concat_ws(': ', coalesce(description, 'Step ' || workflow_step_id), status), NULL, false, NULL
        FROM named_steps
    )
    SELECT {_SECOND.format("happened_at")} AS at_second, kind, what, url, is_damage, upload_id
    FROM events WHERE happened_at IS NOT NULL ORDER BY happened_at, kind, what"""
_UPLOADS: Final = f"""
    SELECT id, {_SECOND.format("coalesce(scan_date_time, created_at)")} AS taken, upload_type AS type,
           CASE WHEN has_damage THEN coalesce(damage_type_desc, 'yes') ELSE '' END AS damage,
           document_type_desc AS document, comment, device_nick AS device, latitude, longitude, image_url, image_thumb
    FROM uploads WHERE file_id = {{file_id}} ORDER BY coalesce(scan_date_time, created_at), position"""
_ANSWERS: Final = """
    SELECT form.position, coalesce(form.title, 'Form ' || form.form_id, 'Form') AS title, answer.label, answer.value
    FROM form_submits AS form LEFT JOIN form_answers AS answer
      ON answer.file_id = form.file_id AND answer.submit_position = form.position
    WHERE form.file_id = {file_id} ORDER BY form.position, answer.position"""
_FIELDS: Final = f"""
    SELECT name, value, {_SECOND.format("coalesce(updated_at, created_at)")} AS updated, snap_id AS upload
    FROM fields WHERE file_id = {{file_id}} ORDER BY position"""
_RUNS: Final = f"""
    SELECT coalesce(workflow, 'Workflow ' || workflow_id) AS workflow, {_SECOND.format("started_at")} AS started,
           coalesce({_SECOND.format("completed_at")}, 'open') AS completed, steps, done, skipped, open
    FROM workflow_progress WHERE file_id = {{file_id}} ORDER BY workflow_progress.started_at"""
_LOCATIONS: Final = "SELECT id, location FROM locations WHERE file_id = {file_id} ORDER BY position"
_VERSIONS: Final = """
    SELECT event, seen_after, seen_at, former_scan_code FROM file_events WHERE file_id = {file_id} ORDER BY seen_at"""
_MATCHES: Final = """
    SELECT file_id, scan_code, 'in the lake' AS state FROM files WHERE {condition}
    UNION ALL
    SELECT file_id, scan_code, 'deleted in the service' FROM deleted_files WHERE {condition}
    ORDER BY scan_code, file_id"""


class _Event(NamedTuple):
    at: str | None
    kind: str | None
    what: str | None
    url: str | None
    is_damage: str | None
    upload_id: str | None


def find_file(lake: duckdb.DuckDBPyConnection, text: str) -> BrowsePage:
    """Return the page of the file with this reference or id; a list of them if there are several."""
    condition = f"scan_code = {sql_literal(text)} OR file_id::VARCHAR = {sql_literal(text)}"
    result = read_query(lake, _MATCHES.format(condition=condition), MAX_ROWS)
    if not result.rows:
        raise NothingFoundError(f"No file has the reference or id {text}.", hint="Filter the table files for a part.")
    if len(result.rows) == 1:
        return build_file_page(lake, int(result.rows[0][0] or 0))
    note = element("p", f"{count_note(len(result.rows), result.has_more, 'file')} References are not unique.")
    return BrowsePage(f"Files {text}", [note, rows_table(result, "files")])


def build_file_page(lake: duckdb.DuckDBPyConnection, file_id: int) -> BrowsePage:
    """Return the page of a file. Raises `NothingFoundError` if the lake has never had it."""
    if not (facts := fetch_dicts(lake, _FACTS.format(file_id=file_id))):
        return _build_deleted_page(lake, file_id)
    (fact,) = facts
    images = read_images(lake, file_id)
    content = [
        _list_facts(fact),
        _timeline(lake, file_id, images),
        _uploads(lake, file_id, images),
        _forms(lake, file_id),
        _rows_section(lake, file_id, "fields", "Fields", _FIELDS),
        _rows_section(lake, file_id, "runs", "Workflow runs", _RUNS),
        _rows_section(lake, file_id, "locations", "Locations", _LOCATIONS),
    ]
    tables = list_catalog_tables(lake)
    if "file_events" in tables:  # a catalog without its documents has no history
        content.append(_rows_section(lake, file_id, "events", "Closing, reopening, new references", _VERSIONS))
    copies = [image for pair in images.values() for image in (pair.image, pair.thumbnail) if image is not None]
    return BrowsePage(f"File {fact['Reference'] or file_id}", [*content, _all_rows(file_id, tables)], images=copies)


def _build_deleted_page(lake: duckdb.DuckDBPyConnection, file_id: int) -> BrowsePage:
    deleted = fetch_dicts(lake, _DELETED.format(file_id=file_id))
    if not deleted:
        raise NothingFoundError(f"No file {file_id} in the lake.", hint="Look for it by its reference.")
    note = element("p", "The service deleted this file.", class_="verdict problems")
    return BrowsePage(f"File {deleted[0]['Reference'] or file_id}", [note, _list_facts(deleted[0])])


def _list_facts(facts: dict[str, object]) -> Element:
    items = [
        part
        for name, value in facts.items()
        if value is not None
        for part in (element("dt", name), element("dd", str(value)))
    ]
    return element("dl", *items, class_="facts")


def _timeline(lake: duckdb.DuckDBPyConnection, file_id: int, images: Mapping[str, UploadImages]) -> Element:
    result = read_query(lake, _TIMELINE.format(file_id=file_id), MAX_ROWS)
    items = [_timeline_item(_Event(*row), images) for row in result.rows]
    note = element("p", count_note(len(items), result.has_more, "event"), class_="soft") if result.has_more else None
    return section("timeline", "Time line (UTC)", note, element("ol", *items, class_="timeline"))


def _timeline_item(event: _Event, images: Mapping[str, UploadImages]) -> Element:
    at = event.at or ""
    what = element("span", event.what or "", class_="what")
    stored = images.get(event.upload_id or "", UploadImages()).image
    if stored is not None:
        what = element("span", event.what or "", " · ", image_link("image", stored), class_="what")
    elif event.url is not None:
        what = element("span", event.what or "", " · ", outer_link("image", event.url), class_="what")
    return element(
        "li",
        element("time", at, datetime=f"{at.replace(' ', 'T')}Z"),
        element("span", event.kind, class_="kind"),
        what,
        class_="damage" if event.is_damage == "true" else event.kind or "",
    )


def _uploads(lake: duckdb.DuckDBPyConnection, file_id: int, images: Mapping[str, UploadImages]) -> Element:
    result = read_query(lake, _UPLOADS.format(file_id=file_id), MAX_ROWS)
    if not result.rows:
        return section("uploads", "Uploads", empty_note("None."))
    headings = ("Id", "Taken (UTC)", "Type", "Damage", "Document", "Comment", "Device", "Position", "Image")
    rows: list[Sequence[Child]] = []
    for number, taken, *texts, latitude, longitude, url, thumb in result.rows:
        position = "" if latitude is None or longitude is None else f"{latitude}, {longitude}"
        image = image_cell(images.get(number or "", UploadImages()), url, thumb, number)
        rows.append([number, element("span", taken, class_="nowrap"), *(text or "" for text in texts), position, image])
    note = element("p", count_note(len(rows), result.has_more, "upload"), class_="soft") if result.has_more else None
    return section("uploads", "Uploads", note, plain_table(headings, rows, "uploads"))


def _forms(lake: duckdb.DuckDBPyConnection, file_id: int) -> Element:
    result = read_query(lake, _ANSWERS.format(file_id=file_id), MAX_ROWS)
    if not result.rows:
        return section("forms", "Forms", empty_note("None."))
    children: list[Child] = []
    for (_, title), group in groupby(result.rows, key=lambda row: row[:2]):
        answers = [[label, format_value("", value)] for _, _, label, value in group if label is not None]
        children.append(element("h3", title))
        children.append(
            plain_table(("Question", "Answer"), answers, title or "") if answers else empty_note("No answers.")
        )
    if result.has_more:
        children.append(element("p", count_note(MAX_ROWS, result.has_more, "answer"), class_="soft"))
    return section("forms", "Forms", *children)


def _rows_section(lake: duckdb.DuckDBPyConnection, file_id: int, key: str, heading: str, sql: str) -> Element:
    result = read_query(lake, sql.format(file_id=file_id), MAX_ROWS)
    if not result.rows:
        return section(key, heading, empty_note("None."))
    note = element("p", count_note(len(result.rows), result.has_more), class_="soft") if result.has_more else None
    return section(key, heading, note, rows_table(result, heading))


def _all_rows(file_id: int, tables: Container[str]) -> Element:
    names = [table.name for table in TABLES if table.is_per_file and table.schema == "main"]
    names += [IMAGES_TABLE] if IMAGES_TABLE in tables else []
    links = [element("li", rows_link(name, name, "file_id", str(file_id))) for name in names]
    return section("rows", "All rows and columns of this file", element("ul", *links, class_="inline"))
