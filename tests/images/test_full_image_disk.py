"""A disk that fills while images are stored."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from pipeline.errors import ExitCode
from tests.constants import set_constants
from tests.images.image_harness import disagreements, errors_of, files_in, require_whole, rows_of, scene
from tests.lake.operations import called
from tests.lake.test_full_disk import small_disk
from tests.soaking import sample

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["small_disk"]
_NO_RESERVE = set_constants({"pipeline.lake.storage.images._KEEP_FREE_BYTES": 0})


@pytest.mark.parametrize("room", sample((700_000, 20_000, 4_000_000), 1))
async def test_images_on_a_full_disk(small_disk: Path, room: int) -> None:
    """A full disk is exit code 7 and one line; no row names a file that is cut off, and the next run completes."""
    async with scene(small_disk, 20) as here:
        status, other = os.statvfs(small_disk), small_disk / "other"
        other.write_bytes(b"x" * (status.f_bavail * status.f_frsize - room))
        answer = await here.fetch(**_NO_RESERVE)
        assert (answer.code, len(errors_of(answer))) == (ExitCode.STORAGE, 1)
        assert "Traceback" not in "".join(answer.lines)
        other.unlink()
        named = {row["path"] for row in rows_of(here.lake).values() if row["state"] == "stored"}
        assert named <= files_in(here.lake).keys()
        assert [text for text in disagreements(here.lake, here.truth()) if not text.endswith("is in no row")] == []
        assert (await here.fetch(**_NO_RESERVE)).code == ExitCode.OK
        require_whole(here.lake, here.truth())
        found = called(here.lake, "check", "--read-data", "--json").json["findings"]
        assert not [finding for finding in found if finding["exit_code"] == ExitCode.DAMAGE]
