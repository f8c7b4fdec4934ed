"""Storing of complete downloads: batches side by side, what is in the way, and a disk that fails."""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from pipeline.errors import StorageError
from pipeline.images.image_writer import ImageSummary, ImageWriter
from pipeline.lake.lake import Lake
from pipeline.lake.storage.images import CompleteDownload, ImageKey, ImageKind, IncomingFile
from tests.images.image_harness import rows_of, states_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def _picture(number: int) -> bytes:
    return b"picture %d" % number


def _download(writer: ImageWriter, upload: int, body: bytes) -> CompleteDownload:
    """A complete download."""
    file = IncomingFile(writer.incoming)
    file.write(body)
    return file.finish(ImageKey(1, upload, ImageKind.IMAGE), "image/jpeg", "jpg")


@contextmanager
def _writing(folder: Path) -> Iterator[tuple[ImageWriter, ImageSummary]]:
    with Lake(folder, doing="test") as lake:
        writer = ImageWriter(lake, summary := ImageSummary())
        lake.layout.create_dirs([writer.incoming.parent, writer.incoming])
        yield writer, summary
    assert list(writer.incoming.iterdir()) == []


def test_batches_side_by_side_store_each_content_once(tmp_path: Path) -> None:
    """Eight batches at once with the same contents give each content one file, and one batch calls it new."""
    with _writing(tmp_path) as (writer, summary):
        batches = [
            [_download(writer, batch * 12 + number, _picture(number)) for number in range(12)] for batch in range(8)
        ]
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(writer.write, batches))
    assert (summary.stored, summary.duplicates, summary.bytes) == (96, 84, sum(len(_picture(n)) for n in range(12)))
    assert states_of(tmp_path) == {"stored": 96}
    for number, file in enumerate(batches[0]):
        assert (tmp_path / file.name).read_bytes() == _picture(number)


def test_another_content_in_the_place_of_a_picture_is_kept(tmp_path: Path) -> None:
    """It gets another name."""
    with _writing(tmp_path) as (writer, _):
        file = _download(writer, 1, _picture(1))
        target = tmp_path / file.name
        target.parent.mkdir()
        target.write_bytes(b"other content")
        writer.write([file])
    assert target.read_bytes() == _picture(1)
    assert [kept.read_bytes() for kept in target.parent.glob("*.damaged-*")] == [b"other content"]


def test_a_large_body_that_is_asked_for_again(tmp_path: Path) -> None:
    """After an attempt that broke off, the file of a large picture has just the bytes of the next one."""
    file, bodies = IncomingFile(tmp_path), (b"a" * 3_000_000, b"b" * 2_000_001)
    for body in bodies:
        file.reset()
        for start in range(0, len(body), 65_536):
            file.write(body[start : start + 65_536])
    done = file.finish(ImageKey(1, 1, ImageKind.IMAGE), "image/jpeg", "jpg")
    assert (done.sha256, done.bytes) == (hashlib.sha256(bodies[1]).hexdigest(), 2_000_001)
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [bodies[1]]
    assert done.path.exists()


def test_a_file_that_cannot_be_removed_is_a_fault_of_the_disk(tmp_path: Path) -> None:
    """Before another attempt, too: the client would take an `OSError` for the network, and blame the image host."""
    file = IncomingFile(tmp_path)
    file.write(b"half")
    (path,) = tmp_path.iterdir()
    path.unlink()
    path.mkdir()
    with pytest.raises(StorageError):
        file.reset()


def test_a_store_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    """An error of the disk is a `StorageError` of the run, and no row; later the same download is stored."""
    with _writing(tmp_path) as (writer, _):
        file = _download(writer, 1, _picture(1))
        folder = (tmp_path / file.name).parent
        folder.write_text("no folder")
        with pytest.raises(StorageError, match=f"images/{folder.name}"):
            writer.write([file])
        assert rows_of(tmp_path) == {}
        folder.unlink()
        writer.adopt()
        assert states_of(tmp_path) == {}, "an adopted file must begin as a picture"
    assert not (tmp_path / file.name).exists()
