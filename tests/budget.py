"""Counts the processor time of every test, with its child processes, and fails the run that is over budget.

Wall time depends on what else a machine does; processor time hardly does. The time of commands that a fork server runs
is counted where their exit status is read.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests import forkserver
from tests.soaking import SOAKING

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_SECONDS: Final = 1_300.0
"""Processor seconds of a whole run of `make test`: twice what it takes: a slow or loaded machine counts more."""
MAX_TEST_SECONDS: Final = 5.0
"""Processor seconds of one test that is not marked as slow, without its fixtures, which others share."""
SLOW_MODULES: Final = Path(__file__).with_name("slow_modules.txt")
"""Modules with dear tests, one a line, as `pytest --record-costs` of a whole run on a quiet machine has found them."""
COSTS: Final = Path(__file__).parent.parent / "build" / "test_costs.tsv"
"""Processor seconds of each test, dearest first, written with the slow modules."""
_SLOW_TEST_SECONDS: Final = 0.8
_SLOW_MODULE_SECONDS: Final = 3.0
_PROPERTY: Final = "cpu_seconds"
_SHOWN: Final = 10


def used_seconds() -> float:
    """Return the processor seconds of this process, of the children it waited for, and of its fork server's."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system + forkserver.used_seconds()


class Budget:
    """The plugin: workers measure, the process that they report to adds up."""

    def __init__(self, *, records: bool) -> None:
        self._records = records
        self._costs = Counter[str]()
        self._over: list[str] = []
        self._left_to_soak = 0

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Measure a test with its fixtures."""
        item.stash[_STARTED] = used_seconds()
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
        """Attach what the test has used to the report of its last phase."""
        if call.when == "setup":
            item.stash[_SET_UP] = used_seconds()
        elif call.when == "call":
            item.stash[_CALLED] = used_seconds() - item.stash[_SET_UP]
        else:
            is_dear = item.stash.get(_CALLED, 0.0) > MAX_TEST_SECONDS and item.get_closest_marker("slow") is None
            item.user_properties.append((_PROPERTY, (used_seconds() - item.stash[_STARTED], is_dear)))
        return (yield)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add up what a worker reports."""
        found = dict(report.user_properties).get(_PROPERTY)
        if report.when != "teardown" or not isinstance(found, (tuple, list)):
            return
        used, is_dear = found
        self._costs[report.nodeid] += used
        if is_dear:
            self._over.append(report.nodeid)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take from a worker how many tests it has left out; all workers leave out the same."""
        self._left_to_soak = getattr(node, "workeroutput", {}).get(_WORKER_KEY, 0)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the total, the dearest tests, and the cost of each folder."""
        write, total = terminalreporter.write_line, self._costs.total()
        if left := terminalreporter.config.stash.get(LEFT_TO_SOAK, self._left_to_soak):
            write(f"{left:,} tests are marked `soak`: `make soak` runs them")
        write(f"{total:,.0f} processor seconds (of {MAX_SECONDS:,.0f})")
        for name, used in self._costs.most_common(_SHOWN):
            write(f"{used:8.1f}  {name}")
        folders = Counter[str]()
        for name, used in self._costs.items():
            folders["/".join(name.split("::")[0].split("/")[:2])] += used
        write(", ".join(f"{folder} {used:,.0f}" for folder, used in folders.most_common()))
        if self._records:
            SLOW_MODULES.write_text("".join(f"{module}\n" for module in self._find_slow_modules()), encoding="utf-8")
            COSTS.parent.mkdir(exist_ok=True)
            COSTS.write_text(
                "".join(f"{used:.2f}\t{name}\n" for name, used in self._costs.most_common()), encoding="utf-8"
            )
        for name in self._over:
            write(f"over {MAX_TEST_SECONDS:g} processor seconds and not marked as slow: {name}")

    def _find_slow_modules(self) -> list[str]:
        totals, dearest = Counter[str](), Counter[str]()
        for name, used in self._costs.items():
            module = name.split("::")[0]
            totals[module] += used
            dearest[module] = max(dearest[module], used)
        return sorted(
            module for module in totals
            if dearest[module] > _SLOW_TEST_SECONDS or totals[module] > _SLOW_MODULE_SECONDS
        )  # fmt: skip

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Fail a run that is over budget."""
        config = session.config
        if hasattr(config, "workerinput"):
            config.workeroutput[_WORKER_KEY] = config.stash.get(LEFT_TO_SOAK, 0)  # type: ignore[attr-defined]
        elif SOAKING or config.pluginmanager.has_plugin("_cov"):  # what is measured costs half as much again
            return
        elif self._over or self._costs.total() > MAX_SECONDS:
            session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED


def read_slow_modules() -> frozenset[str]:
    """Return the modules whose tests `make test-fast` leaves out, as paths below the project."""
    return frozenset(SLOW_MODULES.read_text(encoding="utf-8").split())


LEFT_TO_SOAK: Final = pytest.StashKey[int]()
"""How many tests of this process's collection only a soak runs."""
_WORKER_KEY: Final = "left_to_soak"
_STARTED: Final = pytest.StashKey[float]()
_SET_UP: Final = pytest.StashKey[float]()
"""Processor seconds used before the test, and when its fixtures were made."""
_CALLED: Final = pytest.StashKey[float]()
"""Processor seconds of the call alone; none of a test that was skipped."""
