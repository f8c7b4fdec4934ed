"""The pictures' final names: complete downloads are flushed to the disk and linked. Knows nothing of the ledger.

Worker processes use this module, so it imports little.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Final

from pipeline.atomic_files import damaged_name, rename_without_overwrite, sha256_file
from pipeline.lake.layout import translate_os_errors

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from pipeline.lake.layout import LakeLayout

_FLUSHED_TOGETHER: Final = 64
IMAGES: Final = "images"
"""Name of the folder in the lake."""
INCOMING: Final = "incoming"
"""Name of the folder in it where downloads arrive."""
_IMAGE: Final = re.compile(rf"{IMAGES}/[0-9a-f]{{2}}/[0-9a-f]{{62}}\.[a-z0-9]+")
COMPLETE: Final = re.compile(r"(-?\d{1,19})\.(-?\d{1,19})\.(image|thumbnail)\.([0-9a-f]{64})")
"""A complete download: file, upload, kind and hash."""


class ImageFiles:
    """The folder of the pictures. The caller has the lake's lock, or works for the process that has it."""

    def __init__(self, layout: LakeLayout) -> None:
        self._layout = layout
        self._folders: set[Path] = set()

    def add(self, downloads: Mapping[str, tuple[Path, str]]) -> set[str]:
        """Give complete downloads their final names too, durably; {name: (file, hash)}. Return the names that are new.

        The others were in the store before. A file under a name with another content is renamed, never overwritten.
        """
        targets = {name: self._layout.root / name for name in downloads}
        folders = {target.parent for target in targets.values()}
        self._layout.create_dirs(folders - self._folders)
        self._folders |= folders
        flush_files([path for path, _ in downloads.values()])
        new = {name for name, (path, sha256) in downloads.items() if _link(path, targets[name], sha256)}
        flush_files(sorted(folders))  # those of a killed run's names are perhaps not durable either
        return new


def _link(path: Path, target: Path, sha256: str) -> bool:
    """Give a file its final name too. Return False if the store has the content under it."""
    with translate_os_errors(target):
        while True:
            try:
                _link_or_rename(path, target)
            except FileExistsError:
                if target.is_file() and not target.is_symlink() and sha256_file(target) == sha256:
                    return False
                move_damaged(target)
            else:
                return True


def _link_or_rename(path: Path, target: Path) -> None:
    try:
        target.hardlink_to(path)
    except FileExistsError:
        raise
    except OSError:  # no hard links: a kill now costs this download again
        rename_without_overwrite(path, target)


def flush_files(paths: Sequence[Path]) -> None:
    """Wait until files or folders are on the disk.

    The disk begins with all of them before the first is waited for: one after the other took seven times as long.
    """
    for first in range(0, len(paths), _FLUSHED_TOGETHER):
        handles: list[int] = []
        try:
            for path in paths[first : first + _FLUSHED_TOGETHER]:
                with translate_os_errors(path):
                    handles.append(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
                    _begin_to_flush(handles[-1])
            for path, handle in zip(paths[first:], handles, strict=False):
                with translate_os_errors(path):
                    os.fsync(handle)
        finally:
            for handle in handles:
                os.close(handle)


def _begin_to_flush(handle: int) -> None:
    if hasattr(os, "posix_fadvise"):  # not on macOS
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)


def remove_files(paths: Iterable[Path]) -> None:
    """Remove complete downloads that are in the store or are not wanted."""
    for path in paths:
        with translate_os_errors(path):
            path.unlink(missing_ok=True)


def move_damaged(path: Path) -> Path:
    """Rename a file of the store with another content than its name, and return its new path."""
    target = path.with_name(damaged_name(path.name))
    with translate_os_errors(path):
        return path.rename(target)


# Names


def name_image(sha256: str, extension: str) -> str:
    """Return the path of a picture below the lake's folder."""
    return f"{IMAGES}/{sha256[:2]}/{sha256[2:]}.{extension}"


def is_image_folder(name: str) -> bool:
    """Return whether a name in the folder of images is that of a folder of scanlake."""
    return name == INCOMING or re.fullmatch("[0-9a-f]{2}", name) is not None


def is_image_path(path: str) -> bool:
    """Return whether a path below the lake's folder is that of an image. No such path leads out of the folder."""
    return _IMAGE.fullmatch(path) is not None


def is_strange_incoming(name: str) -> bool:
    """Return whether a path below the lake's folder is where downloads arrive, but no complete download."""
    folder, _, file = name.rpartition("/")
    return folder == f"{IMAGES}/{INCOMING}" and COMPLETE.fullmatch(file) is None
