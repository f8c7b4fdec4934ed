"""Files that scanlake replaces or appends to are its own: a file of others, a link and a file of a lake are refused."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.errors import ExitCode
from tests.constants import run_constants
from tests.lake.test_folders import describe, make_lake

if TYPE_CHECKING:
    from tests.processes import Answer, Scanlake

SERVICE = {"SCANLAKE_BASE_URL": "http://127.0.0.1:9", "SCANLAKE_TOKEN": "a-token"}


def make_files_of_others(folder: Path) -> list[Path]:
    """A database, a text, a script, a link to nothing, a link to a file, a folder, a pipe, and a file of a lake."""
    with closing(sqlite3.connect(folder / "theirs.sqlite")) as db:
        db.executescript("CREATE TABLE t (a)")
    (folder / "scanlake.toml").write_text('lake = "lake"\n', encoding="utf-8")
    (folder / "font.ttf").write_bytes(b"\0\1\0\0")
    (folder / "disk.img").write_bytes(bytes(32_768) + b"CD001")
    (folder / "nowhere").symlink_to("gone")
    (folder / "own").write_text('# HELP scanlake_files\n{"at"}', encoding="utf-8")
    (folder / "link").symlink_to("own")
    (folder / "folder").mkdir()
    os.mkfifo(folder / "pipe")
    make_lake(folder / "lake", source=SERVICE["SCANLAKE_BASE_URL"])
    make_lake(folder / "other", source="https://service.example")
    names = (
        "theirs.sqlite",
        "scanlake.toml",
        "font.ttf",
        "disk.img",
        "nowhere",
        "link",
        "folder",
        "pipe",
        "folder/../font.ttf",
    )
    return [folder / name for name in (*names, "lake/ledger.sqlite", "lake/new", "other/new", "font.ttf/below")]


def check_refused(answer: Answer, path: Path) -> None:
    """A refusal is exit code 2 with one line that names the file."""
    assert (answer.code, len(answer.lines), str(path) in answer.err) == (ExitCode.USAGE, 1, True), answer


def test_metrics_replace_only_metrics(tmp_path: Path, main: Scanlake) -> None:
    """A sync refuses `metrics_file` before it starts; a new or empty file, and older metrics, get the metrics."""
    paths = make_files_of_others(tmp_path)
    before = describe(tmp_path)
    for path in paths:
        check_refused(main("sync", "--set", f"metrics_file={path}", **SERVICE), path)
        assert describe(tmp_path) == before
    (tmp_path / "empty").touch()
    (tmp_path / "zeros").write_bytes(bytes(100))  # after a power loss
    for name in ("metrics/new", "empty", "empty", "zeros"):
        with run_constants({"max_attempts": 1}):
            assert main("sync", "--set", f"metrics_file={name}", **SERVICE).code == ExitCode.FAILED
        assert Path(name).read_text(encoding="utf-8").startswith("# HELP scanlake_")


def test_a_log_is_appended_only_to_a_log(tmp_path: Path, main: Scanlake) -> None:
    """A log file is refused before anything is written, as an option and as a setting; a log, new or older, grows."""
    paths = make_files_of_others(tmp_path)
    (tmp_path / "own").write_text('{"at": ""}\n', encoding="utf-8")
    before = describe(tmp_path)
    for path in (*paths, tmp_path / "fresh" / "new"):
        lake = ("--lake", "fresh") if path.parent.name == "fresh" else ()
        check_refused(main("status", "--log-file", str(path), *lake), path)
        check_refused(main("status", *lake, SCANLAKE_LOG_FILE=str(path)), path)
        check_refused(main("settings", "--set", f"log_file={path}", *lake), path)
        assert describe(tmp_path) == before
    (tmp_path / "empty").touch()
    (tmp_path / "zeros").write_bytes(bytes(100))
    for name in ("logs/new", "empty", "own", "zeros"):
        with run_constants({"max_attempts": 1}):
            assert main("sync", "--log-file", name, **SERVICE).code == ExitCode.FAILED
        assert '"run.started"' in Path(name).read_text(encoding="utf-8")
