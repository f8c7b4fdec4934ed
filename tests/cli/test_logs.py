"""Logs: nothing secret and nothing forged reaches the screen or the file."""

from __future__ import annotations

import base64
import json
import logging
import threading
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from pipeline import logs
from tests.guards import spellings
from tests.undisturbed import logging_as_before

if TYPE_CHECKING:
    from collections.abc import Iterator

LOG = Path("run.log")


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    """Logging is the process's own; each test leaves it as it was."""
    with logging_as_before():
        yield


def kept() -> list[dict[str, Any]]:
    """The events in the log file."""
    logs.stop()
    return [json.loads(line) for line in LOG.read_text(encoding="utf-8").splitlines()]


def test_no_spelling_of_the_token_reaches_a_sink(canary: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The token is masked in values, keys, nested values and exceptions, plain, URL-encoded and in base64."""
    logs.learn_secrets(canary)
    logs.start(logs.VERBOSE, file=LOG)
    log = structlog.get_logger()
    log.info("call.made", url=f"https://h/api?token={quote(canary, safe='')}&page=2", headers={"token": [canary]})
    for before in ("", "x", "user:"):
        coded = base64.b64encode(f"{before}{canary}:more".encode()).decode()
        log.info("call.made", authorization=f"Basic {coded}", **{f"key {canary}": 1})
    failure = ValueError(f"GET https://h/files?token={canary} header {canary!r}")
    log.error("call.failed", error=failure, exc_info=failure)
    assert logs.keep_traceback(failure) == LOG.absolute()
    logging.getLogger("aiohttp.client").error("refused %s", f"https://h/?token={canary}")
    screen = "".join(capsys.readouterr())
    for mark in spellings(canary):
        assert mark not in screen
    assert "call.failed" in screen
    assert "refused" in screen
    assert len(kept()) == 7


def test_the_query_of_every_url_is_cut() -> None:
    """Whatever a URL's query holds is not shown, nor a user in front of its host; scrubbing twice changes nothing."""
    text = "GET https://u:p@h/files?token=abc&include[]=uploads failed, see '/next?page=2'"
    assert logs.scrub(text) == "GET https://h/files?... failed, see '/next?...'"
    assert logs.scrub(logs.scrub(text)) == logs.scrub(text)


@given(st.text(st.characters(codec=None, exclude_categories=()), max_size=50))
def test_a_line_is_a_line(text: str) -> None:
    """No value breaks a line, moves the cursor or holds what cannot be written."""
    line = logs.one_line(text)
    assert line.isprintable()
    line.encode()


def test_values_cannot_forge_lines(capsys: pytest.CaptureFixture[str]) -> None:
    """A file name with newlines and terminal sequences stays within its value."""
    logs.start()
    structlog.get_logger().info("file.met", name="a\n12:00:00 error forged\x1b[2J\x1b]0;title\x07", count=3)
    [line] = capsys.readouterr().err.splitlines()
    assert "\x1b" not in line
    assert line.endswith('info     file.met  name="a 12:00:00 error forged" count=3')


@pytest.mark.parametrize(
    ("level", "shown"),
    [(logs.QUIET, ["w.w"]), (logs.NORMAL, ["i.i", "w.w"]), (logs.VERBOSE, ["d.d", "i.i", "w.w"])],
)
def test_levels(level: int, shown: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """--quiet shows warnings, the default what happens, -v every step; the file has at least what happens."""
    logs.start(level, as_json=True, file=LOG)
    log = structlog.get_logger()
    log.debug("d.d")
    log.info("i.i")
    log.warning("w.w")
    assert [json.loads(line)["event"] for line in capsys.readouterr().err.splitlines()] == shown
    assert {"i.i", "w.w"} <= {event["event"] for event in kept()}


def test_the_file_is_private_and_has_the_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    """The log file is its owner's alone and holds tracebacks without local variables; the screen has neither."""
    logs.start(file=LOG)
    secret_local = "of-somebody"
    try:
        _ = 1 / len(secret_local[:0])
    except ZeroDivisionError:
        structlog.get_logger().exception("run.failed")
    [event] = kept()
    assert "ZeroDivisionError" in event["traceback"]
    assert "of-somebody" not in json.dumps(event)
    assert LOG.stat().st_mode & 0o777 == 0o600
    assert "Traceback" not in capsys.readouterr().err


def test_what_libraries_say_goes_through_the_same_gate(capsys: pytest.CaptureFixture[str]) -> None:
    """Warnings and threads that die end up as events, not as raw text on the screen."""
    logs.start(file=LOG)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(capture=True)
        warnings.warn("https://h/?token=abc", stacklevel=1)
    thread = threading.Thread(target=lambda: 1 / 0)
    thread.start()
    thread.join()
    assert [event["event"] for event in kept()] == ["library.said", "thread.died"]
    assert "token=abc" not in capsys.readouterr().err


def test_a_full_disk_does_not_stop_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    """When the log file cannot grow, the event still reaches the screen and nothing is raised."""
    logs.start(file=Path("/dev/full"))
    structlog.get_logger().info("run.started")
    assert "run.started" in capsys.readouterr().err
