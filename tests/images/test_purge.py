"""Erasure of images."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline.errors import ExitCode
from tests.images.image_harness import files_in, rows_of, scene

if TYPE_CHECKING:
    from pathlib import Path


async def test_purge_erases_the_pictures_that_no_other_file_has(tmp_path: Path) -> None:
    """A purged file leaves no row and no picture of its own; pictures that others have stay."""
    async with scene(tmp_path, 15, duplicate_ratio=0.5, duplicate_pictures=3) as here:
        assert (await here.fetch("--thumbnails")).code == ExitCode.OK
        rows = rows_of(here.lake)
        purged = max({key[0] for key in rows}, key=lambda file_id: sum(key[0] == file_id for key in rows))
        own = {row["path"] for key, row in rows.items() if key[0] == purged}
        shared = {row["path"] for key, row in rows.items() if key[0] != purged}
        assert own - shared
        assert own & shared
        left = here.lake / "images" / "incoming" / f"{purged}.1.image.{'0' * 64}"
        left.write_bytes(b"of a killed run")
        assert (await here.run("purge", str(purged), "--yes")).code == ExitCode.OK
        assert not any(key[0] == purged for key in rows_of(here.lake))
        assert files_in(here.lake).keys() == shared
        counted = await here.run("query", f"SELECT count(*) FROM images WHERE file_id = {purged}", "--format", "csv")
        assert counted.out.split()[-1] == "0"
        assert (await here.run("check", "--read-data", "--json")).json["ok"] is True
