"""The first half second of the process: signals and damaged modules, while everything is imported."""

from __future__ import annotations

import os
import py_compile
import shutil
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Final

import pytest

from tests.conftest import ROOT
from tests.rows import every
from tests.soaking import unmeasured

if TYPE_CHECKING:
    from pathlib import Path

_WAIT_AT_IMPORT: Final = """
import os, sys, time

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == os.environ["WAIT_AT"]:
            try:
                sys.stdout.write("there\\n")
                sys.stdout.flush()
                time.sleep(float(os.environ.get("SECONDS", "30")))
            except BaseException:  # as modules do that try what is there
                pass

sys.meta_path.insert(0, Finder())
"""


def start_importing(folder: Path, module: str, *command: str, **environment: str) -> subprocess.Popen[str]:
    """Start Python with a command, and return when it imports the module, at which it waits."""
    (folder / "sitecustomize.py").write_text(_WAIT_AT_IMPORT)
    variables = {**unmeasured(), "PYTHONPATH": f"{folder}:{ROOT}", "WAIT_AT": module, **environment}
    process = subprocess.Popen([sys.executable, *command], env=variables, text=True, stdout=-1, stderr=-1, cwd=folder)
    assert process.stdout is not None
    assert process.stdout.readline() == "there\n"
    return process


@pytest.mark.parametrize(
    ("module", "number"), [("pipeline.cli.app", signal.SIGINT), ("pipeline.cli.commands.sync", signal.SIGTERM)]
)
def test_a_signal_during_the_imports(tmp_path: Path, module: str, number: int) -> None:
    """SIGTERM and Ctrl-C end the command with 130 and one line, whatever is imported, and whatever that catches."""
    with start_importing(tmp_path, module, "-m", "pipeline", "sync", SCANLAKE_LAKE="lake") as process:
        process.send_signal(number)
        _, message = process.communicate(timeout=60)
    assert process.returncode == 130, message
    assert message == "scanlake: Interrupted. Run the same command again.\n"
    assert not (tmp_path / "lake").exists()


def test_an_ignored_signal_stays_ignored(tmp_path: Path) -> None:
    """A signal that the caller ignores, as a shell does for a background command, does not end the command."""
    ignore = "import os, signal, sys; signal.signal(2, signal.SIG_IGN); os.execv(sys.executable, sys.argv[1:])"
    command = ("-c", ignore, sys.executable, "-m", "pipeline", "--version")
    with start_importing(tmp_path, "typer", *command, SECONDS="0.5") as process:
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=60)[0].startswith("scanlake ")
    assert process.returncode == 0


def test_a_module_that_was_cut_short(tmp_path: Path) -> None:
    """A compiled module that a full disk cut short is named as the cause; it is no interrupt."""
    for package in ("pipeline", "schemas"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    compiled = py_compile.compile(str(tmp_path / "pipeline" / "sync" / "verify.py"), doraise=True)
    assert compiled is not None
    os.truncate(compiled, 100)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pipeline", "sync"]
    answer = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert answer.returncode == 1, answer.stderr
    assert "cannot be imported: EOFError: marshal data too short." in answer.stderr
    assert "Install scanlake again" in answer.stderr
    assert len(answer.stderr.splitlines()) == 1


_NOT_FOR_READERS: Final = frozenset({
    *("aiohttp", "asyncio", "multiprocessing", "pyarrow", "pyarrow.csv", "pyarrow.parquet", "pydantic"),
    *("rich.console", "schemas.requests", "schemas.tables", "schemas.wire", "ssl", "structlog", "tenacity"),
    *("uvloop", "xlsxwriter"),
})  # fmt: skip
_NOT_FOR_SYNC: Final = frozenset({
    *("jinja2", "multiprocessing", "pyarrow.compute", "pyarrow.dataset", "pydantic", "rich.live", "xlsxwriter"),
})  # fmt: skip
_RUN_COMMAND: Final = """
import sys; from pipeline.cli.app import main
try: main()
except SystemExit as end: assert end.code == 0
print(*sys.modules, file=sys.stderr)
"""


@every(
    "program, arguments, loaded, none_but",
    [
        (_RUN_COMMAND, ("query", "SELECT 1"), {"duckdb", "rich.console"}, _NOT_FOR_READERS),
        (_RUN_COMMAND, ("--json", "status"), {"duckdb"}, _NOT_FOR_READERS),
        (_RUN_COMMAND, ("--json", "query", "SELECT 1"), {"duckdb", "pyarrow"}, _NOT_FOR_READERS),
        (
            "import sys, pipeline.cli.commands.sync; print(*sys.modules, file=sys.stderr)",
            (),
            {"aiohttp"},
            _NOT_FOR_SYNC,
        ),
    ],
)
def test_a_command_loads_no_more_than_it_needs(
    program: str, arguments: tuple[str, ...], loaded: set[str], none_but: frozenset[str], lake: Path
) -> None:
    """`status` and `query` load no HTTP client and no loop, rich for tables and Arrow for JSON only; sync no pages."""
    command = [sys.executable, "-c", program, "--lake", str(lake), *arguments]
    done = subprocess.run(command, env=unmeasured(), capture_output=True, text=True, check=True)
    found = set(done.stderr.split())
    assert loaded <= found
    assert found & none_but <= loaded
