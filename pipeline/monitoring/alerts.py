"""Alerts when runs fail and when they recover: a command, a webhook, or both.

Neither gets the token. The command gets the alert in variables SCANLAKE_ALERT_*, without a shell; the webhook gets
JSON. Both have a time limit, and a failure to alert is only logged.
"""

from __future__ import annotations

import http.client
import json
import os
import shlex
import signal
import subprocess
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal
from urllib.parse import urlsplit

import structlog

from pipeline.config import ALERT_VARIABLE_PREFIX
from pipeline.logs import to_one_line

if TYPE_CHECKING:
    from pipeline.monitoring.outcome import Outcome
    from pipeline.settings import Settings

AlertEvent = Literal["failed", "recovered"]

COMMAND_SECONDS: Final = 30.0
POST_SECONDS: Final = 8.0
_POLL_SECONDS: Final = 0.05
_MAX_REASON_CHARS: Final = 1_000
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Alert:
    """A failure, or the recovery from it. `reason` is one line; empty for a recovery."""

    event: AlertEvent
    reason: str
    exit_code: int
    command: str
    lake: str
    run_id: str
    source: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return the body for the webhook. Chat services show `text`."""
        fields = {name: getattr(self, name) for name in self.__slots__}
        subject = f"scanlake {self.command} of {self.source or self.lake}"
        text = f"{subject} works again" if self.event == "recovered" else f"{subject} failed: {self.reason}"
        return {"text": text, **fields}


def build_alert(event: AlertEvent, outcome: Outcome, source: str) -> Alert:
    """Return the alert about an outcome."""
    reason = to_one_line(outcome.reason)[:_MAX_REASON_CHARS] if event == "failed" else ""
    return Alert(event, reason, outcome.code, outcome.command, str(outcome.lake.absolute()), outcome.run_id, source)


def is_configured(settings: Settings) -> bool:
    """Return whether the settings have a receiver of alerts."""
    return settings.on_failure is not None or settings.on_failure_webhook is not None


def send_alert(settings: Settings, alert: Alert, *, stop: threading.Event | None = None) -> bool:
    """Send the alert; return whether all receivers took it. Setting `stop` ends the attempt early."""
    stop = stop or threading.Event()
    problems = []
    if settings.on_failure is not None:
        problems.append(_run_command(shlex.split(settings.on_failure), alert, stop))
    if settings.on_failure_webhook is not None:
        problems.append(_post(settings.on_failure_webhook.get_secret_value(), alert.as_json(), stop))
    for problem in filter(None, problems):
        _log.warning("alert.failed", alert=alert.event, reason=problem)
    if not any(problems):
        _log.info("alert.sent", alert=alert.event, exit_code=alert.exit_code)
    return not any(problems)


def send_ping(settings: Settings, *, stop: threading.Event | None = None) -> None:
    """Request the ping URL after a success; a monitor that misses the ping alerts the operator."""
    if settings.on_success_webhook is None:
        return
    problem = _post(settings.on_success_webhook.get_secret_value(), {}, stop or threading.Event())
    if problem:
        _log.warning("ping.failed", reason=problem.replace("on_failure_webhook", "on_success_webhook"))


# Command


def _run_command(command: list[str], alert: Alert, stop: threading.Event) -> str | None:
    """Return the problem; None if the command succeeded in time."""
    variables = {f"{ALERT_VARIABLE_PREFIX}{name.upper()}": str(value) for name, value in alert.as_json().items()}
    inherited = {name: value for name, value in os.environ.items() if not name.upper().startswith("SCANLAKE_TOKEN")}
    try:
        process = subprocess.Popen(  # noqa: S603 - the operator's own command, without a shell
            command,
            env={**inherited, **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,  # so that its children can be killed with it
        )
    except OSError as error:
        return f"on_failure: {error.strerror}"
    deadline = time.monotonic() + COMMAND_SECONDS
    while process.poll() is None:
        if stop.is_set() or time.monotonic() > deadline:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            cause = "because the watch stops" if stop.is_set() else f"after {COMMAND_SECONDS:g} s"
            return f"on_failure: killed {cause}"
        stop.wait(_POLL_SECONDS)
    return f"on_failure: exit code {process.returncode}" if process.returncode else None


# Webhook


def _post(url: str, body: dict[str, Any], stop: threading.Event) -> str | None:
    """Return the problem; None if the webhook answered 2xx. A thread sends, so that a slow one can be left."""
    problems: list[str | None] = []
    thread = threading.Thread(target=lambda: problems.append(_post_once(url, body)), daemon=True)
    thread.start()
    deadline = time.monotonic() + POST_SECONDS
    while thread.is_alive() and not stop.is_set() and time.monotonic() < deadline:
        thread.join(_POLL_SECONDS)
    return problems[0] if problems else f"on_failure_webhook: no response within {POST_SECONDS:g} s"


def _post_once(url: str, body: dict[str, Any]) -> str | None:
    parts = urlsplit(url)
    connect = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = connect(parts.hostname or "", parts.port, timeout=POST_SECONDS)  # HTTPS verifies the certificate
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    try:
        connection.request("POST", target, json.dumps(body), {"Content-Type": "application/json"})
        status = connection.getresponse().status  # a redirect is not followed: it counts as a failure
    except (OSError, http.client.HTTPException) as error:
        return f"on_failure_webhook: {type(error).__name__}"  # its text may contain the URL, which is a secret
    finally:
        connection.close()
    return None if 200 <= status < 300 else f"on_failure_webhook: HTTP {status}"
