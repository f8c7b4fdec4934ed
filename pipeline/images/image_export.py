"""Export of stored images: a folder to hand over, with checksums and a manifest that also names what is not there."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct, field

from pipeline.errors import SettingsError
from pipeline.images.work_list import create_chosen_table
from pipeline.lake.storage.atomic_files import clone_file, sha256_file, write_file
from pipeline.output.csv import format_csv_row
from pipeline.output.handover import MANIFEST, SUMS, format_sums, to_safe_part
from pipeline.query.export import staging_path
from pipeline.query.reader import fetch_dicts

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    import duckdb

    from pipeline.lake.storage.layout import LakeLayout

    Row = dict[str, Any]

_OWN_NAMES: Final = frozenset({MANIFEST.casefold(), SUMS.casefold()})
_COLUMNS: Final = (
    *("name", "file_id", "reference", "upload_id", "kind", "upload_type", "state", "reason", "sha256", "bytes"),
    *("mime", "fetched_at"),
)
_SELECTED: Final = "temp.selected_image"
_PAGE_ROWS: Final = 2_000
_NO_LINK: Final = "unlinked"
"""State of an upload that has no link to an image, so none can be downloaded."""


class ExportedImages(Struct):
    """The images in a folder. `missing` counts those that are not there, by state.

    Uploads without a link have no image, so they are in the folder's manifest.csv, but not counted as missing.
    """

    folder: str
    exported: int = 0
    bytes: int = 0
    missing: dict[str, int] = field(default_factory=dict)


def select_images(lake: duckdb.DuckDBPyConnection, where: str | None, *, thumbnails: bool) -> Iterator[Row]:
    """Return the selected images of the published uploads, by reference. Raises `SettingsError` for wrong SQL.

    They are in a temporary table, because there can be very many. Read them before the connection is closed.
    """
    if not lake.execute("SELECT 1 FROM images LIMIT 1").fetchall():
        raise SettingsError("The lake has no images.", hint="Run `scanlake images` first.")
    create_chosen_table(lake, where)
    kinds = "('image', 'thumbnail')" if thumbnails else "('image')"
    no_row = "CASE WHEN coalesce(if(kinds.kind = 'image', u.image_url, u.image_thumb), '') = ''"
    lake.execute(
        f"CREATE OR REPLACE TEMP TABLE {_SELECTED} AS"
        " SELECT u.file_id, f.scan_code AS reference, u.id AS upload_id, kinds.kind, u.upload_type, u.position,"
        f" coalesce(i.state, {no_row} THEN '{_NO_LINK}' ELSE 'missing' END) AS state,"
        f" coalesce(i.reason, CASE WHEN i.state IS NULL THEN {no_row} THEN 'the upload has no link'"
        " ELSE 'not downloaded: run `scanlake images`' END END) AS reason, i.sha256, i.bytes, i.mime,"
        " i.fetched_at, i.path"
        " FROM chosen_upload AS chosen JOIN uploads AS u ON u.file_id = chosen.file_id AND u.id = chosen.upload_id"
        " JOIN files AS f ON f.file_id = u.file_id"
        " CROSS JOIN (SELECT unnest(['image', 'thumbnail']) AS kind) AS kinds"
        " LEFT JOIN images AS i ON i.file_id = u.file_id AND i.upload_id = u.id AND i.kind = kinds.kind"
        f" WHERE kinds.kind IN {kinds} ORDER BY reference, u.file_id, u.position, u.id, kinds.kind"
    )
    return _iter_selected(lake)


def _iter_selected(lake: duckdb.DuckDBPyConnection) -> Iterator[Row]:
    first = 0
    while rows := fetch_dicts(
        lake, f"SELECT * FROM {_SELECTED} WHERE rowid >= ? AND rowid < ? ORDER BY rowid", first, first + _PAGE_ROWS
    ):
        yield from rows
        first += _PAGE_ROWS


def export_images(layout: LakeLayout, rows: Iterable[Row], target: Path) -> ExportedImages:
    """Copy the images to the new folder `target`, with a manifest and checksums. It is complete or not there.

    They are no links: an edit of one would change the lake. A copy that is not what the lake stored is left out, and
    named. Raises `SettingsError` if the target exists, unless it is an empty folder.
    """
    result, sums, used = ExportedImages(str(target)), dict[str, str](), set(_OWN_NAMES)
    with staging_path(target) as folder:
        folder.mkdir()
        with (folder / MANIFEST).open("x", encoding="utf-8", newline="") as manifest:
            manifest.write(format_csv_row(_COLUMNS))
            for row in rows:
                name = _copy(layout, row, folder, used)
                if name is not None:
                    sums[name] = row["sha256"]
                    result.exported += 1
                    result.bytes += row["bytes"]
                elif row["state"] != _NO_LINK:
                    result.missing[row["state"]] = result.missing.get(row["state"], 0) + 1
                values = [row[column] for column in _COLUMNS[1:]]
                cells = [f"{value.isoformat()}Z" if hasattr(value, "isoformat") else value for value in values]
                manifest.write(format_csv_row([name, *cells]))
        sums[MANIFEST] = sha256_file(folder / MANIFEST)
        write_file(folder / SUMS, format_sums(sums))
    return result


def _copy(layout: LakeLayout, row: Row, folder: Path, used: set[str]) -> str | None:
    """Copy the image of a row, and return its name; None without an intact one, then the row has the reason."""
    if not row["path"]:
        return None
    source = layout.root / row["path"]
    name = choose_name(row, source.suffix, used)
    (folder / name).parent.mkdir(exist_ok=True)
    if source.is_file() and not source.is_symlink():
        clone_file(source, folder / name)
        if sha256_file(folder / name) == row["sha256"]:
            return name
        (folder / name).unlink()
    with suppress(OSError):  # not empty
        (folder / name).parent.rmdir()
    row |= {"state": "damaged", "reason": "changed or missing since it was stored: run `scanlake check`"}
    return None


def choose_name(row: Row, extension: str, used: set[str]) -> str:
    """Return the name of an image below the folder, and add it to `used`: REFERENCE/TYPE-POSITION.

    It is valid on every system, where upper and lower case may be equal.
    """
    reference = _to_safe_part(str(row["reference"] or row["file_id"])) or "_"
    kind = "-".join("" if row[key] is None else str(row[key]) for key in ("upload_type", "position"))
    stem = f"{reference}/{_to_safe_part(kind)}"
    number, name = 1, f"{stem}{extension}"
    while name.casefold() in used:
        number += 1
        name = f"{stem}-{number}{extension}"
    used.add(name.casefold())
    return name


def _to_safe_part(text: str) -> str:
    name = to_safe_part(text)
    return f"_{name}" if name.casefold() in _OWN_NAMES else name
