"""A disk that fills, a loss of power, random faults and kills: rows, store and truth agree after all of them."""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import signal
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from pipeline.errors import ExitCode
from pipeline.images.image_writer import ImageSummary, ImageWriter
from pipeline.lake.lake import Lake
from pipeline.lake.storage import images
from pipeline.lake.storage.images import ImageKey, ImageKind, IncomingFile
from tests.constants import set_constants
from tests.images.image_harness import disagreements, errors_of, files_in, require_whole, rows_of, scene
from tests.lake.operations import called
from tests.lake.powerloss import LEDGER, losses, recorded
from tests.lake.test_full_disk import small_disk
from tests.lake.test_power_loss import write
from tests.processes import ended, started
from tests.soaking import SOAKING, sample

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


_BATCHES = 3
_IMAGES = 6


def _store_images(folder: Path) -> None:
    """Three batches; each has a content of the batch before."""
    with Lake(folder, doing="test") as lake:
        writer = ImageWriter(lake, ImageSummary())
        lake.layout.create_dirs([writer.incoming.parent, writer.incoming])
        for batch in range(_BATCHES):
            downloads = []
            for number in range(batch * (_IMAGES - 1), batch * (_IMAGES - 1) + _IMAGES):
                file = IncomingFile(writer.incoming)
                file.write(b"%PDF-1.4\n" + b"%d " % number * 50)
                downloads.append(file.finish(ImageKey(batch, number, ImageKind.IMAGE), "application/pdf", "pdf"))
            writer.write(downloads)


def _read_rows(folder: Path, ledger: bytes | None) -> list[tuple[str, str]]:
    """The path and the hash of each stored image."""
    path = folder / "read.sqlite"
    path.write_bytes(ledger or b"")
    with closing(sqlite3.connect(path)) as db:
        if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'image'").fetchall():
            return []
        return db.execute("SELECT path, sha256 FROM image WHERE state = 'stored'").fetchall()


def _read_store(lake: Path) -> list[tuple[str, bytes]]:
    """Each stored image; damaged ones that were renamed do not count."""
    paths = [path for path in sorted((lake / "images").glob("??/*")) if ".damaged-" not in path.name]
    return [(path.relative_to(lake).as_posix(), path.read_bytes()) for path in paths]


def test_every_stored_row_has_its_file_after_a_loss_of_power(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a loss of power at any moment each row's file is there with its hash, and the next run repairs the rest."""
    monkeypatch.setattr(images, "_KEEP_FREE_BYTES", 0)
    lake = tmp_path / "lake"
    with recorded(lake) as log:
        _store_images(lake)
    counts, opened = set[int](), 0
    for end, tree in losses(log, alone=4):
        rows = _read_rows(tmp_path, tree.get(LEDGER))
        counts.add(len(rows))
        for path, sha256 in rows:
            content = tree.get(path)
            assert content is not None, f"after {end} of {len(log.done)}: {path} is missing"
            assert hashlib.sha256(content).hexdigest() == sha256, f"after {end} of {len(log.done)}: {path}"
        if rows and end % 5 == 0:
            opened += 1
            again = tmp_path / f"again-{opened}"
            write(again, tree)
            _store_images(again)
            assert _read_store(again) == _read_store(lake)
    assert counts == {0, *(_IMAGES * batch for batch in range(1, _BATCHES + 1))}
    assert opened > 5


_RATIOS = ("removed_ratio", "broken_ratio", "html_ratio", "huge_ratio", "slow_ratio")
_FAULTS = ("refuse", "500", "503", "drop-mid-body", "cut-length", "html")
_ROUNDS = 4 if SOAKING else 3
_ENVIRONMENT = set_constants(
    {"pipeline.client.client.MAX_ATTEMPTS": 2, "pipeline.client.image_client._MAX_BYTES": 500_000}
)


def _draw(rng: random.Random) -> tuple[dict[str, Any], dict[str, float]]:
    """Options of the pictures, and faults of their host."""
    ratios = {name: rng.choice((0.0, 0.0, 0.1)) for name in _RATIOS}
    broken = rng.choice(("cut-close", "cut-length", "cut-json"))
    faults = {rng.choice(_FAULTS): rng.choice((0.05, 0.2)) for _ in range(rng.randrange(3))}
    return {**ratios, "broken": broken}, faults


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.soak)])
async def test_rows_store_and_truth_agree_after_any_run(tmp_path: Path, seed: int) -> None:
    """Runs with random faults, some of them killed, never store a wrong byte; a quiet run then has everything."""
    rng = random.Random(seed)
    async with scene(tmp_path, 12 if SOAKING else 8, huge_bytes=1_000_000, slow_seconds=0.05) as here:
        for _ in range(_ROUNDS):
            options, faults = _draw(rng)
            here.host.set_options(**options)
            here.host.set_faults(probabilities=faults, retry_after="absent")
            process = await started(here.emulator, here.lake, "images", "--retry", **_ENVIRONMENT)
            if rng.random() < 0.5:
                enough = here.host.counts.total() + rng.randrange(40)
                while process.returncode is None and here.host.counts.total() < enough:
                    await asyncio.sleep(0.005)
                if process.returncode is None:
                    process.send_signal(signal.SIGKILL)
            await ended(process)
            found = [text for text in disagreements(here.lake, here.truth()) if not text.endswith("is in no row")]
            assert found == [], (options, faults)
        here.host.set_options(**dict.fromkeys(_RATIOS, 0.0))
        here.host.set_faults(probabilities={})
        assert (await here.fetch("--retry")).code == ExitCode.OK
        require_whole(here.lake, here.truth())
        assert set(rows_of(here.lake)) == set(here.truth())
        assert called(here.lake, "check", "--read-data", "--json").json["ok"] is True
