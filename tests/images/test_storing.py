"""Worker processes that store pictures: side by side, killed in the middle of one, and not available at all."""

from __future__ import annotations

import hashlib
import io
import os
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("PIL", reason="the extra is not installed")

from PIL import Image

from pipeline.errors import StorageError
from pipeline.images.image_writer import StoringPool
from pipeline.lake.image_store import CompleteDownload, ImageKey, ImageKind, IncomingFile, incoming_folder
from pipeline.lake.layout import LakeLayout
from tests.processes import children_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pipeline.images.storing import StoreResult


def _picture(color: int) -> bytes:
    target = io.BytesIO()
    Image.new("RGB", (40 + color, 30), (color, 0, 0)).save(target, "JPEG")
    return target.getvalue()


def _download(layout: LakeLayout, name: str, body: bytes) -> CompleteDownload:
    """A complete download whose body is a JPEG."""
    path = layout.root / "images" / "incoming" / name
    path.write_bytes(body)
    key = ImageKey(1, 1, ImageKind.IMAGE)
    return CompleteDownload(path, key, hashlib.sha256(body).hexdigest(), len(body), "image/jpeg", "jpg", 0)


@contextmanager
def _pool(folder: Path) -> Iterator[tuple[StoringPool, LakeLayout]]:
    layout = LakeLayout(folder)
    incoming_folder(layout).mkdir(parents=True)
    pool = StoringPool(layout)
    try:
        yield pool, layout
    finally:
        pool.close()


def _sizes(result: StoreResult) -> list[object]:
    return [content if isinstance(content, str) else content.width for content in result.contents]


def test_workers_side_by_side_store_each_content_once(tmp_path: Path) -> None:
    """Eight batches at once with the same contents give each content one file, and one batch calls it new."""
    with _pool(tmp_path) as (pool, layout):
        batches = [
            tuple(_download(layout, f"{batch}-{color}", _picture(color)) for color in range(12)) for batch in range(8)
        ]
        with ThreadPoolExecutor(8) as threads:
            results = list(threads.map(pool.store, batches))
    assert [_sizes(result) for result in results] == [[40 + color for color in range(12)]] * 8
    names = [name for result in results for name in result.new]
    assert sorted(names) == sorted(file.name for file in batches[0])
    for color, file in enumerate(batches[0]):
        assert (tmp_path / file.name).read_bytes() == _picture(color)


def test_a_picture_that_ends_its_worker_is_refused_alone(tmp_path: Path) -> None:
    """A worker that is killed twice over one picture costs that picture; the others of its batch are stored."""
    earlier = set(children_of(os.getpid()))
    with _pool(tmp_path) as (pool, layout):
        files = [_download(layout, str(color), _picture(color)) for color in range(3)]
        files[1].path.unlink()
        os.mkfifo(files[1].path)
        open_end = os.open(files[1].path, os.O_RDWR)  # whoever reads it waits, with the file open
        with ThreadPoolExecutor(1) as thread:
            work = thread.submit(pool.store, tuple(files))
            killed: set[int] = set()
            deadline = time.monotonic() + 60
            while not work.done() and time.monotonic() < deadline:
                for child in set(children_of(os.getpid())) - earlier - killed:
                    if _has_open(child, files[1].path):
                        os.kill(child, signal.SIGKILL)
                        killed.add(child)
                time.sleep(0.01)
            os.close(open_end)
            result = work.result(timeout=1)
        assert len(killed) == 2, "once with the others, once alone"
        assert _sizes(result) == [40, "decoding it ended the process (exit code -9)", 42]
        assert result.new == {files[0].name, files[2].name}
        assert _sizes(pool.store((_download(layout, "later", _picture(9)),))) == [49]
    assert set(children_of(os.getpid())) <= earlier


def _has_open(pid: int, path: Path) -> bool:
    """Whether a worker has the file open. Before its program starts it has what this process has open."""
    with suppress(OSError):  # the process, or a file of it, may end while it is looked at
        process = Path(f"/proc/{pid}")
        if b"pipeline.images.storing" in (process / "cmdline").read_bytes():
            return any(handle.readlink() == path for handle in (process / "fd").iterdir())
    return False


def test_another_content_in_the_place_of_a_picture_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It gets another name. A system that refuses processes is an error of the machine, in one line."""
    with _pool(tmp_path) as (pool, layout):
        file = _download(layout, "1", _picture(1))
        target = tmp_path / file.name
        target.parent.mkdir()
        target.write_bytes(b"other content")
        with monkeypatch.context() as patch:
            patch.setattr(sys, "executable", str(tmp_path / "missing"))
            with pytest.raises(StorageError):
                pool.store((file,))
        assert _sizes(pool.store((file,))) == [41]
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


def test_a_worker_that_cannot_write_says_so(tmp_path: Path) -> None:
    """An error of the disk in a worker is a `StorageError` of the run; later the same download is stored."""
    with _pool(tmp_path) as (pool, layout):
        file = _download(layout, "1", _picture(1))
        folder = (layout.root / file.name).parent
        folder.write_text("no folder")
        with pytest.raises(StorageError, match=f"images/{folder.name}"):
            pool.store((file,))
        folder.unlink()
        assert pool.store((file,)).new == {file.name}
    assert (tmp_path / file.name).read_bytes() == _picture(1)
