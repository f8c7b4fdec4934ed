"""What readers say when the lake itself is at fault: damage, a copy, and files that they may not read."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

import duckdb
import pyarrow.parquet as pq
import pytest

from pipeline.errors import ExitCode, LakeCorruptedError, LakeLockedError, StorageError
from pipeline.lake.duckdb_errors import classify_read_error
from pipeline.lake.reader import open_catalog
from pipeline.settings import Settings
from tests.forkserver import run_command
from tests.rows import every

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.forkserver import Finished
    from tests.processes import Scanlake

_NOBODY: Final = 65534
READERS: Final = (
    ("status", "--json"),
    ("serve", "--write", "page.html"),
    ("query", "SELECT * FROM files, uploads", "--format", "jsonl"),
    ("export", "out", "--format", "csv"),
)


def flip(path: Path, share: float) -> None:
    """Change one byte at this share of the file."""
    data = bytearray(path.read_bytes())
    data[int(len(data) * share)] ^= 0xFF
    path.write_bytes(data)


@pytest.mark.parametrize("content", [None, b"", b"PAR1" + bytes(200), "half"])
def test_a_damaged_part_is_named_by_its_path_in_the_lake(
    content: bytes | str | None, scanlake: Scanlake, lake: Path
) -> None:
    """A part that is missing or damaged ends every reader with 9 and one line: its path in the lake, and the remedy."""
    part = lake / "parts" / "files.parquet"
    data = part.read_bytes()
    part.unlink()
    if content is not None:
        part.write_bytes(content if isinstance(content, bytes) else data[: len(data) // 2])
    for arguments in READERS:
        answer = scanlake(*arguments)
        assert answer.code == ExitCode.DAMAGE, arguments
        (line,) = answer.err.splitlines()
        assert line.endswith("Run `scanlake check`.")
        assert ("parts/files.parquet is missing." in line) == (content is None)
        assert "parts/files.parquet" in line
        assert str(lake.parent) not in line
        assert "Error:" not in line


def test_a_damaged_catalog_is_damage(scanlake: Scanlake, lake: Path) -> None:
    """A wrong byte anywhere in the catalog is damage: neither a bug, nor somebody who writes."""
    whole = (lake / "catalog.duckdb").read_bytes()
    for share in (0, 0.5, 0.6, 0.9, 0.95):
        (lake / "catalog.duckdb").write_bytes(whole)
        flip(lake / "catalog.duckdb", share)
        question = "FROM meta.freshness, meta.runs, meta.rejects, meta.schema_drift"
        answers = [scanlake("status"), scanlake("query", question, "--format", "jsonl")]
        assert {answer.code for answer in answers} <= {ExitCode.OK, ExitCode.DAMAGE}
        assert ExitCode.DAMAGE in {answer.code for answer in answers}, share
        assert not any("open for writing" in answer.err for answer in answers)


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


def test_a_file_that_may_not_be_read_is_named_by_its_path_in_the_lake() -> None:
    """Errors name the lake by the path that the user gave, and its files from its folder on."""
    said = 'IO Error: Cannot open file "/srv/a/lake/parts/files/1.parquet": Permission denied'
    error = classify_read_error(duckdb.Error(said))
    assert error is not None
    assert error.message == "parts/files/1.parquet: Permission denied."


def test_damage_shows_no_value() -> None:
    """What a damaged part holds stays out of the message."""
    said = 'Invalid Input Error: Invalid string encoding found in Parquet file "/l/p.parquet": value "secret" is not'
    failure = classify_read_error(duckdb.InvalidInputException(said))
    assert failure is not None
    assert "secret" not in failure.message


def test_a_copy_is_read_by_itself(scanlake: Scanlake, lake: Path, tmp_path: Path) -> None:
    """A plain copy of a lake shows its own parts, also while those of the original are there and differ."""
    with duckdb.connect(str(lake / "catalog.duckdb")) as db:
        db.execute("UPDATE meta.freshness SET parts_root = ?", [str(lake)])
    shutil.copytree(lake, tmp_path / "copy")
    part = lake / "parts" / "files.parquet"
    pq.write_table(pq.read_table(part).slice(0, 1), part)
    question = ("query", "SELECT count(*) AS n FROM files", "--format", "jsonl")
    assert json.loads(scanlake(*question).out) == {"n": 1}
    assert json.loads(scanlake("--lake", "copy", *question).out) == {"n": 3}
    shutil.rmtree(tmp_path / "copy" / "parts")
    assert "has a catalog without parts" in scanlake("--lake", "copy", *question).err


def test_a_copy_reaches_nothing_of_the_original(scanlake: Scanlake, lake: Path, tmp_path: Path) -> None:
    """SQL on a copy of the lake cannot read the original's files."""
    with duckdb.connect(str(lake / "catalog.duckdb")) as db:
        db.execute("UPDATE meta.freshness SET parts_root = ?", [str(lake)])
    shutil.copytree(lake, tmp_path / "copy")
    answer = scanlake("--lake", "copy", "query", f"FROM parquet_scan('{lake}/parts/files.parquet')")
    assert answer.code == ExitCode.USAGE
    assert "a query reads tables only" in answer.err
    with (
        open_catalog(Settings(lake=tmp_path / "copy")) as db,
        pytest.raises(duckdb.PermissionException),
    ):
        db.execute(f"FROM parquet_scan('{lake}/parts/files.parquet')")


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user of the machine can reach, and a test's own folder is not."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_no_permission_is_not_damage(lake: Path, open_folder: Path) -> None:
    """What a reader may not read ends with 7 and the system's words, not as damage."""
    with duckdb.connect(str(lake / "catalog.duckdb")) as db:
        db.execute("UPDATE meta.freshness SET parts_root = ?", [str(lake)])
    root = open_folder / "lake"
    shutil.copytree(lake, root)

    def ask(*arguments: str) -> Finished:
        arguments = ("--lake", str(root), *arguments)
        return run_command(arguments, cwd=open_folder, env=dict(os.environ), user=_NOBODY)

    assert ask("query", "SELECT 1 FROM files").code == ExitCode.OK
    for closed in ("parts", "parts/files.parquet", "catalog.duckdb", "."):
        mode = (root / closed).stat().st_mode
        (root / closed).chmod(0)
        for arguments in (("status",), ("query", "SELECT * FROM files")):
            answer = ask(*arguments)
            assert answer.code == ExitCode.STORAGE, (closed, answer.err)
            assert b"Permission denied" in answer.err
            # A forked process that coverage measures cannot write its data as another user, and says so.
            assert len([line for line in answer.err.splitlines() if b".coverage." not in line]) == 1
        (root / closed).chmod(mode)
