"""Alerts when runs fail, recover and succeed: by a command, a URL, or both.

Neither gets the token. The command gets the alert in variables SCANLAKE_ALERT_*, without a shell; the URL gets JSON.
Both have a time limit, and a failure to alert is only logged.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

import aiohttp
from yarl import URL

from pipeline.config import ALERT_VARIABLE_PREFIX
from pipeline.logs import get_logger, to_one_line
from pipeline.tokens import environment_without_tokens

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pipeline.monitoring.run_result import RunResult
    from pipeline.settings import Settings

COMMAND_SECONDS: Final = 30.0
POST_SECONDS: Final = 8.0
_MAX_REASON_CHARS: Final = 1_000
_log = get_logger()


@dataclass(frozen=True, slots=True)
class Alert:
    """A failure with its reason, the recovery from it, or a success."""

    event: Literal["failed", "recovered", "succeeded"]
    exit_code: int
    reason: str = ""


async def send_alert(settings: Settings, alert: Alert, result: RunResult) -> bool:
    """Send the alert about a run; return whether all receivers took it. The command gets no success."""
    fields = _alert_fields(alert, result)
    problems = []
    if settings.on_failure is not None and alert.event != "succeeded":
        problems.append(await _run_command(shlex.split(settings.on_failure), fields))
    if settings.notify_url is not None:
        problems.append(await _post(settings.notify_url.get_secret_value(), fields))
    for problem in filter(None, problems):
        _log.warning("alert.failed", alert=alert.event, reason=problem)
    if problems and not any(problems):
        _log.info("alert.sent", alert=alert.event, exit_code=alert.exit_code)
    return not any(problems)


def _alert_fields(alert: Alert, result: RunResult) -> dict[str, Any]:
    """Return the body for the URL. Chat services show `text`."""
    reason = to_one_line(alert.reason)[:_MAX_REASON_CHARS]
    what = {"failed": f"failed: {reason}", "recovered": "works again", "succeeded": "succeeded"}[alert.event]
    lake = str(result.lake.absolute())
    return {
        "text": f"scanlake {result.command} of {result.source or lake} {what}",
        "event": alert.event,
        "reason": reason,
        "exit_code": alert.exit_code,
        "command": result.command,
        "lake": lake,
        "source": result.source,
        "run_id": str(result.result.get("run_id") or ""),
    }


async def _run_command(command: list[str], fields: Mapping[str, Any]) -> str | None:
    """Return the problem; None if the command succeeded in time."""
    variables = {f"{ALERT_VARIABLE_PREFIX}{name.upper()}": str(value) for name, value in fields.items()}
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            env={**environment_without_tokens(), **variables},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            start_new_session=True,  # so that its children can be killed with it
        )
    except OSError as error:
        return f"on_failure: {error.strerror}"
    try:
        async with asyncio.timeout(COMMAND_SECONDS):
            code = await process.wait()
    except (TimeoutError, asyncio.CancelledError) as end:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        if isinstance(end, TimeoutError):
            return f"on_failure: killed after {COMMAND_SECONDS:g} s"
        raise
    return f"on_failure: exit code {code}" if code else None


async def _post(url: str, fields: Mapping[str, Any]) -> str | None:
    """Return the problem, without the URL, which is a secret; None if it answered 2xx. A redirect is a problem."""
    timeout = aiohttp.ClientTimeout(total=POST_SECONDS)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.post(URL(url, encoded=True), json=fields, allow_redirects=False) as response,
        ):
            status = response.status
    except (OSError, ValueError, aiohttp.ClientError) as error:
        return f"notify_url: {type(error).__name__}"
    return None if 200 <= status < 300 else f"notify_url: HTTP {status}"
