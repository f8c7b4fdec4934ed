"""`query --out` and --file: what is written where, and what cannot be."""

from __future__ import annotations

import json
import os
import threading
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from pipeline.errors import ExitCode
from tests.forked_shell import run_shell

if TYPE_CHECKING:
    from pathlib import Path

    from tests.processes import Scanlake

pytestmark = pytest.mark.usefixtures("lake")
ONE = ("query", "SELECT 1 AS n", "--format", "csv")


def test_a_device_stays_a_device(scanlake: Scanlake, tmp_path: Path) -> None:
    """A link to a device is written through, and a full one ends with 7."""
    link = tmp_path / "full"
    link.symlink_to("/dev/full")
    answer = scanlake(*ONE, "-o", "full")
    assert answer.code == ExitCode.STORAGE, answer.err
    assert "No space left on device" in answer.err
    assert link.is_symlink()


def test_a_link_to_standard_output_is_standard_output(tmp_path: Path) -> None:
    """A link to what standard output is gets the answer behind what stands there; so does --out -, without a file."""
    link = tmp_path / "link"
    link.symlink_to("/proc/self/fd/1")
    question, _, output_format = ONE[1:]
    run_shell(tmp_path, f"(echo before; $S query '{question}' --format {output_format} -o link) > all.txt")
    run_shell(tmp_path, f"$S query '{question}' --format {output_format} -o - >> all.txt")
    assert not (tmp_path / "-").exists()
    assert (tmp_path / "all.txt").read_text(encoding="utf-8") == 'before\n"n"\n1\n"n"\n1\n'
    assert link.is_symlink()


@pytest.mark.parametrize("shape", ["csv", "jsonl", "parquet"])
def test_a_pipe_gets_the_answer(shape: str, scanlake: Scanlake, tmp_path: Path) -> None:
    """A named pipe is written into, in every format, and stays one."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()), daemon=True)
    reader.start()
    answer = scanlake("query", "SELECT 1 AS n", "--format", shape, "-o", "pipe")
    assert pipe.is_fifo()
    reader.join(timeout=300)
    assert (answer.code, answer.err) == (ExitCode.OK, "")
    (tmp_path / "got").write_bytes(read[0])
    if shape == "parquet":
        assert pq.read_table(tmp_path / "got").to_pylist() == [{"n": 1}]
    else:
        assert read[0] == {"csv": b'"n"\n1\n', "jsonl": b'{"n":1}\n'}[shape]


@pytest.mark.parametrize("shape", ["json", "jsonl"])
def test_numbers_that_json_does_not_have_are_text(shape: str, scanlake: Scanlake) -> None:
    """Not-a-number and infinity become text, also in lists, and texts with these words stay as they are."""
    query = """SELECT 'nan'::DOUBLE AS "NaN", ['-inf'::DOUBLE, 1] AS b, 'a "NaN, Infinity\\' AS c, 1 / 0 AS d"""
    answer = scanlake("query", query, "--format", shape)

    def refuse(word: str) -> None:
        raise AssertionError(word)

    read = json.loads(answer.out, parse_constant=refuse)
    row = read["rows"][0] if shape == "json" else read
    assert row == {"NaN": "NaN", "b": ["-Infinity", 1.0], "c": 'a "NaN, Infinity\\', "d": "Infinity"}


def test_a_link_to_a_file_stays_a_link(scanlake: Scanlake, tmp_path: Path) -> None:
    """The file behind a link is replaced, not the link; one that leads nowhere makes its file."""
    (tmp_path / "old.csv").write_text("old", encoding="utf-8")
    for name in ("old", "new"):
        (tmp_path / name).symlink_to(f"{name}.csv")
        assert scanlake(*ONE, "-o", name).code == ExitCode.OK
        assert (tmp_path / name).is_symlink()
        assert (tmp_path / f"{name}.csv").read_text(encoding="utf-8") == '"n"\n1\n'


def test_where_nothing_can_be_is_a_mistake(scanlake: Scanlake, tmp_path: Path) -> None:
    """A file that is not there and a place where none can be end with 2, and name it."""
    (tmp_path / "circle").symlink_to("circle")
    for arguments, says in (
        (("query", "-f", "nope.sql"), "--file nope.sql: No such file or directory."),
        ((*ONE, "-o", "nodir/x.csv"), "--out nodir/x.csv: folder nodir does not exist."),
        ((*ONE, "-o", "."), "--out . is a folder."),
        ((*ONE, "-o", "circle"), "--out circle is a link that refers to itself."),
    ):
        answer = scanlake(*arguments)
        assert (answer.code, len(answer.lines)) == (ExitCode.USAGE, 1), answer.err
        assert says in answer.err
