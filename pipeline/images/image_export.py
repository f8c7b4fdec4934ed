"""Export of stored images: a folder to hand over, with checksums and a manifest that also names what is not there."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING, Any, Final

from pipeline.atomic_files import (
    FileLockedError,
    atomic_write,
    clone_file,
    fsync_dir,
    fsync_file,
    is_temp_file,
    lock_file,
    sha256_file,
    write_file,
)
from pipeline.csv_rows import format_csv_row
from pipeline.errors import LakeLockedError, SettingsError
from pipeline.images.work_list import create_chosen_table
from pipeline.lake.file_names import to_safe_part
from pipeline.lake.handover import MANIFEST, NO_LINK, SUMS, ExportedImages, format_sums, parse_sums
from pipeline.lake.layout import translate_os_errors
from pipeline.lake.reader import fetch_dicts

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    import duckdb

    from pipeline.lake.layout import LakeLayout

    Row = dict[str, Any]

MARKER: Final = ".scanlake-images"
_OWN_NAMES: Final = frozenset({MANIFEST.casefold(), SUMS.casefold()})
_MARKER_TEXT: Final = "An export of images; the next export may replace it.\n"
_COLUMNS: Final = (
    *("name", "file_id", "reference", "upload_id", "kind", "upload_type", "state", "reason", "sha256", "bytes"),
    *("mime", "width", "height", "taken_at", "latitude", "longitude", "fetched_at"),
)
_SELECTED: Final = "temp.selected_image"
_PAGE_ROWS: Final = 2_000


def select_images(lake: duckdb.DuckDBPyConnection, where: str | None, *, thumbnails: bool) -> Iterator[Row]:
    """Return the selected pictures of the published uploads, by reference. Raises `SettingsError` for wrong SQL.

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
        f" coalesce(i.state, {no_row} THEN '{NO_LINK}' ELSE 'missing' END) AS state,"
        f" coalesce(i.reason, CASE WHEN i.state IS NULL THEN {no_row} THEN 'the upload has no link'"
        " ELSE 'not downloaded: run `scanlake images`' END END) AS reason, i.sha256, i.bytes, i.mime,"
        " i.width, i.height, i.taken_at, i.latitude, i.longitude, i.fetched_at, i.path"
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


def export_images(layout: LakeLayout, rows: Iterable[Row], folder: Path) -> ExportedImages:
    """Copy the pictures, and write the manifest and the checksums. Every picture is compared with its hash first.

    They are no links: an edit of one would change the lake. SHA256SUMS exists only for a complete folder, and the
    marker has the names of an export that did not end. Raises `SettingsError` for a folder with other files, and
    `LakeLockedError` if another export writes to it.
    """
    result = ExportedImages(str(folder))
    with translate_os_errors(folder), _lock_folder(folder) as former, _open_manifest(folder) as manifest:
        paths, sums = _plan_names(layout, rows, result, manifest)
        _check_targets(folder, sums, former)
        write_file(folder / MARKER, _MARKER_TEXT + format_sums(former | sums))
        (folder / SUMS).unlink(missing_ok=True)
        # Before the new ones are written: where upper and lower case are equal, a former name may be a new one.
        _remove_former(folder, {name: sha256 for name, sha256 in former.items() if name not in sums})
        for name, sha256 in sums.items():
            _copy(layout.root / paths[name], folder / name, sha256, folder=folder)
        for path in {folder, *((folder / name).parent for name in sums)}:
            fsync_dir(path)
        _write_manifest(folder / MANIFEST, manifest)
        sums[MANIFEST] = sha256_file(folder / MANIFEST)
        write_file(folder / SUMS, format_sums(sums))
        write_file(folder / MARKER, _MARKER_TEXT)
    return result


@contextmanager
def _lock_folder(folder: Path) -> Iterator[dict[str, str]]:
    """Create the folder, lock it, and yield the names and hashes that former exports, also killed ones, have in it."""
    if folder.exists() and not folder.is_dir():
        raise SettingsError(f"--out {folder} is a file.", hint="Use a new folder.")
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with lock_file(folder):
            entries = [path.name for path in folder.iterdir()]
            if MARKER not in entries and any(not is_temp_file(folder / name) for name in entries):
                raise SettingsError(f"--out {folder} is not empty, and no export of images.", hint="Use a new folder.")
            _require_own_files(folder)
            former: dict[str, str] = {}
            for name in {MARKER, SUMS}.intersection(entries):
                former |= parse_sums((folder / name).read_text(encoding="utf-8"))
            former.pop(MANIFEST, None)
            for path in folder.rglob(".*.tmp"):
                if is_temp_file(path) and not path.is_symlink():
                    path.unlink(missing_ok=True)
            yield former
    except FileLockedError:
        hint = "Wait until it ends, or use another folder."
        raise LakeLockedError(f"Another export writes to {folder}.", hint=hint) from None


def _require_own_files(folder: Path) -> None:
    """Raise `SettingsError` if a file with a name of the export itself was not written by one."""
    for name in (MARKER, MANIFEST, SUMS):
        path = folder / name
        if os.path.lexists(path) and (path.is_symlink() or not path.is_file() or not _is_of_export(path)):
            raise SettingsError(f"{path} is not of an export.", hint="Move it, or use a new folder.")


def _is_of_export(path: Path) -> bool:
    text = path.read_text(encoding="utf-8", errors="replace")
    if path.name == SUMS:
        return MANIFEST in parse_sums(text)
    return text.startswith(_MARKER_TEXT if path.name == MARKER else format_csv_row(_COLUMNS))


def _open_manifest(folder: Path) -> IO[str]:
    """Return the next manifest, a file without a name until the folder is complete."""
    return tempfile.TemporaryFile("w+", dir=folder, encoding="utf-8", newline="")


def _write_manifest(target: Path, manifest: IO[str]) -> None:
    manifest.seek(0)
    with atomic_write(target) as temp, temp.open("x", encoding="utf-8", newline="") as file:
        shutil.copyfileobj(manifest, file)


def _plan_names(
    layout: LakeLayout, rows: Iterable[Row], result: ExportedImages, manifest: IO[str]
) -> tuple[dict[str, str], dict[str, str]]:
    """Return path and hash of each picture to export, by name. Count all, and write the lines of the manifest."""
    paths: dict[str, str] = {}
    sums: dict[str, str] = {}
    used = set(_OWN_NAMES)
    manifest.write(format_csv_row(_COLUMNS))
    for row in rows:
        name = None
        if row["path"] and _is_intact(layout.root / row["path"], row["sha256"]):
            name = choose_name(row, (layout.root / row["path"]).suffix, used)
            paths[name], sums[name] = row["path"], row["sha256"]
            result.exported += 1
            result.bytes += row["bytes"]
        else:
            if row["path"]:
                row |= {"state": "damaged", "reason": "not in the lake as it was stored: run `scanlake check`"}
            if row["state"] != NO_LINK:
                result.missing[row["state"]] = result.missing.get(row["state"], 0) + 1
        manifest.write(format_csv_row([name, *(_to_cell(row[column]) for column in _COLUMNS[1:])]))
    return paths, sums


def _to_cell(value: Any) -> Any:
    return f"{value.isoformat()}Z" if hasattr(value, "isoformat") else value


def _is_intact(path: Path, sha256: str) -> bool:
    try:
        return not path.is_symlink() and path.is_file() and sha256_file(path) == sha256
    except OSError:
        return False


def choose_name(row: Row, extension: str, used: set[str]) -> str:
    """Return the name of a picture below the folder, and add it to `used`: REFERENCE/TYPE-POSITION.

    It is valid on every system, where upper and lower case may be equal.
    """
    reference = _to_safe_part(str(row["reference"] or row["file_id"])) or "_"
    stem = f"{reference}/{_to_safe_part('-'.join(str(row[key] or '') for key in ('upload_type', 'position')))}"
    number, name = 1, f"{stem}{extension}"
    while name.casefold() in used:
        number += 1
        name = f"{stem}-{number}{extension}"
    used.add(name.casefold())
    return name


def _to_safe_part(text: str) -> str:
    name = to_safe_part(text)
    return f"_{name}" if name.casefold() in _OWN_NAMES else name


def _check_targets(folder: Path, names: Iterable[str], former: Iterable[str]) -> None:
    """Raise `SettingsError` if a file that no export has written has the name of a picture, or a link one of a folder.

    A link would lead elsewhere.
    """
    known = {name.casefold() for name in former}
    for name in names:
        _refuse_link(folder, folder / name)
        if name.casefold() not in known and os.path.lexists(folder / name):
            raise SettingsError(f"{folder / name} is not of an export.", hint="Move it, or use a new folder.")


def _refuse_link(folder: Path, target: Path) -> None:
    """Raise `SettingsError` if a picture or its folder is a link."""
    for path in (target.parent, target):
        if path != folder and path.is_symlink():
            raise SettingsError(f"{path} is a link.", hint="Remove it, or use a new folder.")


def _copy(source: Path, target: Path, sha256: str, *, folder: Path) -> None:
    """Copy a picture, unless a former export has. A link of a former export is no copy."""
    _refuse_link(folder, target)
    target.parent.mkdir(exist_ok=True)
    if _is_intact(target, sha256) and target.stat().st_nlink == 1:
        return
    with translate_os_errors(target), atomic_write(target, durable=False) as temp:
        clone_file(source, temp)
        fsync_file(temp)


def _remove_former(folder: Path, former: Mapping[str, str]) -> None:
    """Delete the pictures of former exports that are not selected any more. A changed file stays."""
    root = folder.resolve()
    for name, sha256 in former.items():
        path = folder / name
        if not path.parent.resolve().is_relative_to(root):
            continue
        if _is_intact(path, sha256):
            path.unlink(missing_ok=True)
        if path.parent != folder:
            with suppress(OSError):  # not empty, or not there
                path.parent.rmdir()
