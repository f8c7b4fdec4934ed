"""Telling somebody that runs fail, and once that they do no more: a command, a webhook, or both.

Neither gets the token. A command gets the story in variables ALARM_*, never through a shell; a webhook gets
JSON. Both have little time, and their own failure is logged and changes nothing.
"""

from __future__ import annotations

import http.client
import json
import os
import shlex
import signal
import ssl
import subprocess
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal
from urllib.parse import urlsplit

import structlog

from pipeline.logs import one_line

if TYPE_CHECKING:
    from pipeline.settings import Settings
    from pipeline.watching.outcome import Outcome

News = Literal["failed", "recovered"]

COMMAND_SECONDS: Final = 30.0
POST_SECONDS: Final = 8.0
_GLANCE: Final = 0.05
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Alarm:
    """What is told. `reason` is one line; empty when runs work again."""

    event: News
    reason: str
    exit_code: int
    verb: str
    lake: str
    run_id: str
    source: str = ""

    def as_json(self) -> dict[str, Any]:
        """The body of the webhook. `text` is what chat services show."""
        fields = {name: getattr(self, name) for name in self.__slots__}
        where = f"scanlake {self.verb} of {self.source or self.lake}"
        text = f"{where} works again" if self.event == "recovered" else f"{where} failed: {self.reason}"
        return {"text": text, **fields}


def alarm_of(news: News, outcome: Outcome, source: str) -> Alarm:
    """The alarm about an outcome."""
    reason = one_line(outcome.reason)[:1000] if news == "failed" else ""
    return Alarm(news, reason, outcome.code, outcome.verb, str(outcome.lake.absolute()), outcome.run_id, source)


def is_wanted(settings: Settings) -> bool:
    """Whether anybody is to be told at all."""
    return settings.on_failure is not None or settings.on_failure_url is not None


def ring(settings: Settings, alarm: Alarm, *, stop: threading.Event | None = None) -> bool:
    """Tell. True when everybody who is to be told was. `stop`, once set, ends it early."""
    stop = stop or threading.Event()
    flaws = []
    if settings.on_failure is not None:
        flaws.append(_run(shlex.split(settings.on_failure), alarm, stop))
    if settings.on_failure_url is not None:
        flaws.append(_post(settings.on_failure_url.get_secret_value(), alarm, stop))
    for flaw in filter(None, flaws):
        _log.warning("alarm.failed", alarm=alarm.event, reason=flaw)
    if not any(flaws):
        _log.info("alarm.told", alarm=alarm.event, exit_code=alarm.exit_code)
    return not any(flaws)


# A command


def _run(command: list[str], alarm: Alarm, stop: threading.Event) -> str | None:
    """What was wrong; None when the command ended well in time."""
    told = {f"ALARM_{name.upper()}": str(value) for name, value in alarm.as_json().items()}
    ours = {name: value for name, value in os.environ.items() if not name.upper().startswith("SCANLAKE_TOKEN")}
    try:
        process = subprocess.Popen(  # noqa: S603 - the operator's own words, without a shell
            command,
            env={**ours, **told},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,  # so that all that it starts can be ended with it
        )
    except OSError as error:
        return f"on_failure: {error.strerror}"
    end = time.monotonic() + COMMAND_SECONDS
    while process.poll() is None:
        if stop.is_set() or time.monotonic() > end:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            why = "as the watch ends" if stop.is_set() else f"after {COMMAND_SECONDS:g} s"
            return f"on_failure: ended, {why}"
        stop.wait(_GLANCE)
    return f"on_failure: ended with {process.returncode}" if process.returncode else None


# A webhook


def _post(url: str, alarm: Alarm, stop: threading.Event) -> str | None:
    """What was wrong; None when the webhook answered 2xx. On a thread, so that a slow one is given up in time."""
    said: list[str | None] = []
    thread = threading.Thread(target=lambda: said.append(_exchange(url, alarm)), daemon=True)
    thread.start()
    end = time.monotonic() + POST_SECONDS
    while thread.is_alive() and not stop.is_set() and time.monotonic() < end:
        thread.join(_GLANCE)
    return said[0] if said else f"on_failure_url: no answer within {POST_SECONDS:g} s"


def _exchange(url: str, alarm: Alarm) -> str | None:
    parts = urlsplit(url)
    line: http.client.HTTPConnection
    if parts.scheme == "https":
        line = http.client.HTTPSConnection(
            parts.hostname or "", parts.port, timeout=POST_SECONDS, context=ssl.create_default_context()
        )
    else:
        line = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=POST_SECONDS)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    try:
        line.request("POST", target, json.dumps(alarm.as_json()), {"Content-Type": "application/json"})
        status = line.getresponse().status  # a redirect is not followed: it is an answer like any other
    except (OSError, http.client.HTTPException) as error:
        return f"on_failure_url: {type(error).__name__}"  # its text may hold the address, which is a secret
    finally:
        line.close()
    return None if 200 <= status < 300 else f"on_failure_url: HTTP {status}"
