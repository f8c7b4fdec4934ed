"""Stores complete downloads: decoded, flushed, named. Also the worker of `storing_pool`, which does nothing else.

The module knows neither ledger nor service: it receives files, and returns what is in them. It imports little, because
a worker is to start soon.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from pipeline.images.decoding import ImageContent, UndecodableError, read_content
from pipeline.lake.image_files import ImageFiles, remove_files
from pipeline.lake.image_names import name_image
from pipeline.lake.layout import LakeLayout
from pipeline.worker_process import serve


class FileToStore(NamedTuple):
    """A complete download: its file and hash, the type of its content, and the extension of its final name."""

    path: Path
    sha256: str
    mime: str
    extension: str

    @property
    def name(self) -> str:
        """The final name, below the lake's folder."""
        return name_image(self.sha256, self.extension)


@dataclass(frozen=True, slots=True)
class StoreRequest:
    """Message to a worker: complete downloads to store, and files to remove."""

    files: tuple[FileToStore, ...] = ()
    to_remove: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True)
class StoreResult:
    """Message from a worker: the content of each file, in their order, or why it is refused; the names that are new."""

    contents: tuple[ImageContent | str, ...]
    new: frozenset[str]


def store_files(store: ImageFiles, request: StoreRequest) -> StoreResult:
    """Do what the request asks for. Raises `StorageError`. What is refused gets no final name; its file stays."""
    remove_files(request.to_remove)
    contents = tuple(map(_read, request.files))
    accepted = {
        file.name: (file.path, file.sha256)
        for file, content in zip(request.files, contents, strict=True)
        if isinstance(content, ImageContent)
    }
    return StoreResult(contents, frozenset(store.add(accepted)))


def _read(file: FileToStore) -> ImageContent | str:
    try:
        return read_content(file.path, file.mime)
    except UndecodableError as error:
        return str(error)


def main(root: str) -> None:
    """Answer requests from stdin until it is closed."""
    store = ImageFiles(LakeLayout(Path(root)))
    serve(lambda request: store_files(store, request))
