"""Logs and the lines of progress in them: nothing secret and nothing forged reaches the screen or the file."""

from __future__ import annotations

import base64
import io
import json
import logging
import threading
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from pipeline.output import logs, redaction
from pipeline.output.progress import CrawlProgress, LogProgress, RateEstimator
from tests.guards import spellings
from tests.logging_reset import logging_as_before

if TYPE_CHECKING:
    from collections.abc import Iterator

LOG = Path("run.log")


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    """Logging is a property of the process; each test restores it."""
    with logging_as_before():
        yield


def read_log() -> list[dict[str, Any]]:
    """The events in the log file."""
    logs.close()
    return [json.loads(line) for line in LOG.read_text(encoding="utf-8").splitlines()]


def test_no_encoding_of_the_token_reaches_screen_or_file(canary: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The token is redacted in values, keys, nested values and exceptions, plain, URL-encoded and in base64."""
    redaction.register_secrets(canary)
    logs.configure(logs.VERBOSE, file=LOG)
    log = structlog.get_logger()
    log.info("call.made", url=f"https://h/api?token={quote(canary, safe='')}&page=2", headers={"token": [canary]})
    for before in ("", "x", "user:"):
        coded = base64.b64encode(f"{before}{canary}:more".encode()).decode()
        log.info("call.made", authorization=f"Basic {coded}", **{f"key {canary}": 1})
    failure = ValueError(f"GET https://h/files?token={canary} header {canary!r}")
    log.error("call.failed", error=failure, exc_info=failure)
    assert logs.log_traceback(failure) == LOG.absolute()
    logging.getLogger("aiohttp.client").error("refused %s", f"https://h/?token={canary}")
    screen = "".join(capsys.readouterr())
    for mark in spellings(canary):
        assert mark not in screen
    assert "call.failed" in screen
    assert "refused" in screen
    assert len(read_log()) == 7


def test_the_query_of_every_url_is_cut() -> None:
    """The query of a URL and the user in it are not shown; redacting twice changes nothing."""
    text = "GET https://u:p@h/files?token=abc&include[]=uploads failed, see '/next?page=2'"
    assert redaction.redact(text) == "GET https://h/files?... failed, see '/next?...'"
    assert redaction.redact(redaction.redact(text)) == redaction.redact(text)


@given(st.text(st.characters(codec=None, exclude_categories=()), max_size=50))
def test_one_line_is_one_printable_line(text: str) -> None:
    """No value breaks a line, moves the cursor or contains unencodable characters."""
    line = redaction.to_one_line(text)
    assert line.isprintable()
    line.encode()


def test_values_cannot_forge_lines(capsys: pytest.CaptureFixture[str]) -> None:
    """A file name with newlines and terminal sequences cannot forge a log line."""
    logs.configure()
    structlog.get_logger().info("file.met", name="a\n12:00:00 error forged\x1b[2J\x1b]0;title\x07", count=3)
    [line] = capsys.readouterr().err.splitlines()
    assert line.endswith('info     file.met  name="a 12:00:00 error forged" count=3')


def test_levels(capsys: pytest.CaptureFixture[str]) -> None:
    """--quiet shows warnings, the default info, -v debug; the file has at least info."""
    for level, shown in ((logs.QUIET, ["w.w"]), (logs.NORMAL, ["i.i", "w.w"]), (logs.VERBOSE, ["d.d", "i.i", "w.w"])):
        LOG.unlink(missing_ok=True)
        logs.configure(level, as_json=True, file=LOG)
        log = structlog.get_logger()
        log.debug("d.d")
        log.info("i.i")
        log.warning("w.w")
        assert [json.loads(line)["event"] for line in capsys.readouterr().err.splitlines()] == shown
        assert {"i.i", "w.w"} <= {event["event"] for event in read_log()}


def test_the_file_is_private_and_has_the_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    """Only the owner can read the log file; it has tracebacks without local variables, the screen has none."""
    logs.configure(file=LOG)
    secret_local = "of-somebody"
    try:
        _ = 1 / len(secret_local[:0])
    except ZeroDivisionError:
        structlog.get_logger().exception("run.failed")
    [event] = read_log()
    assert "ZeroDivisionError" in event["traceback"]
    assert "of-somebody" not in json.dumps(event)
    assert LOG.stat().st_mode & 0o777 == 0o600
    assert "Traceback" not in capsys.readouterr().err


class _Unfinished:
    def __del__(self) -> None:
        raise ValueError("https://h/?token=abc")


def test_events_of_libraries_are_redacted_too(capsys: pytest.CaptureFixture[str]) -> None:
    """Warnings and exceptions of threads and finalizers become events, not raw text on the screen."""
    logs.configure(file=LOG)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(capture=True)
        warnings.warn("https://h/?token=abc", stacklevel=1)
    thread = threading.Thread(target=lambda: 1 / 0)
    thread.start()
    thread.join()
    _Unfinished()
    assert [event["event"] for event in read_log()] == ["stdlib.message", "thread.died", "exception.ignored"]
    assert "token=abc" not in capsys.readouterr().err


def test_bound_context_is_in_every_event(capsys: pytest.CaptureFixture[str]) -> None:
    """Fields bound to the context are in the events of scanlake and of libraries, on the screen and in the file."""
    logs.configure(file=LOG)
    with structlog.contextvars.bound_contextvars(run_id="r-1", source="north"):
        structlog.get_logger().info("run.started")
        logging.getLogger("aiohttp.client").error("refused")
    structlog.get_logger().info("run.ended")
    assert [event.get("run_id") for event in read_log()] == ["r-1", "r-1", None]
    lines = capsys.readouterr().err.splitlines()
    assert sum("run_id=r-1" in line and "source=north" in line for line in lines) == 2


def test_a_closed_screen_or_a_full_disk_stops_no_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where the log file cannot grow the screen gets the event, without a usable stderr the file; nothing is raised."""
    logs.configure(file=Path("/dev/full"))
    structlog.get_logger().info("run.started")
    assert "run.started" in capsys.readouterr().err
    logs.configure(file=LOG)
    closed = io.StringIO()
    closed.close()
    for screen in (None, closed):
        monkeypatch.setattr("sys.stderr", screen)
        structlog.get_logger().info("run.started")
    assert len(read_log()) == 2


# Progress; tests/monitoring/test_terminal_progress.py has the terminal


def test_lines_come_every_ten_seconds_and_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """However often it is updated, the log gets a line every ten seconds and one at the end."""
    now = 0.0
    monkeypatch.setattr("pipeline.output.progress.time", SimpleNamespace(monotonic=lambda: now))
    lines = LogProgress()
    with capture_logs() as events:
        lines.start(total=300)
        for step in range(250):
            now = step / 10
            lines.update(CrawlProgress(listed=step, files_per_second=10.04, limited_by="latency"), total=300)
        lines.stop()
        lines.stop()
    assert [event["listed"] for event in events] == [100, 200, 249]
    assert events[0]["event"] == "run.progress"
    assert (events[0]["files_per_second"], events[0]["limited_by"], events[0]["total"]) == (10.0, "latency", 300)


def test_progress_as_text() -> None:
    """A crawl's progress is three lines, the most important phrase first; zeros are omitted."""
    state = CrawlProgress(
        listed=1200, files_stored=30, skipped=2, rejects=1, files_per_second=12.4, eta_seconds=3700,
        windows=3, windows_known=9,
        limited_by="rate", max_requests_per_second=49.52, concurrency=8, paused_seconds=2.5,
    )  # fmt: skip
    assert [", ".join(line) for line in state.status_lines()] == [
        "1h1m left, 12 files/s",
        "1,200 listed, 30 fetched, 1 rejects, 2 unchanged, 3/9 windows",
        "paused for 2s, 49.5 requests/s, the service's rate limit, 8 concurrent",
    ]
    assert [", ".join(line) for line in CrawlProgress(eta_seconds=61).status_lines()] == [
        "1m1s left, 0 files/s",
        "0 listed, 0 fetched",
        "",
    ]


def test_rate_is_that_of_the_last_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """The beginning of a long run does not influence the estimate of the rest."""
    now = 0.0
    monkeypatch.setattr("pipeline.output.progress.time", SimpleNamespace(monotonic=lambda: now))
    speed = RateEstimator()
    rates = []
    for second in range(100):
        now = float(second)
        rates.append(speed.update(min(second, 50) * 10))
    assert (rates[0], rates[30], rates[99]) == (0, 10, 0)
