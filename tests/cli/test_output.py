"""`query --out`: links, pipes and devices are what they are, and get the answer."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from pipeline.errors import ExitCode
from tests.forked_shell import run_shell
from tests.forkserver import run_command

if TYPE_CHECKING:
    from pathlib import Path

    from tests.processes import Scanlake

pytestmark = pytest.mark.usefixtures("lake")
ONE = ("query", "SELECT 1 AS n", "--format", "csv")


def test_a_device_stays_a_device(main: Scanlake, tmp_path: Path) -> None:
    """A link to a device is written through, and a full one ends with 7."""
    link = tmp_path / "full"
    link.symlink_to("/dev/full")
    answer = main(*ONE, "-o", "full")
    assert (answer.code, link.is_symlink()) == (ExitCode.STORAGE, True)
    assert "scanlake: full: No space left on device." in answer.err


@pytest.mark.parametrize("shape", ["csv", "jsonl", "parquet", "xlsx"])
def test_a_full_disk_is_that_of_the_file(shape: str, tmp_path: Path) -> None:
    """A file that cannot be written is named, not standard output; its former content stays, and nothing beside it."""
    out = tmp_path / f"answer.{shape}"
    out.write_text("former", encoding="utf-8")
    names = {path.name for path in tmp_path.iterdir()}
    query = ("query", "SELECT range AS n, hash(range) AS h FROM range(20000)", "--out", out.name)
    finished = run_command(query, cwd=tmp_path, env=dict(os.environ), limits={"RLIMIT_FSIZE": 60_000})
    assert finished.code == ExitCode.STORAGE, finished.err
    assert finished.err.decode().startswith(f"scanlake: {out}: File too large."), finished.err
    assert (out.read_text(encoding="utf-8"), {path.name for path in tmp_path.iterdir()}) == ("former", names)


def test_a_link_to_standard_output_is_standard_output(tmp_path: Path) -> None:
    """A link to what standard output is gets the answer behind what stands there; so does --out -, without a file."""
    link = tmp_path / "link"
    link.symlink_to("/proc/self/fd/1")
    query = "$S query 'SELECT 1 AS n' --format csv -o"
    assert run_shell(tmp_path, f"(echo before; {query} link; {query} -) > all.txt")[0] == 0
    assert not (tmp_path / "-").exists()
    assert (tmp_path / "all.txt").read_text(encoding="utf-8") == 'before\n"n"\n1\n"n"\n1\n'
    assert link.is_symlink()


@pytest.mark.parametrize("shape", ["csv", "parquet"])
def test_a_pipe_gets_the_answer(shape: str, main: Scanlake, tmp_path: Path) -> None:
    """A named pipe is written into, and stays one."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()), daemon=True)
    reader.start()
    answer = main("query", "SELECT 1 AS n", "--format", shape, "-o", "pipe")
    assert pipe.is_fifo()
    reader.join(timeout=300)
    assert (answer.code, answer.err) == (ExitCode.OK, "")
    (tmp_path / "got").write_bytes(read[0])
    if shape == "parquet":
        assert pq.read_table(tmp_path / "got").to_pylist() == [{"n": 1}]
    else:
        assert read[0] == b'"n"\n1\n'


def test_a_link_to_a_file_stays_a_link(main: Scanlake, tmp_path: Path) -> None:
    """The file behind a link is replaced, not the link; one that leads nowhere makes its file."""
    (tmp_path / "old.csv").write_text("old", encoding="utf-8")
    for name in ("old", "new"):
        (tmp_path / name).symlink_to(f"{name}.csv")
        assert main(*ONE, "-o", name).code == ExitCode.OK
        assert (tmp_path / name).is_symlink()
        assert (tmp_path / f"{name}.csv").read_text(encoding="utf-8") == '"n"\n1\n'
    assert main("query", "SELECT 1", "--out", "answer.dat", "--format", "csv").code == ExitCode.OK


def test_a_table_in_a_file_has_every_row(main: Scanlake, tmp_path: Path) -> None:
    """Standard output shows the first 200 rows and says so; a text file has all of them, or is not written."""
    query = ("query", "SELECT range AS n FROM range(2007)")
    shown = main(*query).out.splitlines()
    assert (len(shown), shown[-1]) == (202, "200 rows shown, and there are more; use --format for all rows")
    assert main(*query, "-o", "a.txt").code == 0
    written = (tmp_path / "a.txt").read_text(encoding="utf-8").splitlines()
    assert (len(written), written[-2].strip(), written[-1]) == (2009, "2006", "2,007 rows")
    many = main("query", "FROM range(100001)", "-o", "b.txt")
    assert (many.code, "more than 100,000 rows. Use --out FILE.csv." in many.err) == (ExitCode.USAGE, True)
    assert not (tmp_path / "b.txt").exists()
