"""Export of stored images: a folder to hand over, with checksums and a manifest that also names what is not there."""

from __future__ import annotations

import os
import re
import shutil
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pipeline.atomic_files import fsync_dir, fsync_file, is_temp_file, sha256_file, temp_name, write_file
from pipeline.csv_rows import format_csv_row
from pipeline.errors import SettingsError
from pipeline.lake.file_names import RESERVED_NAMES, cut_text, safe_filename
from pipeline.lake.layout import translate_os_errors
from pipeline.lake.reader import fetch_dicts
from pipeline.lake.user_query import check_query, translate_query_errors

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    import duckdb

    from pipeline.lake.layout import LakeLayout

DEFAULT_NAME: Final = "{reference}/{upload_type}-{position}"
MARKER: Final = ".scanlake-images"
MANIFEST: Final = "manifest.csv"
SUMS: Final = "SHA256SUMS"
_FIELDS: Final = ("reference", "upload_type", "position", "file_id", "upload_id", "kind")
_MAX_PART_BYTES: Final = 150  # of 255: a number, the extension and the name of a temporary file need room
_MAX_PART_CHARACTERS: Final = 100
_LINE: Final = re.compile(r"([0-9a-f]{64})  (.+)")
_COLUMNS: Final = (
    *("name", "file_id", "reference", "upload_id", "kind", "upload_type", "state", "reason", "sha256", "bytes"),
    *("mime", "width", "height", "taken_at", "latitude", "longitude", "fetched_at"),
)
_DAMAGED: Final = "damaged"


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
    """Yield the selected pictures of the published uploads, by reference. Raises `SettingsError` for wrong SQL."""
    if not lake.execute("SELECT 1 FROM duckdb_tables() WHERE table_name = 'images'").fetchall():
        raise SettingsError("The lake has no images.", hint="Run `scanlake images` first.")
    chosen = "SELECT uploads.file_id, uploads.id AS upload_id FROM uploads JOIN files USING (file_id)"
    chosen += f" WHERE ({where}\n)" if where is not None else ""
    kinds = "('image', 'thumbnail')" if thumbnails else "('image')"
    with translate_query_errors("`scanlake tables uploads` lists the columns; write uploads.id or files.id."):
        check_query(lake, chosen)
        sql = (
            f"WITH chosen AS (SELECT DISTINCT file_id, upload_id FROM ({chosen}\n))"
            " SELECT u.file_id, f.scan_code AS reference, u.id AS upload_id, kinds.kind, u.upload_type, u.position,"
            " coalesce(i.state, 'missing') AS state, i.reason, i.sha256, i.bytes, i.mime, i.width, i.height,"
            " i.taken_at, i.latitude, i.longitude, i.fetched_at, i.path"
            " FROM chosen JOIN uploads AS u ON u.file_id = chosen.file_id AND u.id = chosen.upload_id"
            " JOIN files AS f ON f.file_id = u.file_id"
            f" CROSS JOIN (SELECT unnest(['image', 'thumbnail']) AS kind) AS kinds"
            " LEFT JOIN images AS i ON i.file_id = u.file_id AND i.upload_id = u.id AND i.kind = kinds.kind"
            f" WHERE kinds.kind IN {kinds} ORDER BY reference, u.file_id, u.position, u.id, kinds.kind"
        )
        yield from fetch_dicts(lake, sql)


def export_images(
    layout: LakeLayout, rows: Sequence[dict[str, Any]], folder: Path, pattern: str, *, copies: bool
) -> ExportResult:
    """Write the pictures, the manifest and the checksums. Every picture is compared with its hash first.

    SHA256SUMS is written last, so it exists only for a complete folder. Raises `SettingsError` for a folder with other
    files.
    """
    result, missing = ExportResult(str(folder)), Counter[str]()
    former = _open_folder(folder)
    sums: dict[str, str] = {}
    names = _Names()
    lines = [format_csv_row(_COLUMNS)]
    for row in rows:
        source = layout.root / row["path"] if row["path"] else None
        if source is not None and not _is_intact(source, row["sha256"]):
            row |= {"state": _DAMAGED, "reason": "not in the lake as it was stored: run `scanlake images --verify`"}
            source = None
        name = None
        if source is not None:
            name = names.choose(pattern, row, source.suffix)
            sums[name] = row["sha256"]
            way = _put(source, folder / name, row["sha256"], copies=copies)
            setattr(result, way, getattr(result, way) + 1)
            result.exported += 1
            result.bytes += row["bytes"]
        else:
            missing[row["state"]] += 1
        lines.append(format_csv_row([name, *(_to_cell(row[column]) for column in _COLUMNS[1:])]))
    _remove_former(folder, {name: sha256 for name, sha256 in former.items() if name not in sums})
    with translate_os_errors(folder):
        write_file(folder / MANIFEST, "".join(lines))
        sums[MANIFEST] = sha256_file(folder / MANIFEST)
        for path in {folder, *((folder / name).parent for name in sums)}:
            fsync_dir(path)
        write_file(folder / SUMS, "".join(f"{sha256}  {name}\n" for name, sha256 in sorted(sums.items())))
    result.missing = dict(missing)
    return result


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
        self._used: set[str] = {MANIFEST.casefold(), SUMS.casefold()}

    def choose(self, pattern: str, row: dict[str, Any], extension: str) -> str:
        """Return the name of a picture, with `/` between folders."""
        values = {key: "" if row[key] is None else str(row[key]) for key in _FIELDS}
        values["reference"] = values["reference"] or values["file_id"]
        parts = [_to_safe_part(part, values) for part in pattern.split("/")]
        stem = "/".join(filter(None, parts)) or values["upload_id"]
        number, name = 1, f"{stem}{extension}"
        while name.casefold() in self._used:
            number += 1
            name = f"{stem}-{number}{extension}"
        self._used.add(name.casefold())
        return name


def _to_safe_part(part: str, values: dict[str, str]) -> str:
    text = re.sub(r"\{([^{}]*)\}", lambda match: values[match[1]], part)
    name = cut_text(safe_filename(text), _MAX_PART_CHARACTERS, _MAX_PART_BYTES).strip(".- ")
    return f"_{name}" if name.partition(".")[0].upper() in RESERVED_NAMES else name


def _open_folder(folder: Path) -> dict[str, str]:
    """Create the folder, and return the names and hashes of a former export in it, which is incomplete from now on."""
    with translate_os_errors(folder):
        if folder.exists() and not folder.is_dir():
            raise SettingsError(f"--out {folder} is a file.", hint="Use a new folder.")
        entries = [path.name for path in folder.iterdir()] if folder.exists() else []
        if entries and MARKER not in entries:
            raise SettingsError(f"--out {folder} is not empty, and no export of images.", hint="Use a new folder.")
        folder.mkdir(parents=True, exist_ok=True)
        former: dict[str, str] = {}
        with suppress(FileNotFoundError):
            lines = map(_LINE.fullmatch, (folder / SUMS).read_text(encoding="utf-8").splitlines())
            former = {line[2]: line[1] for line in lines if line is not None and line[2] != MANIFEST}
        write_file(folder / MARKER, "An export of images; the next export may replace it.\n")
        (folder / SUMS).unlink(missing_ok=True)
        for path in folder.rglob(".*.tmp"):
            if is_temp_file(path) and not path.is_symlink():
                path.unlink(missing_ok=True)
    return former


def _put(source: Path, target: Path, sha256: str, *, copies: bool) -> str:
    """Link or copy a picture. Return "linked", "copied", or "unchanged" for a file of a former export."""
    with translate_os_errors(target):
        _create_folders(target)
        if _is_intact(target, sha256):
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


def _create_folders(target: Path) -> None:
    """Create the folders of a name. A link in the place of one is refused: it would lead elsewhere."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.parent.is_symlink():
        raise SettingsError(f"{target.parent} is a link.", hint="Remove it, or use a new folder.")


def _remove_former(folder: Path, former: dict[str, str]) -> None:
    """Delete the pictures of a former export that are not selected any more. A changed file stays."""
    root = folder.resolve()
    for name, sha256 in former.items():
        path = folder / name
        if path.resolve().is_relative_to(root) and _is_intact(path, sha256):
            with translate_os_errors(path):
                path.unlink(missing_ok=True)
                with suppress(OSError):
                    path.parent.rmdir()  # if it is empty now
