"""Guards for the whole suite: the network, the environment, the file system, the token.

No connection leaves this machine, nobody's settings are seen, nothing is written outside the temporary folder
and no token is left lying about. `tests/architecture/test_guards.py` shows that each of them bites.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
import time
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
import structlog
from hypothesis import HealthCheck, core, settings
from hypothesis.configuration import set_hypothesis_home_dir

from tests.budget import LEFT_TO_SOAK, Budget, read_slow_modules
from tests.guards import Guard, refuse_open_of_held_database, spellings
from tests.memory_folder import find_memory_folder
from tests.soaking import SEED_VARIABLE, SOAKING
from tests.virtual_time import VirtualLoop

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT: Final = Path(__file__).resolve().parent.parent
CANARY: Final = "cAnArY/7f3a+Scanlake/Suite9c1e+Token=="
TOKEN_FILE: Final = "token"
"""The one file name under which a test may keep the canary."""

_ZONES: Final = ("UTC", "Europe/Berlin", "Asia/Kathmandu", "Pacific/Apia", "America/St_Johns")
_OF_OTHERS: Final = ("SCANLAKE_", "XDG_STATE_HOME", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "NETRC")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let a whole run record what `make test-fast` leaves out."""
    parser.addoption("--record-costs", action="store_true", help="write tests/slow_modules.txt anew from this run")


def pytest_configure(config: pytest.Config) -> None:
    """Count processor time."""
    config.pluginmanager.register(Budget(records=config.getoption("--record-costs")), "budget")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
    """Mark the tests of slow modules, let pytest select, and leave to `make soak` what is its own of the rest."""
    slow = read_slow_modules()
    for item in items:
        if item.path.relative_to(ROOT).as_posix() in slow:
            item.add_marker(pytest.mark.slow)
    yield
    if not SOAKING:
        left = [item for item in items if item.get_closest_marker("soak")]
        items[:] = [item for item in items if not item.get_closest_marker("soak")]
        config.stash[LEFT_TO_SOAK] = len(left)
        config.hook.pytest_deselected(items=left)


def pytest_asyncio_loop_factories(item: pytest.Item) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run a test in virtual time if it is marked so."""
    return {"loop": VirtualLoop if item.get_closest_marker("virtual_time") else asyncio.new_event_loop}


# A shell starts background commands without Ctrl-C, `nohup` any without SIGHUP, and what a test starts inherits it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
set_hypothesis_home_dir(ROOT / ".hypothesis")
_SLOW_IS_FINE: Final = (HealthCheck.too_slow, HealthCheck.function_scoped_fixture)
settings.register_profile("dev", deadline=None, print_blob=True, suppress_health_check=_SLOW_IS_FINE)
settings.register_profile("same", settings.get_profile("dev"), derandomize=True, database=None)
settings.register_profile("soak", settings.get_profile("dev"), database=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or "same")
if SEED_VARIABLE in os.environ:
    settings.load_profile("soak")
    core.global_force_seed = int(os.environ[SEED_VARIABLE])  # type: ignore[assignment]

# pytest makes its temporary folder there.
if "PYTEST_DEBUG_TEMPROOT" not in os.environ and (_memory := find_memory_folder()) is not None:
    os.environ["PYTEST_DEBUG_TEMPROOT"] = str(_memory)

_guard: Final = Guard(ROOT)
# Processes of tests run these sources, whatever checkout is installed, and whoever changes that one meanwhile.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
sys.addaudithook(_guard)
sys.addaudithook(refuse_open_of_held_database)


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
    structlog.reset_defaults()  # a command that a former test ran in this process has set the level
    monkeypatch.chdir(tmp_path)
    with _guard.watching():
        yield
    monkeypatch.undo()
    time.tzset()
    assert not _guard.refused, f"the test reached for {_guard.refused}"


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user of the machine can reach, and a test's own folder is not."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder


@pytest.fixture
def canary(tmp_path: Path) -> Iterator[str]:
    """A token that no file of the test may hold afterwards, be it plain, URL-encoded or in base64."""
    yield CANARY
    marks = [mark.encode() for mark in spellings(CANARY)]
    for path in tmp_path.rglob("*"):
        if path.is_file() and path.name != TOKEN_FILE:
            content = path.read_bytes()
            assert not any(mark in content for mark in marks), f"the token is in {path.relative_to(tmp_path)}"
