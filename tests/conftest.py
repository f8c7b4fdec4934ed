"""Guards for the whole suite: the network, the environment, the file system, the token.

No connection leaves this machine, nobody's settings are seen, nothing is written outside the temporary folder
and no token is left lying about. `tests/architecture/test_guards.py` shows that each of them bites.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.configuration import set_hypothesis_home_dir

from tests.guards import Guard, spellings
from tests.memory_folder import find_memory_folder

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT: Final = Path(__file__).resolve().parent.parent
CANARY: Final = "cAnArY/7f3a+Scanlake/Suite9c1e+Token=="
TOKEN_FILE: Final = "token"
"""The one file name under which a test may keep the canary."""

_SLOW_FOLDERS: Final = ("api", "engines", "lake", "publish", "reports", "stateful", "sync")
_SLOW_MODULES: Final = frozenset(
    "cli/test_argument_validation cli/test_damage cli/test_hostile_queries cli/test_mcp cli/test_output"
    " cli/test_process_start cli/test_query_access cli/test_standard_streams cli/test_summaries client/test_proxy"
    " client/test_rate_on_sockets commands/test_check commands/test_errors commands/test_files"
    " commands/test_plan commands/test_sources commands/test_query_all commands/test_true_figures crawl/test_bounds"
    " crawl/test_budgets crawl/test_failures crawl/test_list_variants crawl/test_moving_world"
    " crawl/test_overflowing_second crawl/test_stopping pages/test_browser pages/test_command"
    " pages/test_figures docs/test_output docs/test_search_output emulator/test_control_and_process"
    " monitoring/test_container monitoring/test_metrics monitoring/test_terminal_progress"
    " monitoring/test_watch cli/test_query_terminal commands/test_first_run commands/test_init"
    " commands/test_init_source"
    " test_distribution".split()
)
"""Modules whose tests mostly start processes or sync whole worlds: `make test-fast` leaves them out."""

_ZONES: Final = ("UTC", "Europe/Berlin", "Asia/Kathmandu", "Pacific/Apia", "America/St_Johns")
_OF_OTHERS: Final = ("SCANLAKE_", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "NETRC")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of slow modules."""
    for item in items:
        module = item.path.relative_to(ROOT / "tests").with_suffix("").as_posix()
        if module in _SLOW_MODULES or module.startswith(_SLOW_FOLDERS):
            item.add_marker(pytest.mark.slow)


# A shell starts background commands without Ctrl-C, `nohup` any without SIGHUP, and what a test starts inherits it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
set_hypothesis_home_dir(ROOT / ".hypothesis")
_SLOW_IS_FINE: Final = (HealthCheck.too_slow, HealthCheck.function_scoped_fixture)
settings.register_profile("dev", deadline=None, print_blob=True, suppress_health_check=_SLOW_IS_FINE)
settings.register_profile(
    "ci", settings.get_profile("dev"), max_examples=100, derandomize=True, database=None, print_blob=True
)
settings.register_profile("soak", settings.get_profile("dev"), database=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "dev"))

# pytest makes its temporary folder there.
if "PYTEST_DEBUG_TEMPROOT" not in os.environ and (_memory := find_memory_folder()) is not None:
    os.environ["PYTEST_DEBUG_TEMPROOT"] = str(_memory)

_guard: Final = Guard(ROOT)
# Processes of tests run these sources, whatever checkout is installed, and whoever changes that one meanwhile.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
sys.addaudithook(_guard)


@pytest.fixture
def guard() -> Guard:
    """The guard itself, for the tests that show that it bites."""
    return _guard


@pytest.fixture(autouse=True)
def _alone(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each test runs in its own folder, without anybody's settings, in a time zone drawn from its name."""
    for name in list(os.environ):
        if name.upper().startswith(_OF_OTHERS):
            monkeypatch.delenv(name)
    home = tmp_path.with_name(f"{tmp_path.name}-home")
    home.mkdir(exist_ok=True)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("TZ", _ZONES[zlib.crc32(request.node.nodeid.encode()) % len(_ZONES)])
    time.tzset()
    monkeypatch.chdir(tmp_path)
    with _guard.watching():
        yield
    monkeypatch.undo()
    time.tzset()
    assert not _guard.refused, f"the test reached for {_guard.refused}"


@pytest.fixture
def canary(tmp_path: Path) -> Iterator[str]:
    """A token that no file of the test may hold afterwards, be it plain, URL-encoded or in base64."""
    yield CANARY
    marks = [mark.encode() for mark in spellings(CANARY)]
    for path in tmp_path.rglob("*"):
        if path.is_file() and path.name != TOKEN_FILE:
            content = path.read_bytes()
            assert not any(mark in content for mark in marks), f"the token is in {path.relative_to(tmp_path)}"
