"""The guards of tests/conftest.py bite."""

import os
import socket
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import duckdb
import pytest

from tests.budget import read_slow_modules
from tests.conftest import CANARY, ROOT
from tests.guards import Guard, Refused, spellings
from tests.memory_folder import find_memory_folder


def test_the_network_is_refused(guard: Guard) -> None:
    """A connection to anything but loopback is refused before a packet leaves, and no other host is looked up."""
    for address, family in (("192.0.2.1", socket.AF_INET), ("::ffff:192.0.2.1", socket.AF_INET6)):
        with socket.socket(family) as line, pytest.raises(Refused, match="network"):
            line.connect((address, 443))
    with pytest.raises(Refused, match="network"):
        socket.getaddrinfo("service.example", 443)
    guard.refused.clear()


def test_writing_elsewhere_is_refused_and_remembered(guard: Guard) -> None:
    """No test leaves a file among the sources or elsewhere; code that swallows the refusal still fails its test."""
    paths = [ROOT / "pipeline" / "new.py", ROOT / "tests" / "new.txt", Path("/opt/scanlake-test")]
    for path in paths:
        with pytest.raises(Refused):
            path.write_text("x", encoding="utf-8")
        assert not path.exists()
    assert guard.refused == [f"a file outside the temporary folder: {path}" for path in paths]
    guard.refused.clear()


def test_a_database_that_is_held_is_opened_by_nobody_else(tmp_path: Path) -> None:
    """A file on which this process has a lock is not opened, nor its index; one that is closed again is."""
    path = tmp_path / "ledger.sqlite"
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("CREATE TABLE t (x)")
        for file in (path, tmp_path / "ledger.sqlite-shm"):
            with pytest.raises(Refused, match="holds"):
                file.read_bytes()
    path.read_bytes()
    with duckdb.connect(str(tmp_path / "catalog.duckdb")), pytest.raises(Refused, match="holds"):
        (tmp_path / "catalog.duckdb").read_bytes()


def test_the_environment_is_nobodys(tmp_path: Path) -> None:
    """A test sees no settings, no proxy and no home but its own, and starts in its own folder."""
    assert not [name for name in os.environ if name.upper().startswith(("SCANLAKE_", "HTTP_", "HTTPS_", "ALL_PROXY"))]
    assert Path.home().parent == tmp_path.parent
    assert Path.cwd() == tmp_path


def test_processes_run_the_sources_that_are_tested(tmp_path: Path) -> None:
    """A process that a test starts in its folder imports this checkout, not the one that is installed."""
    command = [sys.executable, "-c", "import pipeline; print(pipeline.__file__)"]
    shown = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert Path(shown.strip()) == ROOT / "pipeline" / "__init__.py"


def test_the_fast_run_leaves_out_the_slow_modules() -> None:
    """`-m "not slow"` selects by the list of slow modules: marked before pytest selects."""
    module = min(read_slow_modules())
    options = ["-q", "--collect-only", "-p", "no:cacheprovider", "-m", "not slow"]
    command = [sys.executable, "-m", "pytest", *options, module]
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert shown.returncode == pytest.ExitCode.NO_TESTS_COLLECTED, shown.stdout


def test_the_canary_is_known_in_every_spelling() -> None:
    """The search for the canary finds it in a URL and within any base64 text."""
    import_free = {CANARY, "cAnArY%2F7f3a%2BScanlake%2FSuite9c1e%2BToken%3D%3D"}
    assert import_free <= spellings(CANARY)
    assert all(len(mark) > 30 for mark in spellings(CANARY))


def test_a_folder_in_memory_is_used_only_with_enough_space(tmp_path: Path) -> None:
    """A folder that is missing, a link or too small is not used for the temporary files of the suite."""
    (tmp_path / "link").symlink_to(tmp_path)
    assert find_memory_folder(tmp_path, needed=0) in {tmp_path, None}  # None on a machine with little memory
    assert find_memory_folder(tmp_path, needed=2**62) is None
    assert find_memory_folder(tmp_path / "link", needed=0) is None
    assert find_memory_folder(tmp_path / "missing", needed=0) is None
