"""A disk that fills while images are stored, by worker processes too."""

from __future__ import annotations

import hashlib
import os
import subprocess
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from pipeline.errors import ExitCode, StorageError
from pipeline.images.storing_pool import StoringPool
from pipeline.lake.image_records import ImageKey, ImageKind
from pipeline.lake.image_store import CompleteDownload, ImageStore
from pipeline.lake.layout import LakeLayout
from tests.constants import set_constants
from tests.images.image_harness import Scene, disagreements, errors_of, files_in, rows_of, scene, stored
from tests.lake.operations import called
from tests.lake.test_full_disk import small_disk

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["small_disk"]
_NO_RESERVE = set_constants({"pipeline.lake.image_store._KEEP_FREE_BYTES": 0})


def _free(folder: Path) -> int:
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize


async def _fetch_on_full_disk(here: Scene, disk: Path, room: int) -> None:
    """Fetch with room for so many bytes, then with all of the disk."""
    other = disk / "other"
    other.write_bytes(b"x" * (_free(disk) - room))
    answer = await here.fetch(**_NO_RESERVE)
    assert answer.code == ExitCode.STORAGE, answer.lines
    assert len(errors_of(answer)) == 1
    assert "Traceback" not in "".join(answer.lines)
    other.unlink()
    named = {row["path"] for row in rows_of(here.lake).values() if row["state"] == "stored"}
    assert named <= files_in(here.lake).keys()
    assert [text for text in disagreements(here.lake, here.truth()) if not text.endswith("is in no row")] == []


@pytest.mark.parametrize(
    "room", [700_000, *(pytest.param(room, marks=pytest.mark.soak) for room in (20_000, 4_000_000))]
)
async def test_images_on_a_full_disk(small_disk: Path, room: int) -> None:
    """A full disk is exit code 7 and one line; no row names a file that is cut off, and the next run completes."""
    async with scene(small_disk, 20) as here:
        await _fetch_on_full_disk(here, small_disk, room)
        assert (await here.fetch(**_NO_RESERVE)).code == ExitCode.OK
        assert stored(here.lake) == set(here.truth())
        assert disagreements(here.lake, here.truth()) == []
        found = called(here.lake, "check", "--read-data", "--json").json["findings"]
        assert not [finding for finding in found if finding["exit_code"] == ExitCode.DAMAGE]


def test_a_worker_on_a_full_disk_says_so(tmp_path: Path) -> None:
    """A worker that cannot create a folder is a `StorageError` of the run; with room the same download is stored."""
    disk = tmp_path / "few"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "nr_inodes=40", "tmpfs", str(disk)], check=False).returncode != 0:
        pytest.skip("needs the right to mount")
    try:
        layout = LakeLayout(disk / "lake")
        layout.root.mkdir()
        ImageStore(layout).prepare()
        body = b"%PDF-1.4 " + b"x" * 100
        path, key = layout.root / "images" / "incoming" / "1", ImageKey(1, 1, ImageKind.IMAGE)
        path.write_bytes(body)
        file = CompleteDownload(path, key, hashlib.sha256(body).hexdigest(), len(body), "application/pdf", "pdf", 0)
        others = [disk / f"other-{number}" for number in range(60)]
        with suppress(OSError):
            for other in others:
                other.touch()
        pool = StoringPool(layout)
        try:
            with pytest.raises(StorageError, match="No space") as raised:
                pool.store((file,))
            assert "images" in raised.value.message
            for other in others:
                other.unlink(missing_ok=True)
            assert pool.store((file,)).new == {file.name}
        finally:
            pool.close()
        assert (layout.root / file.name).read_bytes() == body
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)
