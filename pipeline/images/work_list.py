"""The work of one run: which images of the published uploads are to be fetched, and why others are not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import Struct

from pipeline.lake.storage.images import ImageKey, ImageKind
from pipeline.query.sandbox import check_query, translate_query_errors

if TYPE_CHECKING:
    import duckdb

_PAGE_ROWS: Final = 2_000
LINK_KEYS: Final = {ImageKind.IMAGE: "image_url", ImageKind.THUMBNAIL: "image_thumb"}
"""The key of an upload that has the link, by kind."""


class ImageSelection(Struct, frozen=True):
    """Which uploads: a condition on `uploads` joined with `files`.

    `retry`: also images that were not found or refused before.
    """

    where: str | None = None
    thumbnails: bool = False
    retry: bool = False


class WorkItem(Struct, frozen=True):
    """An image to fetch, and its link as the lake has it."""

    key: ImageKey
    url: str


class WorkCounts(Struct, frozen=True):
    """The selected images: to fetch, stored, not found or refused before, and without a link in the lake."""

    to_fetch: int
    stored: int
    not_found: int
    refused: int
    without_link: int
    selected: int


class WorkList:
    """The work as a temporary table of a connection to the catalog: memory does not grow with the links."""

    def __init__(self, lake: duckdb.DuckDBPyConnection, selection: ImageSelection) -> None:
        """Select the uploads. Raises `SettingsError` for wrong SQL."""
        self._lake = lake
        self._selection = selection
        self._next = 0
        create_chosen_table(lake, selection.where)

    def select(self) -> WorkCounts:
        """Select the images by what the lake has of them, and return their numbers."""
        self._create_selected_table()
        counts = dict(self._lake.execute("SELECT fate, count(*) FROM selected_image GROUP BY fate").fetchall())
        names = ("to_fetch", "stored", "not_found", "refused", "without_link")
        return WorkCounts(**{name: counts.get(name, 0) for name in names}, selected=sum(counts.values()))

    def next_page(self) -> list[WorkItem]:
        """Return the next images to fetch, by file; none at the end."""
        first, self._next = self._next, self._next + _PAGE_ROWS
        rows = self._lake.execute(
            "WITH page AS (FROM selected_image WHERE fate = 'to_fetch' AND number > $first AND number <= $last)"
            " SELECT file_id, upload_id, kind, any_value(nullif(link, '')) FROM page JOIN upload_links"
            " USING (file_id, upload_id, kind)"
            " WHERE file_id BETWEEN (SELECT min(file_id) FROM page) AND (SELECT max(file_id) FROM page)"
            " GROUP BY ALL ORDER BY 1, 2, 3",
            {"first": first, "last": self._next},
        ).fetchall()
        return [WorkItem(ImageKey(file_id, upload, ImageKind(kind)), link) for file_id, upload, kind, link in rows]

    def _create_selected_table(self) -> None:
        lake, selection = self._lake, self._selection
        selects = [
            f"SELECT file_id, id AS upload_id, '{kind}' AS kind, {LINK_KEYS[kind]} AS link,"
            " _fetched_at AS listed_at FROM uploads JOIN files USING (file_id)"
            for kind in ImageKind
            if selection.thumbnails or kind is ImageKind.IMAGE
        ]
        known = "false" if selection.retry else "known.state IN ('not_found', 'refused')"
        lake.execute(f"CREATE TEMP VIEW upload_links AS {' UNION ALL '.join(selects)}")
        lake.execute(
            "CREATE TEMP TABLE selected_image AS WITH links AS (SELECT file_id, upload_id, kind,"
            "  max(coalesce(link, '') <> '') AS has_link, max(listed_at) AS listed_at FROM upload_links GROUP BY ALL)"
            " SELECT links.file_id, links.upload_id, links.kind, CASE"
            "  WHEN known.state = 'stored' THEN 'stored'"
            "  WHEN links.upload_id IS NULL OR NOT has_link THEN 'without_link'"
            f"  WHEN {known} AND NOT listed_at > known.fetched_at THEN known.state"
            "  ELSE 'to_fetch' END AS fate,"
            " row_number() OVER (PARTITION BY fate ORDER BY links.file_id, links.upload_id, links.kind) AS number"
            " FROM links SEMI JOIN chosen_upload AS chosen ON links.file_id = chosen.file_id"
            "  AND links.upload_id IS NOT DISTINCT FROM chosen.upload_id"
            " LEFT JOIN images AS known ON known.file_id = links.file_id"
            "  AND known.upload_id = links.upload_id AND known.kind = links.kind"
        )


def create_chosen_table(lake: duckdb.DuckDBPyConnection, where: str | None) -> None:
    """Select uploads into the temporary table `chosen_upload`. Raises `SettingsError` for wrong SQL."""
    query = "SELECT DISTINCT file_id, uploads.id AS upload_id FROM uploads JOIN files USING (file_id)"
    query += "" if where is None else f" WHERE ({where}\n)"
    with translate_query_errors("`scanlake tables uploads` lists the columns; write uploads.id or files.id."):
        check_query(lake, query)
        lake.execute(f"CREATE OR REPLACE TEMP TABLE chosen_upload AS {query}")
