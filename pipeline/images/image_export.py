"""Export of stored images: a folder to hand over, with checksums and a manifest that also names what is not there."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections import Counter
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any, Final, NamedTuple

from pipeline.atomic_files import (
    FileLockedError,
    atomic_write,
    fsync_dir,
    fsync_file,
    is_temp_file,
    lock_file,
    sha256_file,
    temp_name,
    write_file,
)
from pipeline.csv_rows import format_csv_row
from pipeline.errors import LakeLockedError, SettingsError
from pipeline.lake.file_names import RESERVED_NAMES, cut_text, safe_filename
from pipeline.lake.handover import MANIFEST, NO_LINK, SUMS, parse_sums
from pipeline.lake.layout import translate_os_errors
from pipeline.lake.reader import fetch_dicts
from pipeline.lake.user_query import check_query, translate_query_errors

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    import duckdb

    from pipeline.lake.layout import LakeLayout

DEFAULT_NAME: Final = "{reference}/{upload_type}-{position}"
MARKER: Final = ".scanlake-images"
_OWN_NAMES: Final = frozenset({MANIFEST.casefold(), SUMS.casefold()})
_MARKER_TEXT: Final = "An export of images; the next export may replace it.\n"
_FIELDS: Final = ("reference", "upload_type", "position", "file_id", "upload_id", "kind")
_MAX_PART_BYTES: Final = 150  # of 255: a number, the extension and the name of a temporary file need room
_MAX_PART_CHARACTERS: Final = 100
_COLUMNS: Final = (
    *("name", "file_id", "reference", "upload_id", "kind", "upload_type", "state", "reason", "sha256", "bytes"),
    *("mime", "width", "height", "taken_at", "latitude", "longitude", "fetched_at"),
)
_DAMAGED: Final = "damaged"
_SELECTED: Final = "temp.selected_image"
_PAGE_ROWS: Final = 2_000


@dataclass(slots=True)
class ExportResult:
    """Result of an export; the object that `--json` prints. `missing` counts pictures without a file, by state."""

    folder: str
    exported: int = 0
    linked: int = 0
    copied: int = 0
    unchanged: int = 0
    bytes: int = 0
    missing: dict[str, int] = field(default_factory=dict)


def validate_name(pattern: str) -> str:
    """Return the pattern of the names. Raises `SettingsError` for an unknown field."""
    unknown = [name for name in re.findall(r"\{([^{}]*)\}", pattern) if name not in _FIELDS]
    if unknown or re.search(r"[{}]", re.sub(r"\{[^{}]*\}", "", pattern)) or not pattern.strip("/ "):
        fields = ", ".join(f"{{{name}}}" for name in _FIELDS)
        hint = f"Use {fields}, and / for folders."
        raise SettingsError(f"--name {pattern}: unknown field, or no name.", hint=hint)
    return pattern


def select_images(lake: duckdb.DuckDBPyConnection, where: str | None, *, thumbnails: bool) -> Iterator[dict[str, Any]]:
    """Return the selected pictures of the published uploads, by reference. Raises `SettingsError` for wrong SQL.

    They are in a temporary table, because there can be very many. Read them before the connection is closed.
    """
    if not lake.execute("SELECT 1 FROM duckdb_tables() WHERE table_name = 'images'").fetchall():
        raise SettingsError("The lake has no images.", hint="Run `scanlake images` first.")
    chosen = "SELECT uploads.file_id, uploads.id AS upload_id FROM uploads JOIN files USING (file_id)"
    chosen += f" WHERE ({where}\n)" if where is not None else ""
    kinds = "('image', 'thumbnail')" if thumbnails else "('image')"
    no_row = "CASE WHEN coalesce(if(kinds.kind = 'image', u.image_url, u.image_thumb), '') = ''"
    with translate_query_errors("`scanlake tables uploads` lists the columns; write uploads.id or files.id."):
        check_query(lake, chosen)
        sql = (
            f"CREATE OR REPLACE TEMP TABLE {_SELECTED} AS"
            f" WITH chosen AS (SELECT DISTINCT file_id, upload_id FROM ({chosen}\n))"
            " SELECT u.file_id, f.scan_code AS reference, u.id AS upload_id, kinds.kind, u.upload_type, u.position,"
            f" coalesce(i.state, {no_row} THEN '{NO_LINK}' ELSE 'missing' END) AS state,"
            f" coalesce(i.reason, CASE WHEN i.state IS NULL THEN {no_row} THEN 'the upload has no link'"
            " ELSE 'not downloaded: run `scanlake images`' END END) AS reason, i.sha256, i.bytes, i.mime,"
            " i.width, i.height, i.taken_at, i.latitude, i.longitude, i.fetched_at, i.path"
            " FROM chosen JOIN uploads AS u ON u.file_id = chosen.file_id AND u.id = chosen.upload_id"
            " JOIN files AS f ON f.file_id = u.file_id"
            f" CROSS JOIN (SELECT unnest(['image', 'thumbnail']) AS kind) AS kinds"
            " LEFT JOIN images AS i ON i.file_id = u.file_id AND i.upload_id = u.id AND i.kind = kinds.kind"
            f" WHERE kinds.kind IN {kinds} ORDER BY reference, u.file_id, u.position, u.id, kinds.kind"
        )
        lake.execute(sql)
    return _iter_selected(lake)


def _iter_selected(lake: duckdb.DuckDBPyConnection) -> Iterator[dict[str, Any]]:
    first = 0
    while rows := fetch_dicts(
        lake, f"SELECT * FROM {_SELECTED} WHERE rowid >= ? AND rowid < ? ORDER BY rowid", first, first + _PAGE_ROWS
    ):
        yield from rows
        first += _PAGE_ROWS


class _Picture(NamedTuple):
    """A picture to export: its name, and what the lake has. The path is below the lake's folder."""

    name: str
    path: str
    sha256: str
    bytes: int


def export_images(
    layout: LakeLayout, rows: Iterable[dict[str, Any]], folder: Path, pattern: str, *, copies: bool
) -> ExportResult:
    """Write the pictures, the manifest and the checksums. Every picture is compared with its hash first.

    SHA256SUMS exists only for a complete folder. Raises `SettingsError` for a folder with other files, and
    `LakeLockedError` if another export writes to it.
    """
    result, missing = ExportResult(str(folder)), Counter[str]()
    with _lock_folder(folder) as former, _open_manifest(folder) as manifest:
        pictures = _plan_names(layout, rows, pattern, missing, manifest)
        sums = {picture.name: picture.sha256 for picture in pictures}
        _check_targets(folder, sums, former)
        _begin(folder, former | set(sums.items()))
        # Before the new ones are written: where upper and lower case are equal, a former name may be a new one.
        _remove_former(folder, [(name, sha256) for name, sha256 in former if name not in sums])
        for picture in pictures:
            source, target = layout.root / picture.path, folder / picture.name
            way = _put(source, target, picture.sha256, folder=folder, copies=copies)
            setattr(result, way, getattr(result, way) + 1)
            result.exported += 1
            result.bytes += picture.bytes
        with translate_os_errors(folder):
            _finish(folder, sums, manifest)
    result.missing = dict(missing)
    return result


@contextmanager
def _open_manifest(folder: Path) -> Iterator[IO[str]]:
    """Yield the next manifest, a file without a name until the folder is complete."""
    with ExitStack() as stack:
        with translate_os_errors(folder):
            file = stack.enter_context(tempfile.TemporaryFile("w+", dir=folder, encoding="utf-8", newline=""))
        yield file


def _plan_names(
    layout: LakeLayout, rows: Iterable[dict[str, Any]], pattern: str, missing: Counter[str], manifest: IO[str]
) -> list[_Picture]:
    """Return the pictures to export, and write the lines of the manifest. Count the others by state."""
    names = _Names()
    pictures: list[_Picture] = []
    with translate_os_errors(layout.root):
        manifest.write(format_csv_row(_COLUMNS))
        for row in rows:
            source = layout.root / row["path"] if row["path"] else None
            if source is not None and not _is_intact(source, row["sha256"]):
                row |= {"state": _DAMAGED, "reason": "not in the lake as it was stored: run `scanlake images --verify`"}
                source = None
            name = None
            if source is not None:
                name = names.choose(pattern, row, source.suffix)
                pictures.append(_Picture(name, row["path"], row["sha256"], row["bytes"]))
            else:
                missing[row["state"]] += 1
            manifest.write(format_csv_row([name, *(_to_cell(row[column]) for column in _COLUMNS[1:])]))
    return pictures


def _begin(folder: Path, known: Iterable[tuple[str, str]]) -> None:
    """Note in the marker what the folder has or will have, so that the export after a killed one can remove it.

    The checksums of a former export go, and the temporary files of killed ones.
    """
    with translate_os_errors(folder):
        write_file(folder / MARKER, _MARKER_TEXT + "".join(_format_sum(*item) for item in sorted(known)))
        (folder / SUMS).unlink(missing_ok=True)
        for path in folder.rglob(".*.tmp"):
            if is_temp_file(path) and not path.is_symlink():
                path.unlink(missing_ok=True)


def _finish(folder: Path, sums: dict[str, str], manifest: IO[str]) -> None:
    """Write the manifest and then the checksums: the folder is complete."""
    _write_manifest(folder / MANIFEST, manifest)
    for path in {folder, *((folder / name).parent for name in sums)}:
        fsync_dir(path)
    sums = sums | {MANIFEST: sha256_file(folder / MANIFEST)}
    write_file(folder / SUMS, "".join(_format_sum(name, sha256) for name, sha256 in sorted(sums.items())))
    write_file(folder / MARKER, _MARKER_TEXT)


def _write_manifest(target: Path, manifest: IO[str]) -> None:
    manifest.seek(0)
    with atomic_write(target) as temp, temp.open("x", encoding="utf-8", newline="") as file:
        shutil.copyfileobj(manifest, file)


def _format_sum(name: str, sha256: str) -> str:
    return f"{sha256}  {name}\n"


def _to_cell(value: Any) -> Any:
    return f"{value.isoformat()}Z" if hasattr(value, "isoformat") else value


def _is_intact(path: Path, sha256: str) -> bool:
    try:
        return not path.is_symlink() and path.is_file() and sha256_file(path) == sha256
    except OSError:
        return False


class _Names:
    """Names that are valid on every system, each once: upper and lower case are equal on some."""

    def __init__(self) -> None:
        self._used = set(_OWN_NAMES)

    def choose(self, pattern: str, row: dict[str, Any], extension: str) -> str:
        """Return the name of a picture, with `/` between folders."""
        values = {key: "" if row[key] is None else str(row[key]) for key in _FIELDS}
        values["reference"] = values["reference"] or values["file_id"]
        # An empty part is not left out: every name has as many folders, so none is a file and a folder.
        *folders, last = [_to_safe_part(part, values) for part in pattern.split("/") if part.strip()]
        stem = "/".join([*(part or "_" for part in folders), last or values["upload_id"]])
        number, name = 1, f"{stem}{extension}"
        while name.casefold() in self._used:
            number += 1
            name = f"{stem}-{number}{extension}"
        self._used.add(name.casefold())
        return name


def _to_safe_part(part: str, values: dict[str, str]) -> str:
    text = re.sub(r"\{([^{}]*)\}", lambda match: values[match[1]], part)
    name = cut_text(safe_filename(text), _MAX_PART_CHARACTERS, _MAX_PART_BYTES).strip(".- ")
    is_reserved = name.partition(".")[0].upper() in RESERVED_NAMES or name.casefold() in _OWN_NAMES
    return f"_{name}" if is_reserved else name


@contextmanager
def _lock_folder(folder: Path) -> Iterator[set[tuple[str, str]]]:
    """Create the folder, lock it, and yield the names and hashes that former exports, also killed ones, have in it."""
    with ExitStack() as stack:
        with translate_os_errors(folder):
            if folder.exists() and not folder.is_dir():
                raise SettingsError(f"--out {folder} is a file.", hint="Use a new folder.")
            folder.mkdir(parents=True, exist_ok=True)
            try:
                stack.enter_context(lock_file(folder))
            except FileLockedError:
                hint = "Wait until it ends, or use another folder."
                raise LakeLockedError(f"Another export writes to {folder}.", hint=hint) from None
            entries = [path.name for path in folder.iterdir()]
            if MARKER not in entries and any(not is_temp_file(folder / name) for name in entries):
                raise SettingsError(f"--out {folder} is not empty, and no export of images.", hint="Use a new folder.")
            former: set[tuple[str, str]] = set()
            for name in {MARKER, SUMS}.intersection(entries):
                former.update(parse_sums((folder / name).read_text(encoding="utf-8")))
            former = {item for item in former if item[0] != MANIFEST}
        yield former


def _check_targets(folder: Path, names: Iterable[str], former: Iterable[tuple[str, str]]) -> None:
    """Raise `SettingsError` if a file that no export has written has the name of a picture, or a link one of a folder.

    A link would lead elsewhere.
    """
    known = {name.casefold() for name, _ in former}
    checked: set[Path] = set()
    for name in names:
        _refuse_links(folder, folder / name, checked)
        if name.casefold() not in known and os.path.lexists(folder / name):
            raise SettingsError(f"{folder / name} is not of an export.", hint="Move it, or use a new folder.")


def _refuse_links(folder: Path, target: Path, checked: set[Path]) -> None:
    """Raise `SettingsError` if a folder between the export's and the file is a link. `checked` are known not to be."""
    for path in target.parents:
        if path == folder or path in checked:
            return
        if path.is_symlink():
            raise SettingsError(f"{path} is a link.", hint="Remove it, or use a new folder.")
        checked.add(path)


def _put(source: Path, target: Path, sha256: str, *, folder: Path, copies: bool) -> str:
    """Link or copy a picture. Return "linked", "copied", or "unchanged" for a file of a former export.

    A link of a former export is no copy: an edit of it would change the lake.
    """
    with translate_os_errors(target):
        _refuse_links(folder, target, set())
        target.parent.mkdir(parents=True, exist_ok=True)
        if _is_intact(target, sha256) and not (copies and target.stat().st_nlink > 1):
            return "unchanged"
        temp = target.with_name(temp_name(target.name))
        way = "copied"
        try:
            if not copies:
                with suppress(OSError):  # another file system, or one without links
                    os.link(source, temp)
                    way = "linked"
            if way == "copied":
                shutil.copyfile(source, temp)
                fsync_file(temp)
            temp.replace(target)
        finally:
            temp.unlink(missing_ok=True)
    return way


def _remove_former(folder: Path, former: Iterable[tuple[str, str]]) -> None:
    """Delete the pictures of former exports that are not selected any more. A changed file stays."""
    root = folder.resolve()
    for name, sha256 in former:
        path = folder / name
        if path.resolve().is_relative_to(root) and _is_intact(path, sha256):
            with translate_os_errors(path):
                path.unlink(missing_ok=True)
        if path.parent.resolve().is_relative_to(root):
            _remove_empty_folders(folder, path)


def _remove_empty_folders(folder: Path, path: Path) -> None:
    with suppress(OSError):  # the first that is not empty, or does not exist
        for parent in path.parents:
            if parent == folder:
                return
            parent.rmdir()
