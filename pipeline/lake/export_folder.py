"""The folder of an export: written beside its place, moved when it is complete, or put in the place of a former one.

A folder that did not exist before is complete. If the target is an existing folder, the files are moved into it: it may
be a mount point or a link. An export that may be replaced has a record of its entries: nothing else is ever removed.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import tempfile
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import duckdb

from pipeline.atomic_files import FileLockedError, lock_file, write_file
from pipeline.errors import SettingsError
from pipeline.lake.duckdb_errors import write_error
from pipeline.lake.layout import translate_os_errors
from pipeline.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

RECORD_NAME: Final = "export.json"
_STAGING_PREFIX: Final = ".scanlake-export-"
_STAGING_NAME_RE: Final = re.compile(re.escape(_STAGING_PREFIX) + "[a-z0-9_]{8}")  # as `mkdtemp` makes them
_UNLOCKED_PREFIX: Final = ".scanlake-new-"
_STAGED: Final = "export"
_FORMER: Final = "former"
_TARGET_EXISTS_ERRNOS: Final = frozenset({errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR})


@dataclass(frozen=True, slots=True)
class ExportRecord:
    """Contents of an export: snapshot, options, rows by table, and the names of its files and folders.

    An export that was killed while it was replaced is not `complete`.
    """

    snapshot: int
    options: Mapping[str, Any]
    rows: Mapping[str, int]
    entries: tuple[str, ...] = ()
    complete: bool = True
    version: str = __version__


def read_record(target: Path) -> ExportRecord | None:
    """Return the record of an export; None if the folder has none."""
    try:
        record = json.loads((target / RECORD_NAME).read_bytes())
        return ExportRecord(**record | {"entries": tuple(record["entries"])})
    except (OSError, ValueError, TypeError, KeyError):
        return None


def write_record(folder: Path, record: ExportRecord) -> None:
    """Write the record of an export to its folder, with the names that the folder has."""
    entries = sorted(path.name for path in folder.iterdir())
    (folder / RECORD_NAME).write_text(_encode(replace(record, entries=tuple(entries))), encoding="utf-8")


def _encode(record: ExportRecord) -> str:
    return json.dumps(asdict(record), indent=1) + "\n"


@contextmanager
def staging_folder(target: Path, *, replaces: bool) -> Iterator[Path]:
    """Yield a folder to fill, and move it to `target` afterwards. `replaces`: also in the place of a former export.

    Raises `SettingsError` if the target has other files, `StorageError` if the disk is full.
    """
    with translate_os_errors(target), ExitStack() as stack:
        target = Path(os.path.realpath(target))
        target.parent.mkdir(parents=True, exist_ok=True)
        parent = _create_staging_folder(target, stack, replaces=replaces)
        try:
            folder = parent / _STAGED  # a subfolder, because only the owner can open the folder of `mkdtemp`
            folder.mkdir()
            yield folder
            if replaces and (former := read_record(target)) is not None:
                _replace_entries(folder, target, former)
            else:
                _move_into_place(folder, target)
        except duckdb.Error as error:
            if failure := write_error(target.name, error):
                raise failure from error
            raise
        finally:
            shutil.rmtree(parent, ignore_errors=True)


def _create_staging_folder(target: Path, stack: ExitStack, *, replaces: bool) -> Path:
    """Remove what killed exports left beside or in `target`, and create a folder that is locked as long as `stack`."""
    parent = target if target.is_dir() else target.parent
    for folder in parent.glob(f"{_STAGING_PREFIX}*"):
        _remove_if_unlocked(folder)
    _check_entries(target, replaces=replaces)
    unlocked = Path(tempfile.mkdtemp(prefix=_UNLOCKED_PREFIX, dir=parent))
    stack.enter_context(lock_file(unlocked))
    # Only a locked folder gets the name by which other exports find those of killed ones.
    return unlocked.rename(unlocked.with_name(_STAGING_PREFIX + unlocked.name.removeprefix(_UNLOCKED_PREFIX)))


def _remove_if_unlocked(folder: Path) -> None:
    """Remove the folder of a killed export: its process has released the lock."""
    with suppress(OSError, FileLockedError):
        if _is_staging_folder(folder):
            with lock_file(folder):
                shutil.rmtree(folder)


def _is_staging_folder(path: Path) -> bool:
    """Return whether an export made the folder: others can have similar names."""
    if not _STAGING_NAME_RE.fullmatch(path.name) or path.is_symlink() or not path.is_dir():
        return False
    return {entry.name for entry in path.iterdir()} <= {_STAGED, _FORMER}


def _check_entries(target: Path, *, replaces: bool) -> None:
    """Raise `SettingsError` if the target has anything that the export must not replace."""
    if not target.exists():
        return
    entries = list(target.iterdir()) if target.is_dir() else [target]
    record = read_record(target) if replaces else None
    own = {RECORD_NAME, *record.entries} if record else set()
    others = [path for path in entries if path.name not in own]
    if others and all(map(_is_staging_folder, others)):
        raise SettingsError(
            f"{target} contains {others[0].name} of an export that is running.",
            hint="Wait until it ends, or use another folder.",
        )
    if others and record:
        raise SettingsError(
            f"{target} has {others[0].name}, which is not of the export.", hint="Move it, or use another folder."
        )
    if others and replaces:
        raise SettingsError(
            f"{target} has files, and no {RECORD_NAME} of an export with --replace.",
            hint="Use a folder that is empty, does not exist, or was exported with --replace.",
        )
    if entries and not replaces:
        hint = f"Use a folder that is empty or does not exist{', or --replace' if read_record(target) else ''}."
        raise SettingsError(f"{target} is not empty.", hint=hint)


def _replace_entries(folder: Path, target: Path, former: ExportRecord) -> None:
    """Move a complete export to the place of a former one in the folder `target`: entry by entry, the record last."""
    entries = sorted(path.name for path in folder.iterdir() if path.name != RECORD_NAME)
    known = tuple(sorted({*former.entries, *entries}))
    write_file(target / RECORD_NAME, _encode(replace(former, entries=known, complete=False)), durable=False)
    old = folder.parent / _FORMER
    old.mkdir()
    for name in former.entries:
        if os.path.lexists(target / name):
            (target / name).rename(old / name)
    for name in (*entries, RECORD_NAME):
        (folder / name).rename(target / name)


def _move_into_place(folder: Path, target: Path) -> None:
    """Rename the complete export. Raises `SettingsError` if another process has filled `target`."""
    is_inside = folder.parent.parent == target
    is_filled = is_inside and len(list(target.iterdir())) > 1
    if not is_filled:
        try:
            for path in sorted(folder.iterdir()) if is_inside else [folder]:
                path.rename(target / path.name if is_inside else target)
        except OSError as error:
            if error.errno not in _TARGET_EXISTS_ERRNOS:
                raise
            is_filled = True
    if is_filled:
        raise SettingsError(f"Another process filled {target} during the export.", hint="Use another folder.")
