"""Images in backups: whole, erased with their files, and restored but for what is damaged."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from pipeline.atomic_files import sha256_file
from pipeline.errors import ExitCode, SettingsError
from pipeline.lake.lake import Lake
from pipeline.publish.backup import upload_backup
from pipeline.publish.object_store import open_store
from pipeline.publish.restore import restore_backup
from schemas.timestamps import now_us
from tests.images.image_harness import disagreements, errors_of, files_in, rows_of, scene, stored
from tests.processes import ended, started
from tests.publish.stopping_store import PublisherStopped, StoppingStore

if TYPE_CHECKING:
    from pathlib import Path

    from tests.publish.conftest import S3Server


async def test_a_backup_at_a_url_brings_every_image_back(tmp_path: Path) -> None:
    """A lake that is restored from a URL has every image; the next backup uploads only new ones."""
    async with scene(tmp_path, 15, duplicate_ratio=0.3, duplicate_pictures=3) as here:
        target, restored = tmp_path / "target", tmp_path / "restored"
        target.mkdir()
        bare = (await here.run("backup", target.as_uri(), "--json")).json
        assert (bare["images"], bare["images_copied"]) == (None, 0)
        assert (await here.fetch("--where", "files.file_id % 2 = 0")).code == ExitCode.OK
        first = (await here.run("backup", target.as_uri(), "--with-images", "--json")).json
        assert first["images"] == first["images_copied"] == len(files_in(here.lake)) > 0
        assert (await here.fetch()).code == ExitCode.OK
        second = (await here.run("backup", target.as_uri(), "--with-images", "--json")).json
        assert second["images"] == first["images"] + second["images_copied"] == len(files_in(here.lake))
        assert files_in(target) == files_in(here.lake)
        assert (await here.run("restore", target.as_uri(), str(restored))).code == ExitCode.OK
        assert disagreements(restored, here.truth()) == []
        assert stored(restored) == set(here.truth())
        assert rows_of(restored) == rows_of(here.lake)
        assert (await here.run("check", "--read-data", SCANLAKE_LAKE=str(restored))).code == ExitCode.OK


async def test_a_backup_without_images_names_none_and_keeps_none_of_a_purged_file(tmp_path: Path) -> None:
    """Without the option nothing is uploaded; a purged file's images are deleted, and those that are there restored."""
    async with scene(tmp_path, 12) as here:
        assert (await here.fetch()).code == ExitCode.OK
        target, bare, later = tmp_path / "target", tmp_path / "bare", tmp_path / "later"
        target.mkdir()
        assert (await here.run("backup", target.as_uri())).code == ExitCode.OK
        assert (await here.run("restore", target.as_uri(), str(bare))).code == ExitCode.OK
        assert rows_of(bare) == {}
        assert (await here.run("backup", target.as_uri(), "--with-images")).code == ExitCode.OK
        purged = min(key[0] for key in rows_of(here.lake))
        assert (await here.run("purge", str(purged), "--yes")).code == ExitCode.OK
        assert (await here.run("backup", target.as_uri())).code == ExitCode.OK
        assert files_in(target) == files_in(here.lake)
        assert (await here.run("restore", target.as_uri(), str(later))).code == ExitCode.OK
        assert rows_of(later) == rows_of(here.lake)
        assert files_in(later) == files_in(here.lake)


async def test_a_damaged_image_costs_itself_alone(tmp_path: Path) -> None:
    """Damage in the lake or in the backup is named with exit code 9; everything else is backed up and restored."""
    async with scene(tmp_path, 10) as here:
        assert (await here.fetch()).code == ExitCode.OK
        target, restored = tmp_path / "target", tmp_path / "restored"
        target.mkdir()
        names = sorted(files_in(here.lake))
        own = here.lake / names[0]
        whole = own.read_bytes()
        own.chmod(0o600)
        own.write_bytes(b"x" * len(whole))
        answer = await here.run("backup", target.as_uri(), "--with-images")
        assert (answer.code, len(errors_of(answer))) == (ExitCode.DAMAGE, 1)
        assert own.name in errors_of(answer)[0]
        assert files_in(target).keys() == set(names[1:])
        for path, content in ((target / names[1], b"x" * (target / names[1]).stat().st_size), (target / names[2], b"")):
            path.chmod(0o600)
            path.write_bytes(content)
        (target / names[3]).unlink()
        answer = await here.run("restore", target.as_uri(), str(restored), "--json")
        assert answer.code == ExitCode.DAMAGE
        assert answer.json["images_lost"] == {names[1]: "damaged", names[2]: "damaged", names[3]: "missing"}
        assert files_in(restored).keys() == set(names[4:])
        assert disagreements(restored, here.truth()) == []
        assert (await here.fetch(SCANLAKE_LAKE=str(restored))).code == ExitCode.OK
        assert stored(restored) == set(here.truth())
        own.write_bytes(whole)
        assert (await here.run("backup", target.as_uri(), "--with-images")).code == ExitCode.OK
        assert len((target / names[2]).read_bytes()) == len((here.lake / names[2]).read_bytes()), "replaced by its size"


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE image SET path = '../evil.jpg' WHERE path = (SELECT min(path) FROM image)",
        "UPDATE part SET name = 'parts/../../' || substr(name, 7) WHERE name LIKE 'parts/uploads/%'",
    ],
)
async def test_a_backup_writes_nothing_outside_of_the_lake(tmp_path: Path, statement: str) -> None:
    """A ledger in the backup whose names lead out of the lake is refused with one line, and no file is written."""
    async with scene(tmp_path, 5) as here:
        assert (await here.fetch()).code == ExitCode.OK
        target, restored = tmp_path / "target", tmp_path / "below" / "restored"
        assert (await here.run("backup", str(target), "--with-images")).code == ExitCode.OK
        [ledger] = target.glob("ledgers/*")
        ledger.chmod(0o600)
        with closing(sqlite3.connect(ledger)) as db, db:
            db.execute(statement)
        file = target / "backup.json"
        record = json.loads(file.read_text()) | {"ledger_sha256": sha256_file(ledger)}
        file.chmod(0o600)
        file.write_text(json.dumps(record))
        restored.mkdir(parents=True)
        answer = await here.run("restore", str(target), str(restored))
        assert (answer.code, len(errors_of(answer))) == (ExitCode.DAMAGE, 1), answer.lines
        assert "names a file that is no" in errors_of(answer)[0]
        assert [path.name for path in (tmp_path / "below").rglob("*")] == ["restored"]


async def test_images_of_another_lake_are_not_deleted(tmp_path: Path) -> None:
    """A first backup, or publish, below a URL that has other images is refused, and deletes none of them."""
    target = tmp_path / "target"
    other = target / "images" / "ab" / f"{'c' * 62}.jpg"
    other.parent.mkdir(parents=True)
    other.write_bytes(b"of another lake whose first backup was killed")
    os.utime(other, (1, 1))
    async with scene(tmp_path, 5) as here:
        assert (await here.fetch()).code == ExitCode.OK
        for options in ([], ["--with-images"]):
            answer = await here.run("backup", target.as_uri(), *options)
            assert (answer.code, len(errors_of(answer))) == (ExitCode.USAGE, 1)
            assert "has other objects" in errors_of(answer)[0]
        assert files_in(target).keys() == {other.relative_to(target).as_posix()}
        for options in ([], ["--with-images"]):
            answer = await here.run("publish", "--to", target.as_uri(), *options)
            assert (answer.code, len(errors_of(answer))) == (ExitCode.USAGE, 1)
            assert "has images of another lake" in errors_of(answer)[0]
        assert files_in(target).keys() == {other.relative_to(target).as_posix()}


class _EndingStore(StoppingStore):
    """A store whose reader ends after some downloads."""

    downloads = 0
    stop_download_at = 0

    def download(self, path: str, target: Path) -> None:
        """Download unless stopped."""
        with self._lock:
            self.downloads += 1
            if self.stop_download_at and self.downloads >= self.stop_download_at:
                raise PublisherStopped
        super().download(path, target)


def _back_up(lake: Path, store: StoppingStore, *, with_images: bool) -> None:
    with Lake(lake, doing="backup") as held:
        upload_backup(held, store, at=now_us(), with_images=with_images)


async def test_a_backup_or_restore_that_stops_is_completed_by_the_next(tmp_path: Path) -> None:
    """Whichever write or download is the last, the next backup is whole, and the next restore has everything."""
    async with scene(tmp_path, 5) as here:
        assert (await here.fetch()).code == ExitCode.OK
        count = _EndingStore()
        _back_up(here.lake, count, with_images=True)
        names = files_in(here.lake)
        images_from = next(number for number, path in enumerate(count.written, 1) if path in names)
        for stop_at in range(images_from, count.writes + 1):
            stopped = StoppingStore(stop_at=stop_at)
            with pytest.raises(PublisherStopped):
                _back_up(here.lake, stopped, with_images=True)
            with pytest.raises(SettingsError, match="has no backup"):
                restore_backup(stopped, tmp_path / "never")
            repeated = stopped.fork()
            _back_up(here.lake, repeated, with_images=True)
            assert {item.path for item in repeated.list("images")} == names.keys()
        for stop_at in range(1, 40):
            count.downloads, count.stop_download_at = 0, stop_at
            folder = tmp_path / f"restored-{stop_at}"
            try:
                restore_backup(count, folder)
            except PublisherStopped:
                assert not folder.exists()
            else:
                break
        assert stop_at > len(names)
        assert files_in(folder) == names
        assert rows_of(folder) == rows_of(here.lake)


async def test_a_restore_that_is_killed_is_completed_by_the_next(tmp_path: Path) -> None:
    """SIGKILL in the middle of the images leaves a folder that the same command fills."""
    target, restored = tmp_path / "target", tmp_path / "restored"
    target.mkdir()
    async with scene(tmp_path, 60) as here:
        assert (await here.fetch()).code == ExitCode.OK
        assert (await here.run("backup", target.as_uri(), "--with-images")).code == ExitCode.OK
        command = ("restore", target.as_uri(), str(restored))
        process = await started(here.emulator, here.lake, *command)
        while process.returncode is None and len(files_in(restored)) < 5:
            await asyncio.sleep(0.001)
        process.kill()
        await ended(process)
        assert len(files_in(restored)) >= 5
        assert not (restored / "ledger.sqlite").exists(), "killed too late"
        assert (await here.run(*command)).code == ExitCode.OK
        assert files_in(restored) == files_in(here.lake)
        assert rows_of(restored) == rows_of(here.lake)


async def test_backups_with_images_on_s3(tmp_path: Path, s3_server: S3Server, s3_url: str) -> None:
    """Backup, purge and restore treat images on S3 as in a folder."""
    environment, restored = s3_server.environment, tmp_path / "restored"
    async with scene(tmp_path, 10) as here:
        assert (await here.fetch()).code == ExitCode.OK
        answer = await here.run("backup", s3_url, "--with-images", **environment)
        assert answer.code == ExitCode.OK, answer.lines
        purged = min(key[0] for key in rows_of(here.lake))
        assert (await here.run("purge", str(purged), "--yes", **environment)).code == ExitCode.OK
        assert (await here.run("backup", s3_url, "--with-images", **environment)).code == ExitCode.OK
        assert {item.path for item in open_store(s3_url).list("images")} == files_in(here.lake).keys()
        assert (await here.run("restore", s3_url, str(restored), **environment)).code == ExitCode.OK
        assert files_in(restored) == files_in(here.lake)
        assert rows_of(restored) == rows_of(here.lake)
