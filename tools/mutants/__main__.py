"""Mutants: edits one line of the product at random, and looks whether the nearest tests notice.

Each mutant is a copy of the sources in which one line differs, and a fork of this process, which has imported the
libraries: its tests run until the first that fails. A survivor is a hole in the tests, or no fault at all: look at it.

`python -m tools.mutants --count 100 --seed 1`; `--only sync` for one package, `--show` to print without running.
"""

from __future__ import annotations

import argparse
import importlib
import math
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tools.mutants.lines import Mutant, list_mutants

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
_PACKAGES: Final = ("pipeline", "schemas", "tests", "tools")
_DOCUMENTS: Final = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
_COPIED: Final = (*_PACKAGES, *_DOCUMENTS, "configs", "docs", "Makefile", "pyproject.toml")
_LIBRARIES: Final = (
    "pytest",
    "aiohttp",
    "duckdb",
    "pyarrow.parquet",
    "pyarrow.compute",
    "pydantic",
    "structlog",
)
_SMALL_TEST: Final = "tests/test_rows.py"  # passes at least, if a mutant was noticed by a process without a failed test
_TEST_SECONDS: Final = 120  # of one test: a loop without end is noticed
_ADDRESS_SPACE: Final = 8 * 1024**3  # bytes of one process: a mutant that never ends may grow without end


@dataclass(frozen=True, slots=True)
class Area:
    """Modules of the product, and the tests that are nearest to them, the nearest first."""

    modules: tuple[str, ...]
    tests: tuple[str, ...]


_COMMAND_TESTS: Final = (
    *(f"tests/cli/test_{name}.py" for name in ("settings", "cli", "mistakes", "locations", "query_access", "mcp")),
    *("tests/commands", "tests/docs"),
)
"""Not the limits of queries, which need more address space than a mutant has."""
AREAS: Final = {
    "crawl": Area(("pipeline/crawl/*.py",), ("tests/crawl", "tests/sync", "tests/stateful")),
    "cli": Area(("pipeline/cli/*.py", "pipeline/cli/commands/*.py"), _COMMAND_TESTS),
    "client": Area(("pipeline/client/*.py",), ("tests/client", "tests/crawl")),
    "flatten": Area(("pipeline/flatten/*.py",), ("tests/flatten", "tests/schemas", "tests/sync", "tests/stateful")),
    "sync": Area(("pipeline/sync/*.py",), ("tests/sync", "tests/stateful", "tests/commands/test_plan.py")),
    "ledger": Area(
        (
            "pipeline/lake/ledger/*.py",
            "pipeline/lake/ledger_rebuild.py",
        ),
        ("tests/lake", "tests/sync", "tests/stateful"),
    ),
    "project": Area(
        (
            "pipeline/lake/catalog/catalog.py",
            "pipeline/lake/catalog/tables.py",
            "pipeline/lake/catalog/history.py",
            "pipeline/lake/catalog/documents.py",
            "pipeline/lake/storage/parts.py",
        ),
        ("tests/lake", "tests/sync", "tests/stateful", "tests/images/test_stored_images.py"),
    ),
    "reports": Area(("pipeline/reports/confirmation.py", "pipeline/reports/certification.py"), ("tests/reports",)),
    "settings": Area(("pipeline/settings/*.py",), _COMMAND_TESTS),
    "publish": Area(("pipeline/publish/*.py",), ("tests/publish",)),
}


@dataclass(frozen=True, slots=True)
class Case:
    """A mutant of a module of an area."""

    area: str
    module: str
    mutant: Mutant

    def describe(self) -> str:
        """Return the line before and after."""
        source = (ROOT / self.module).read_text(encoding="utf-8")
        before = source.splitlines()[self.mutant.line - 1].strip()
        after = self.mutant.apply(source).splitlines()[self.mutant.line - 1].strip()
        return f"{self.module}:{self.mutant.line}\n    - {before}\n    + {after}"


def find_modules(area: str) -> list[str]:
    """Return the modules of an area. A glob without a file ends the program: what it named has moved."""
    found = {glob: [path.relative_to(ROOT).as_posix() for path in ROOT.glob(glob)] for glob in AREAS[area].modules}
    if stale := [glob for glob, modules in found.items() if not modules]:
        sys.exit(f"{area}: no module is named {' or '.join(stale)}")
    return sorted({module for modules in found.values() for module in modules})


def draw_cases(areas: Sequence[str], *, count: int, seed: int) -> list[Case]:
    """Return mutants drawn from the areas in turn, so that each has its share; the same for the same seed."""
    dice = random.Random(seed)
    pools: dict[str, list[Case]] = {}
    for area in areas:
        pools[area] = [
            Case(area, module, mutant)
            for module in find_modules(area)
            for mutant in list_mutants((ROOT / module).read_text(encoding="utf-8"))
        ]
        dice.shuffle(pools[area])
    cases = [pools[area][turn] for turn in range(count) for area in areas if turn < len(pools[area])]
    return cases[:count]


def is_noticed(case: Case, tests: Sequence[str], folder: Path, seconds: float) -> tuple[bool, str]:
    """Return whether tests fail on the mutant within so many seconds, and the first test that does."""
    tree = folder / "tree"
    for name in _COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, tree / name, ignore=shutil.ignore_patterns("__pycache__", "results.json"))
        else:
            tree.mkdir(exist_ok=True)
            shutil.copy2(source, tree / name)
    path = tree / case.module
    path.write_text(case.mutant.apply(path.read_text(encoding="utf-8")), encoding="utf-8")
    output = folder / "output"
    child = os.fork()
    if not child:
        _run_tests(tree, output, tests, _name_module(case.module))
    status = _wait(child, seconds)
    failed = [line for line in output.read_text(errors="replace").splitlines() if line.startswith(("FAILED", "ERROR"))]
    return status not in {0, None}, failed[0].split(" - ")[0] if failed else f"status {status}"


class _NearestFirst:
    """A plugin: the files of tests that name a module come first, those named after it before the others."""

    def __init__(self, module: str) -> None:
        self._module = module

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Order the tests; those of a file stay together."""
        stem = self._module.rpartition(".")[2]
        places = {
            path: (stem not in path.stem, self._module not in path.read_text(encoding="utf-8"))
            for path in {item.path for item in items}
        }
        items.sort(key=lambda item: places[item.path])


def _name_module(path: str) -> str:
    return path.removesuffix(".py").replace("/", ".")


def _run_tests(tree: Path, output: Path, tests: Sequence[str], module: str) -> None:
    """Run tests in this forked process, in a group of its own, and end it with their status."""
    status = 70
    try:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_AS, (_ADDRESS_SPACE, _ADDRESS_SPACE))
        os.chdir(tree)
        handle = os.open(output, os.O_WRONLY | os.O_CREAT, 0o600)
        os.dup2(handle, 1)
        os.dup2(handle, 2)
        for name in [name for name in sys.modules if name.partition(".")[0] in _PACKAGES]:
            del sys.modules[name]
        sys.path[:] = [str(tree), *(entry for entry in sys.path if entry not in {"", str(ROOT)})]
        runner = importlib.import_module("pytest")
        options = ["-q", "-x", "-p", "no:cacheprovider", f"--basetemp={output.parent / 'temp'}"]
        # By a thread: Hypothesis would try the loop again after the signal.
        options += ["--timeout", str(_TEST_SECONDS), "--timeout-method", "thread"]
        status = runner.main([*options, *tests], plugins=[_NearestFirst(module)])
    except BaseException:  # noqa: BLE001 - the fork has nobody to tell but its output
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(int(status))


def _wait(child: int, seconds: float) -> int | None:
    """Return the exit status of a process, None if it was killed after so many seconds. Its group goes with it."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.05)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def _run_in_new_folder(case: Case, tests: Sequence[str], seconds: float) -> tuple[bool, str]:
    with tempfile.TemporaryDirectory(prefix="scanlake-mutant-", ignore_cleanup_errors=True) as folder:
        return is_noticed(case, tests, Path(folder), seconds)


@cache
def _require_pass(test: str) -> None:
    """End the program if a test that has noticed a mutant fails without one too."""
    unchanged = Case("", "pyproject.toml", Mutant(1, 0, 0, ""))
    if _run_in_new_folder(unchanged, [test], math.inf)[0]:
        sys.exit(f"{test} fails without a mutant")


def main() -> None:
    """Draw mutants, run the tests on each, print the survivors."""
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--count", type=int, default=20, help="mutants (20)")
    parser.add_argument("--seed", type=int, default=1, help="the same mutants for the same seed and sources (1)")
    parser.add_argument("--only", action="append", choices=sorted(AREAS), help="an area; repeatable")
    parser.add_argument("--skip", type=int, default=0, help="leave out the first mutants of the draw, done before")
    parser.add_argument("--seconds", type=float, default=math.inf, help="what they do not notice by then survives")
    parser.add_argument("--show", action="store_true", help="print the mutants and run nothing")
    arguments = parser.parse_args()
    cases = draw_cases(arguments.only or sorted(AREAS), count=arguments.count, seed=arguments.seed)
    survivors = []
    for library in () if arguments.show else _LIBRARIES:
        importlib.import_module(library)
    for number, case in enumerate(cases[arguments.skip :], start=arguments.skip + 1):
        if arguments.show:
            print(f"{number}. {case.describe()}")
            continue
        began = time.monotonic()
        noticed, by = _run_in_new_folder(case, AREAS[case.area].tests, arguments.seconds)
        if noticed:
            is_named = by.startswith(("FAILED ", "ERROR "))
            _require_pass(by.split(" ", maxsplit=1)[1].split("[")[0] if is_named else _SMALL_TEST)
        survivors += [] if noticed else [case]
        verdict = f"noticed by {by}" if noticed else "SURVIVES"
        print(f"{number}. {case.describe()}\n    {verdict} ({time.monotonic() - began:.0f} s)", flush=True)
    if not arguments.show:
        done = len(cases) - arguments.skip
        print(f"{done - len(survivors)} of {done} mutants noticed (seed {arguments.seed})")


if __name__ == "__main__":
    main()
