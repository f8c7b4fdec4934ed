"""The names and paths of a lake's files, and how the files are written."""

from __future__ import annotations

import re
import shutil
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from pipeline.errors import StorageError
from pipeline.lake.storage.atomic_files import (
    PINNED,
    READ_ONLY,
    atomic_write,
    fsync_dir,
    is_temp_file,
    pin_folder,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

_PART_FOLDER_RE: Final = re.compile(r"documents|tables/\w+", re.ASCII)
_PART_NAME_RE: Final = re.compile(r"\d{12}-[0-9a-f]{6}(-\d{4})?\.parquet")
_SNAPSHOT_NAME_RE: Final = re.compile(r"\d{6,}\.duckdb")
IMAGES: Final = "images"
"""Name of the folder in the lake."""
INCOMING: Final = "incoming"
"""Name of the folder in it where downloads arrive."""
_IMAGE: Final = re.compile(rf"{IMAGES}/[0-9a-f]{{2}}/[0-9a-f]{{62}}\.[a-z0-9]+")
COMPLETE: Final = re.compile(r"(-?\d{1,19})\.(-?\d{1,19})\.(image|thumbnail)\.([0-9a-f]{64})")
"""A complete download: file, upload, kind and hash."""


class LakeLayout(Struct, frozen=True):
    """Paths of everything in a lake's folder. `root` is absolute."""

    root: Path

    @property
    def catalog(self) -> Path:
        """Path of the database that analysts open."""
        return self.root / "catalog.duckdb"

    @property
    def ledger(self) -> Path:
        """Path of the ledger, which only scanlake opens."""
        return self.root / "ledger.sqlite"

    @property
    def lock(self) -> Path:
        """Path of the file that a writing run locks."""
        return self.root / "LOCK"

    @property
    def documents_dir(self) -> Path:
        """Folder of the documents as received."""
        return self.root / "documents"

    @property
    def spill_dir(self) -> Path:
        """Folder of DuckDB's temporary files. A run that starts deletes them."""
        return self.root / "spill"

    def remove_spill(self) -> None:
        """Delete the temporary files, as far as possible, and their folder if it is empty then."""
        with suppress(OSError):
            for path in self.spill_dir.iterdir():
                if is_temp_file(path):
                    shutil.rmtree(path, ignore_errors=True)
                    with suppress(OSError):  # such as a folder that could not be deleted
                        path.unlink(missing_ok=True)
            self.spill_dir.rmdir()

    def table_dir(self, table: str) -> Path:
        """Return the folder of a table's parts."""
        return self.root / "tables" / table

    def snapshot_path(self, number: int) -> Path:
        """Return the path of a kept catalog."""
        return self.root / "snapshots" / f"{number:06d}.duckdb"

    def part_path(self, name: str) -> Path:
        """Return the path of a part. The ledger names parts by their path below the lake's folder."""
        return self.root / name

    def part_name(self, path: Path) -> str:
        """Return the name of the part, or of another file, at `path`."""
        return path.relative_to(self.root).as_posix()

    def folders(self, tables: Iterable[str]) -> list[Path]:
        """Return the folders in the lake's folder."""
        return [self.root / "tables", self.documents_dir, self.root / "snapshots", *map(self.table_dir, tables)]

    def create_dirs(self, folders: Iterable[Path]) -> None:
        """Create the missing folders durably, because a part is only as durable as its folder."""
        missing = []
        for folder in folders:
            with translate_os_errors(folder):
                if not folder.is_dir():
                    try:
                        with pin_folder(folder, below=self.root):
                            missing.append(folder)
                    except (FileExistsError, NotADirectoryError):
                        hint = f"Move {folder} away, then run again."
                        raise StorageError(f"{folder}: Not a folder.", hint=hint) from None
        for parent in dict.fromkeys(folder.parent for folder in missing):
            with translate_os_errors(parent):
                fsync_dir(parent)


@contextmanager
def translate_os_errors(subject: Path) -> Iterator[None]:
    """Turn an `OSError` in the block into a `StorageError` about `subject`."""
    try:
        yield
    except OSError as error:
        subject = subject.resolve() if str(subject).startswith(PINNED) else subject
        raise StorageError.from_errno(str(subject), error.errno) from error


@contextmanager
def write_read_only(target: Path) -> Iterator[Path]:
    """Yield a temporary path; on success it replaces `target` durably and read-only. Raises `StorageError`."""
    with translate_os_errors(target), atomic_write(target, mode=READ_ONLY) as temp:
        yield temp


class Part(Struct, frozen=True):
    """A write-once Parquet file: its path below the lake's folder, its commits, its size and its hash."""

    name: str
    table_name: str
    first_commit_seq: int
    last_commit_seq: int
    row_count: int
    bytes: int
    sha256: str

    @property
    def span(self) -> tuple[int, int]:
        """First and last commit."""
        return self.first_commit_seq, self.last_commit_seq


def list_files(layout: LakeLayout, *patterns: str) -> list[Path]:
    """Return the files below the lake's folder that match a pattern."""
    return [path for pattern in patterns for path in layout.root.glob(pattern)]


def list_part_files(layout: LakeLayout) -> list[Path]:
    """Return the files whose names are those of parts."""
    return [path for path in list_files(layout, "tables/*/*", "documents/*") if is_part_name(path.name)]


def is_part_name(name: str) -> bool:
    """Return whether a file has the name of a part."""
    return _PART_NAME_RE.fullmatch(name) is not None


def is_part_path(path: str) -> bool:
    """Return whether a path below the lake's folder is that of a part. No such path leads out of the folder."""
    folder, _, name = path.rpartition("/")
    return _PART_FOLDER_RE.fullmatch(folder) is not None and is_part_name(name)


def list_snapshots(layout: LakeLayout) -> list[tuple[int, Path]]:
    """Return the kept snapshots with their numbers, oldest first."""
    files = [path for path in layout.root.glob("snapshots/*.duckdb") if _SNAPSHOT_NAME_RE.fullmatch(path.name)]
    return sorted((int(path.stem), path) for path in files)


# Images


def name_image(sha256: str, extension: str) -> str:
    """Return the path of an image below the lake's folder."""
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
