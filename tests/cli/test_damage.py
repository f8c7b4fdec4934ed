"""What readers say when the lake itself is at fault: damage, a copy, and files that they may not read."""

from __future__ import annotations

import errno
import os
import shutil
from typing import TYPE_CHECKING
from unittest.mock import Mock

import duckdb
import pytest

from pipeline.errors import ExitCode, LakeCorruptedError, LakeLockedError, StorageError
from pipeline.lake.catalog.duckdb import classify_read_error
from tests.forkserver import run_command
from tests.lake.corruption import flip
from tests.lake.test_folders import make_lake
from tests.processes import NOBODY, why_not_as_nobody
from tests.rows import every

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.forkserver import Finished
    from tests.processes import Scanlake


@pytest.mark.usefixtures("lake")
def test_a_damaged_catalog_is_damage(scanlake: Scanlake, tmp_path: Path) -> None:
    """A wrong bit anywhere in the catalog is damage: neither a bug, nor somebody who writes."""
    catalog = tmp_path / "lake" / "catalog.duckdb"
    for share in (0, 0.5, 0.9):
        whole = flip(catalog, share)
        question = "FROM meta.freshness, meta.runs, meta.rejects, meta.schema_drift"
        answers = [scanlake("status"), scanlake("query", question, "--format", "jsonl")]
        catalog.write_bytes(whole)
        assert {answer.code for answer in answers} <= {ExitCode.OK, ExitCode.DAMAGE}
        assert ExitCode.DAMAGE in {answer.code for answer in answers}, share
        assert not any("open for writing" in answer.err for answer in answers)


@pytest.mark.usefixtures("lake")
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_a_log_that_is_no_file_is_named(make: Callable[[Path], None], scanlake: Scanlake, tmp_path: Path) -> None:
    """A pipe or a folder in the place of the catalog's log is damage, and no sync is recommended, which refuses it."""
    log = tmp_path / "lake" / "catalog.duckdb.wal"
    make(log)
    (tmp_path / "scanlake.toml").write_text('lake = "lake"\n[sources.lake]\nlake = "lake"\n', encoding="utf-8")
    answers = [scanlake("query", "FROM files"), scanlake("status"), scanlake("query", "--all", "FROM files")]
    assert {answer.code for answer in answers} == {ExitCode.DAMAGE}, answers
    assert [answer.err for answer in answers[:2]] == [f"scanlake: {log} is not a file. Move {log} away.\n"] * 2
    assert "is not a file" in answers[2].err


@every(
    ("said", "kind"),
    [
        ("TProtocolException: Invalid data", LakeCorruptedError),
        ('Invalid Input Error: Failed to read file "/l/p.parquet": ZSTD Decompression failure', LakeCorruptedError),
        ("Serialization Error: Failed to deserialize", LakeCorruptedError),
        ("Corrupt database file: computed checksum 1 in b-lock-", LakeCorruptedError),
        ('IO Error: Could not set lock on file "/l/catalog.duckdb": Conflicting lock is held', LakeLockedError),
        ('IO Error: Cannot open file "/l/p.parquet": Permission denied', StorageError),
        ("Invalid Input Error: half-way", type(None)),
        ('Binder Error: Referenced column "lock" not found in FROM clause!', type(None)),
        ("Conversion Error: Could not convert string 'magic bytes' to INT32", type(None)),
    ],
)
def test_a_wrong_question_is_told_from_a_wrong_lake(said: str, kind: type) -> None:
    """What DuckDB says of files is the lake's trouble, what it says of a statement is the statement's."""
    assert type(classify_read_error(duckdb.Error(said))) is kind


def test_files_are_named_and_values_are_not() -> None:
    """Errors name a file from the lake's folder on; what a damaged part holds stays out of the message."""
    said = 'IO Error: Cannot open file "/srv/a/lake/tables/files/1.parquet": Permission denied'
    denied = classify_read_error(duckdb.Error(said))
    said = 'Invalid Input Error: Invalid string encoding found in Parquet file "/l/p.parquet": value "secret" is not'
    damaged = classify_read_error(duckdb.InvalidInputException(said))
    assert denied is not None
    assert denied.message == "tables/files/1.parquet: Permission denied."
    assert damaged is not None
    assert "secret" not in damaged.message


@pytest.mark.skipif(why_not_as_nobody() != "", reason=why_not_as_nobody())
def test_no_permission_is_not_damage(lake: Path, open_folder: Path) -> None:
    """What a reader may not read ends with 7 and the system's words, not as damage."""
    root = open_folder / "lake"
    shutil.copytree(lake, root)

    def ask(*arguments: str) -> Finished:
        arguments = ("--lake", str(root), *arguments)
        return run_command(arguments, cwd=open_folder, env=dict(os.environ), user=NOBODY)

    assert ask("query", "SELECT 1 FROM files").code == ExitCode.OK
    for closed in ("catalog.duckdb", "."):
        mode = (root / closed).stat().st_mode
        (root / closed).chmod(0)
        for arguments in (("status",), ("query", "SELECT * FROM files")):
            answer = ask(*arguments)
            assert answer.code == ExitCode.STORAGE, (closed, answer.err)
            assert b"Permission denied" in answer.err
            # A forked process that coverage measures cannot write its data as another user, and says so.
            assert len([line for line in answer.err.splitlines() if b".coverage." not in line]) == 1
        (root / closed).chmod(mode)


def test_a_purge_without_room_says_that_nothing_is_erased(
    tmp_path: Path, main: Scanlake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line has the cause and what finishes the purge: a sync only if it has begun. The same purge does it."""
    lake = make_lake(tmp_path / "lake")
    purge = ("purge", "11", "--yes")
    with monkeypatch.context() as full:
        full.setattr("pipeline.lake.purge.replace_parts", Mock(side_effect=OSError(errno.ENOSPC, "No space left")))
        before = main(*purge)
    finished = run_command(purge, cwd=tmp_path, env=dict(os.environ), limits={"RLIMIT_FSIZE": 300_000})
    causes = "No space left on device", f"{lake}/catalog.duckdb: File too large"
    repeat = "Free disk space or correct the permissions, then run the same purge again"
    ends = ".", "; the next `scanlake sync` finishes it, too."
    not_erased = "scanlake: The files are not erased yet"
    lines = [f"{not_erased}: {cause}. {repeat}{end}" for cause, end in zip(causes, ends, strict=True)]
    assert [before.code, finished.code] == [ExitCode.STORAGE] * 2
    assert [*before.lines, *finished.err.decode().splitlines()] == lines
    assert "A purge is not finished" in main("rollback", "1", "--yes").err
    assert main(*purge).code == ExitCode.OK
    assert main("query", "SELECT file_id FROM files", "--format", "csv").out == '"file_id"\n12\n'
