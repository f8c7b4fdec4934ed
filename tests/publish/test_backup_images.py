"""Images in backups: whole, erased with their files, and restored but for what is damaged."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from pipeline.atomic_files import sha256_file
from pipeline.errors import ExitCode, SettingsError
from pipeline.lake.lake import Lake
from pipeline.publish.backup import upload_backup
from pipeline.publish.object_store import open_store
from pipeline.publish.restore import restore_backup
from pipeline.publish.target_layout import BACKUP
from schemas.timestamps import now_us
from tests.images.image_harness import disagreements, errors_of, files_in, rows_of, stored
from tests.lake.operations import called
from tests.lake_copies import copy_lake
from tests.publish.stopping_store import PublisherStopped, StoppingStore
from tests.soaking import SOAKING, sample

if TYPE_CHECKING:
    from pathlib import Path

    from tests.images.image_harness import PicturedLakes
    from tests.publish.conftest import S3Server


@pytest.fixture
def lake(pictured: PicturedLakes, tmp_path: Path) -> Path:
    """A copy of the lake with all images."""
    return copy_lake(pictured.whole, tmp_path / "lake")


def test_a_backup_at_a_url_brings_every_image_back(pictured: PicturedLakes, lake: Path, tmp_path: Path) -> None:
    """A lake that is restored from a URL has every image; the next backup uploads only new ones."""
    half = copy_lake(pictured.half, tmp_path / "half")
    target, restored = tmp_path / "target", tmp_path / "restored"
    target.mkdir()
    bare = called(half, "backup", target.as_uri(), "--json").json
    assert (bare["images"], bare["images_copied"]) == (None, 0)
    assert called(half, "restore", target.as_uri(), str(tmp_path / "bare")).code == ExitCode.OK
    assert rows_of(tmp_path / "bare") == {}
    first = called(half, "backup", target.as_uri(), "--with-images", "--json").json
    assert first["images"] == first["images_copied"] == len(files_in(half)) > 0
    second = called(lake, "backup", target.as_uri(), "--with-images", "--json").json
    assert second["images"] == first["images"] + second["images_copied"] == len(files_in(lake))
    assert files_in(target) == files_in(lake)
    assert called(lake, "restore", target.as_uri(), str(restored)).code == ExitCode.OK
    assert disagreements(restored, pictured.truth) == []
    assert stored(restored) == set(pictured.truth)
    assert rows_of(restored) == rows_of(lake)
    assert called(restored, "check", "--read-data").code == ExitCode.OK


def test_a_backup_keeps_no_image_of_a_purged_file(lake: Path, tmp_path: Path) -> None:
    """Also without the option a purged file's images are deleted, and those that are there restored."""
    _purge_and_restore(lake, (tmp_path / "target").as_uri(), tmp_path / "later")


@pytest.mark.soak
def test_backups_with_images_on_s3(lake: Path, tmp_path: Path, s3_server: S3Server, s3_url: str) -> None:
    """Backup, purge and restore treat images on S3 as in a folder."""
    _purge_and_restore(lake, s3_url, tmp_path / "later", **s3_server.environment)


def _purge_and_restore(lake: Path, url: str, folder: Path, **environment: str) -> None:
    assert called(lake, "backup", url, "--with-images", **environment).code == ExitCode.OK
    purged = min(key[0] for key in rows_of(lake))
    assert called(lake, "purge", str(purged), "--yes", **environment).code == ExitCode.OK
    assert called(lake, "backup", url, **environment).code == ExitCode.OK
    assert {item.path for item in open_store(url).list("images")} == files_in(lake).keys()
    assert called(lake, "restore", url, str(folder), **environment).code == ExitCode.OK
    assert rows_of(folder) == rows_of(lake)
    assert files_in(folder) == files_in(lake)


def test_a_damaged_image_costs_itself_alone(pictured: PicturedLakes, lake: Path, tmp_path: Path) -> None:
    """Damage in the lake or in the backup is named with exit code 9; everything else is backed up and restored."""
    target, restored = tmp_path / "target", tmp_path / "restored"
    target.mkdir()
    names = sorted(files_in(lake))
    own = lake / names[0]
    whole = own.read_bytes()
    own.chmod(0o600)
    own.write_bytes(b"x" * len(whole))
    answer = called(lake, "backup", target.as_uri(), "--with-images")
    assert (answer.code, len(errors_of(answer))) == (ExitCode.DAMAGE, 1)
    assert own.name in errors_of(answer)[0]
    assert files_in(target).keys() == set(names[1:])
    for path, content in ((target / names[1], b"x" * (target / names[1]).stat().st_size), (target / names[2], b"")):
        path.chmod(0o600)
        path.write_bytes(content)
    (target / names[3]).unlink()
    answer = called(lake, "restore", target.as_uri(), str(restored), "--json")
    assert answer.code == ExitCode.DAMAGE
    assert answer.json["images_lost"] == {names[1]: "damaged", names[2]: "damaged", names[3]: "missing"}
    assert files_in(restored).keys() == set(names[4:])
    assert disagreements(restored, pictured.truth) == []
    lost = {key for key, row in rows_of(lake).items() if row["path"] in names[:4]}
    assert rows_of(restored).keys() == rows_of(lake).keys() - lost, "the next `scanlake images` fetches them"
    own.write_bytes(whole)
    assert called(lake, "backup", target.as_uri(), "--with-images").code == ExitCode.OK
    assert len((target / names[2]).read_bytes()) == len((lake / names[2]).read_bytes()), "replaced by its size"


def test_a_backup_writes_nothing_outside_of_the_lake(lake: Path, tmp_path: Path) -> None:
    """A ledger in the backup whose names lead out of the lake is refused with one line, and no file is written."""
    target, below = tmp_path / "target", tmp_path / "below"
    for statement in (
        "UPDATE image SET path = '../evil.jpg' WHERE path = (SELECT min(path) FROM image)",
        "UPDATE part SET name = 'tables/../../' || substr(name, 8) WHERE name LIKE 'tables/uploads/%'",
    ):
        assert called(lake, "backup", str(target), "--with-images").code == ExitCode.OK
        [ledger] = target.glob("ledgers/*")
        ledger.chmod(0o600)
        with closing(sqlite3.connect(ledger)) as db, db:
            db.execute(statement)
        file = target / BACKUP
        record = json.loads(file.read_text()) | {"ledger_sha256": sha256_file(ledger)}
        file.chmod(0o600)
        file.write_text(json.dumps(record))
        (below / "restored").mkdir(parents=True, exist_ok=True)
        answer = called(lake, "restore", str(target), str(below / "restored"))
        assert (answer.code, len(errors_of(answer))) == (ExitCode.DAMAGE, 1), answer.lines
        assert "names a file that is no" in errors_of(answer)[0]
        assert [path.name for path in below.rglob("*")] == ["restored"]


def test_images_of_another_lake_are_not_deleted(lake: Path, tmp_path: Path) -> None:
    """A first backup, or publish, below a URL that has other images is refused, and deletes none of them."""
    target = tmp_path / "target"
    other = target / "images" / "ab" / f"{'c' * 62}.jpg"
    other.parent.mkdir(parents=True)
    other.write_bytes(b"of another lake whose first backup was killed")
    os.utime(other, (1, 1))
    commands = {"backup": "has other objects", "publish --to": "has images of another lake"}
    for command, problem in commands.items():
        for options in ([], ["--with-images"]):
            answer = called(lake, *command.split(), target.as_uri(), *options)
            assert (answer.code, len(errors_of(answer))) == (ExitCode.USAGE, 1)
            assert problem in errors_of(answer)[0]
            assert files_in(target).keys() == {other.relative_to(target).as_posix()}


class _EndingStore(StoppingStore):
    """A store whose reader ends at a download."""

    downloads = 0
    stop_download_at = 0

    def download(self, path: str, target: Path, size: int | None = None) -> bool:
        """Download unless stopped."""
        with self._lock:
            self.downloads += 1
            if self.stop_download_at and self.downloads >= self.stop_download_at:
                raise PublisherStopped
        return super().download(path, target, size)


def _back_up(lake: Path, store: StoppingStore) -> None:
    with Lake(lake, doing="backup") as held:
        upload_backup(held, store, at=now_us(), with_images=True)


def test_a_backup_or_restore_that_stops_is_completed_by_the_next(lake: Path, tmp_path: Path) -> None:
    """Whichever write or download is the last, the next backup is whole, and the next restore has everything."""
    whole = _EndingStore()
    _back_up(lake, whole)
    names = files_in(lake)
    images_from = next(number for number, path in enumerate(whole.written, 1) if path in names)
    for stop_at in sample(range(images_from, len(whole.written) + 1), 3):
        stopped = StoppingStore(stop_at=stop_at)
        with pytest.raises(PublisherStopped):
            _back_up(lake, stopped)
        with pytest.raises(SettingsError, match="has no backup"):
            restore_backup(stopped, tmp_path / "never")
        repeated = stopped.fork()
        _back_up(lake, repeated)
        assert {item.path for item in repeated.list("images")} == names.keys()
    folder = tmp_path / "restored"
    whole.downloads = 0
    restore_backup(whole, folder)
    downloads = whole.downloads
    assert downloads > len(names)
    assert (files_in(folder), rows_of(folder)) == (names, rows_of(lake))
    for stop_at in range(1, downloads + 1) if SOAKING else (1, 2, downloads - len(names) + 1, downloads):
        whole.downloads, whole.stop_download_at = 0, stop_at
        with pytest.raises(PublisherStopped):
            restore_backup(whole, tmp_path / f"stopped-{stop_at}")
        assert not (tmp_path / f"stopped-{stop_at}").exists()


def test_a_restore_that_is_killed_is_completed_by_the_next(lake: Path, tmp_path: Path) -> None:
    """SIGKILL in the middle of the images leaves a folder that the same command fills."""
    target, restored = tmp_path / "target", tmp_path / "restored"
    target.mkdir()
    assert called(lake, "backup", target.as_uri(), "--with-images").code == ExitCode.OK
    count = len([path for path in target.rglob("*") if path.is_file()]) - 2
    command = ("restore", target.as_uri(), str(restored))
    program = (sys.executable, "-m", "tests.publish.killed_process", "download", str(count), *command)
    assert subprocess.run(program, check=False).returncode == -signal.SIGKILL
    assert 0 < len(files_in(restored)) < len(files_in(lake))
    assert not (restored / "ledger.sqlite").exists()
    assert called(lake, *command).code == ExitCode.OK
    assert files_in(restored) == files_in(lake)
    assert rows_of(restored) == rows_of(lake)
