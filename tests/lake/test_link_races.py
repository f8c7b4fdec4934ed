"""Links that appear during a run: another user swaps folders for them, and nothing is written behind them."""

from __future__ import annotations

import os
import signal
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING

import pytest

from pipeline.errors import ScanlakeError, StorageError, to_scanlake_error
from pipeline.lake.ledger.folder import classify_folder, find_other_entry
from pipeline.lake.storage.atomic_files import pin_folder
from pipeline.lake.storage.layout import LakeLayout
from pipeline.query.export import staging_path
from pipeline.reports.folder import open_job_folder
from tests.processes import NOBODY, why_not_as_nobody
from tests.rows import every

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_ROUNDS = 150


@contextmanager
def swapped(shared: Path, victim: Path) -> Iterator[None]:
    """Let another process swap a folder for a link to `victim` and back, as fast as it can."""
    if (process := os.fork()) == 0:
        os.setuid(NOBODY)
        while True:
            with suppress(OSError):
                (shared / "sub").rename(shared / "own")
                (shared / "sub").symlink_to(victim)
                (shared / "sub").unlink()
                (shared / "own").rename(shared / "sub")
    try:
        yield
    finally:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)


def export(target: Path) -> None:
    """Write an export of a few files."""
    with staging_path(target) as path:
        path.mkdir()
        for name in "abc":
            (path / name).write_text(name)


def deliver(target: Path) -> None:
    """Write a file of a report."""
    with open_job_folder(target, "job") as folder:
        folder.write("index.html", b"content")


def download(target: Path) -> None:
    """Create the folders of a lake, as a restore does, and write a file into each."""
    with pin_folder(target) as pinned:
        layout = LakeLayout(pinned)
        layout.create_dirs([pinned / "documents", pinned / "tables" / "files"])
        for folder in ("documents", "tables/files"):
            with pin_folder(pinned / folder, below=pinned) as parent:
                (parent / "part").write_text("x")


@pytest.mark.skipif(why_not_as_nobody() != "", reason=why_not_as_nobody())
@pytest.mark.parametrize("write", [export, deliver, download])
def test_nothing_is_written_behind_a_link_of_another_user(write: Callable[[Path], None], open_folder: Path) -> None:
    """A folder above the target is swapped for a link all the time: what is written is in that folder, or refused."""
    tmp_path = open_folder
    shared, victim = tmp_path / "shared", tmp_path / "victim"
    (shared / "sub").mkdir(parents=True)
    victim.mkdir()
    for folder in (shared, shared / "sub"):
        os.chown(folder, NOBODY, NOBODY)
    done = 0
    with swapped(shared, victim):
        for number in range(_ROUNDS):
            with suppress(ScanlakeError, OSError):
                write(shared / "sub" / f"target-{number}")
                done += 1
    assert list(victim.iterdir()) == []
    print(f"{done} of {_ROUNDS} done")


def test_a_link_below_the_root_is_never_followed(tmp_path: Path) -> None:
    """In a folder that others can write, a link in place of a folder of the lake is refused, however it came there."""
    victim, root = tmp_path / "victim", tmp_path / "root"
    victim.mkdir()
    root.mkdir()
    (root / "tables").symlink_to(victim)
    with pytest.raises(StorageError, match=r"tables/files: Not a folder\."):
        LakeLayout(root).create_dirs([root / "tables" / "files"])
    assert list(victim.iterdir()) == []


def test_a_folder_that_was_moved_is_not_called_written(tmp_path: Path) -> None:
    """What was written to a folder that another process has moved away meanwhile is not where the result says."""
    with ExitStack() as stack:
        folder = stack.enter_context(open_job_folder(tmp_path / "a" / "job", "job"))
        (tmp_path / "a").rename(tmp_path / "b")
        (tmp_path / "a" / "job").mkdir(parents=True)
        folder.write("index.html", b"content")
        with pytest.raises(OSError, match="Stale") as caught:
            stack.close()
    assert "another process has moved the folder" in str(to_scanlake_error(caught.value).hint)
    assert list((tmp_path / "a" / "job").iterdir()) == []
    assert (tmp_path / "b" / "job" / "index.html").exists()


@every("content, kind", [(b"mine", "OTHER"), (b"PAR1mine", "LAKE_WITHOUT_LEDGER"), (bytes(9), "LAKE_WITHOUT_LEDGER")])
def test_names_alone_make_no_lake(content: bytes, kind: str, tmp_path: Path) -> None:
    """A foreign folder with names like those of a lake is foreign; what a power loss leaves of a lake is not."""
    (tmp_path / "documents").mkdir(exist_ok=True)
    (tmp_path / "documents" / "000000000001-abcdef.parquet").write_bytes(content)
    assert classify_folder(LakeLayout(tmp_path)).name == kind


def test_lost_and_found_is_nobodys(tmp_path: Path) -> None:
    """The folder `lost+found` of a fresh volume is no content; a file or a link with its name is."""
    for number, write in enumerate((export, deliver)):
        target = tmp_path / str(number)
        (target / "lost+found").mkdir(parents=True)
        (target / "lost+found" / "#12").write_text("recovered")
        write(target)
        assert (target / "lost+found" / "#12").read_text() == "recovered"
        other = tmp_path / f"link-{number}"
        other.mkdir()
        (other / "lost+found").symlink_to(target)
        with pytest.raises(ScanlakeError, match="not empty"):
            write(other)
        assert find_other_entry(LakeLayout(other)) == "lost+found"
    assert {path.name for path in (tmp_path / "0").iterdir()} == {"a", "b", "c", "lost+found"}
