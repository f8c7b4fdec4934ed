"""The place of an export: written beside it, and renamed to it when complete. Nothing that is there is replaced."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import duckdb

from pipeline.atomic_files import rename_without_overwrite
from pipeline.errors import SettingsError
from pipeline.lake.duckdb_errors import write_error
from pipeline.lake.layout import translate_os_errors

if TYPE_CHECKING:
    from collections.abc import Iterator

_HINT: Final = "Use a name that does not exist, or an empty folder."
_TARGET_EXISTS_ERRNOS: Final = frozenset({errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR, errno.EISDIR})


@contextmanager
def staging_path(target: Path) -> Iterator[Path]:
    """Yield a new path beside `target` to write a file or a folder to; rename it to `target` afterwards.

    An export that is killed leaves a hidden folder `.NAME-….tmp` beside the target.
    Raises `SettingsError` if the target exists, unless it is an empty folder, and `StorageError` if the disk is full.
    """
    with translate_os_errors(target):
        target = Path(os.path.realpath(target))
        _require_free(target)
        target.parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f".{target.name}-", suffix=".tmp", dir=target.parent))
        try:
            yield folder / target.name
            _rename(folder / target.name, target)
        except duckdb.Error as error:
            if failure := write_error(target.name, error):
                raise failure from error
            raise
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _require_free(target: Path) -> None:
    if target.is_dir() and not any(target.iterdir()):
        return
    if target.exists():
        raise SettingsError(f"{target} {'is not empty' if target.is_dir() else 'exists'}.", hint=_HINT)


def _rename(path: Path, target: Path) -> None:
    """Rename without replacing anything but an empty folder, also if another process is faster."""
    try:
        if not path.is_dir():
            rename_without_overwrite(path, target)
            return
        if target.is_dir():
            path.chmod(target.stat().st_mode)
        path.rename(target)
    except OSError as error:
        if error.errno == errno.EBUSY:
            raise SettingsError(f"{target} is a mount point.", hint="Use a new folder in it.") from error
        if error.errno in _TARGET_EXISTS_ERRNOS:
            raise SettingsError(f"Another process filled {target} during the export.", hint=_HINT) from error
        raise
