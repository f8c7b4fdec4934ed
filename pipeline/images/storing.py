"""Stores complete downloads: decoded, flushed, named. Also the worker of `storing_pool`, which does nothing else.

The module knows neither ledger nor service: it receives files, and returns what is in them. It imports little, because
a worker is to start soon.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from pipeline.images.decoding import ImageContent, UndecodableError, read_content
from pipeline.lake.image_files import ImageFiles
from pipeline.lake.layout import LakeLayout
from pipeline.worker_process import serve

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pipeline.lake.image_store import CompleteDownload


class StoreResult(Struct, frozen=True):
    """Message from a worker: the content of each file, in their order, or why it is refused; the names that are new."""

    contents: tuple[ImageContent | str, ...] = ()
    new: frozenset[str] = frozenset()


def store_files(store: ImageFiles, files: Sequence[CompleteDownload]) -> StoreResult:
    """Store files. Raises `StorageError`. What is refused gets no final name; its file stays."""
    contents = tuple(map(_read, files))
    accepted = {
        file.name: (file.path, file.sha256)
        for file, content in zip(files, contents, strict=True)
        if isinstance(content, ImageContent)
    }
    return StoreResult(contents, frozenset(store.add(accepted)))


def _read(file: CompleteDownload) -> ImageContent | str:
    try:
        return read_content(file.path, file.mime)
    except UndecodableError as error:
        return str(error)


def main(root: str) -> None:
    """Answer requests from stdin until it is closed."""
    store = ImageFiles(LakeLayout(Path(root)))
    serve(lambda files: store_files(store, files))
