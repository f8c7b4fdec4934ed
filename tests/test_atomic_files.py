"""Files are written whole or not at all, and locks end with their process."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.lake.storage.atomic_files import (
    READ_ONLY,
    FileLockedError,
    atomic_write,
    is_temp_file,
    link_file,
    lock_file,
    temp_name,
    write_file,
)
from tests.rows import every


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_the_target_appears_when_the_block_ends(tmp_path: Path) -> None:
    """Until the block ends the target has its former content, afterwards the new one, and the mode that was asked."""
    target = tmp_path / "file"
    target.write_text("old")
    with atomic_write(target, mode=READ_ONLY) as temp:
        temp.write_text("new")
        assert target.read_text() == "old"
        assert is_temp_file(temp)
    assert target.read_text() == "new"
    assert _mode(target) == READ_ONLY
    assert list(tmp_path.iterdir()) == [target]


def test_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    """A failure keeps the former content, and removes the temporary file with the logs of a database."""
    target = tmp_path / "file"
    target.write_text("old")

    def fail() -> None:
        with atomic_write(target) as temp:
            for suffix in ("", ".wal", "-wal", "-shm", "-journal"):
                temp.with_name(temp.name + suffix).write_text("half")
                assert is_temp_file(temp.with_name(temp.name + suffix))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert [path.read_text() for path in tmp_path.iterdir()] == ["old"]


def test_content_is_synced_before_the_name_and_the_name_after(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A durable write syncs the file, renames it, and syncs the folder; another one syncs nothing."""
    steps: list[str] = []
    real = os.fsync

    def fsync(handle: int) -> None:
        path = Path(f"/proc/self/fd/{handle}").readlink()
        steps.append("folder" if path.is_dir() else "file")
        assert (tmp_path / "file").exists() is path.is_dir()
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    write_file(tmp_path / "file", b"content")
    assert steps == ["file", "folder"]
    write_file(tmp_path / "other", b"content", durable=False)
    assert steps == ["file", "folder"]


@pytest.mark.parametrize("refusal", [None, errno.EPERM, errno.EOPNOTSUPP])
def test_an_existing_file_is_not_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusal: int | None
) -> None:
    """Without `overwrite` a new file is created and an existing one stays, also on a file system without links.

    There `link_file` copies: its target has the content and the mode.
    """

    def refuse(_: Path, __: Path) -> None:
        assert refusal is not None
        raise OSError(refusal, os.strerror(refusal))

    if refusal is not None:
        monkeypatch.setattr(Path, "hardlink_to", refuse)
    target = tmp_path / "file"
    write_file(target, "first", overwrite=False)
    with pytest.raises(FileExistsError):
        write_file(target, "second", overwrite=False)
    assert target.read_text() == "first"
    assert list(tmp_path.iterdir()) == [target]
    target.chmod(0o640)
    link_file(target, tmp_path / "other")
    assert ((tmp_path / "other").read_text(), (tmp_path / "other").stat().st_mode) == ("first", target.stat().st_mode)
    assert (tmp_path / "other").samefile(target) is (refusal is None)


def test_a_file_that_appears_during_the_write_stays(tmp_path: Path) -> None:
    """Without `overwrite` the file of another process wins."""
    target = tmp_path / "file"

    def write() -> None:
        with atomic_write(target, overwrite=False) as temp:
            temp.write_text("ours")
            target.write_text("theirs")

    with pytest.raises(FileExistsError):
        write()
    assert target.read_text() == "theirs"


def test_modes_are_set_from_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody else can read a secret, not even while it is written; without a mode the user's umask decides."""
    modes: list[int] = []
    real = os.fsync

    def fsync(handle: int) -> None:
        if stat.S_ISREG(os.fstat(handle).st_mode):
            modes.append(stat.S_IMODE(os.fstat(handle).st_mode))
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    write_file(tmp_path / "token", "secret", mode=0o600)
    former = os.umask(0o027)
    try:
        write_file(tmp_path / "file", "content")
    finally:
        os.umask(former)
    assert modes == [0o600, 0o640]
    assert (_mode(tmp_path / "token"), _mode(tmp_path / "file")) == (0o600, 0o640)


def test_temporary_names_are_never_used_twice() -> None:
    """Two writes of one process to one file do not meet, nor does a process with the id of one that was killed."""
    assert temp_name("file") != temp_name("file")


@pytest.mark.parametrize("name", ["x" * 255, "ü" * 127, "\N{OPEN FILE FOLDER}" * 63])
def test_long_names_have_temporary_names(tmp_path: Path, name: str) -> None:
    """The longest name that a file can have can be written."""
    write_file(tmp_path / name, "content")
    assert [path.name for path in tmp_path.iterdir()] == [name]


@every(
    "name",
    [
        *("notes.tmp", ".notes.tmp", ".a.1.tmp", "a.12-0a1b2c3d.tmp", "catalog.duckdb.wal"),
        *(".a.12-0a1b2c3d.tmp", ".a.12-0a1b2c3d4e5f6071.tmp", temp_name("a").replace(".a.", ".b.")),
    ],
)
def test_files_of_others_are_not_temporary_files(name: str) -> None:
    """A file is removed as an orphan only if its name is one that scanlake makes."""
    assert not is_temp_file(Path(name))


@pytest.mark.parametrize("is_folder", [False, True])
def test_one_process_holds_a_lock(tmp_path: Path, is_folder: bool) -> None:  # noqa: FBT001
    """A file or a folder can be locked by one process; others are refused until it ends or leaves the block."""
    path = tmp_path if is_folder else tmp_path / "LOCK"
    code = (
        "import sys, pathlib; from pipeline.lake.storage.atomic_files import lock_file\n"
        "with lock_file(pathlib.Path(sys.argv[1])): print('locked', flush=True); sys.stdin.read()"
    )
    root = Path(__file__).resolve().parents[1]
    with subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=root
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"locked\n"
        with pytest.raises(FileLockedError), lock_file(path):
            pass
        other.kill()
        with lock_file(path, blocking=True):
            pass
    with lock_file(path):
        pass


def test_a_lock_is_never_a_link(tmp_path: Path) -> None:
    """A lock file is created in its folder; a link in its place is refused."""
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with lock_file(tmp_path / "marker"):
        assert (tmp_path / "marker").is_file()
    with pytest.raises(OSError, match="symbolic links"), lock_file(tmp_path / "link"):
        pass
    assert not (tmp_path / "elsewhere").exists()


def test_a_system_without_paths_of_descriptors_uses_names(tmp_path: Path) -> None:
    """Without O_PATH, as on macOS, every command starts, and a pinned folder is the folder by its name."""
    code = (
        "import os, sys; from pathlib import Path; del os.O_PATH; import pipeline.cli.app\n"
        "from pipeline.lake.storage.atomic_files import pin_folder\n"
        "with pin_folder(Path(sys.argv[1])) as folder: (folder / 'file').write_text('content')"
    )
    target = tmp_path / "new" / "folder"
    subprocess.run([sys.executable, "-c", code, target], check=True)
    assert (target / "file").read_text() == "content"
