"""Alerts when runs fail, recover and succeed: one POST of JSON to `notify_url`, without the token.

It has a time limit, and a failure to alert is only logged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

import aiohttp
from msgspec import Struct
from yarl import URL

from pipeline.logs import get_logger, to_one_line

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pipeline.monitoring.run_result import RunResult
    from pipeline.settings import Settings

POST_SECONDS: Final = 8.0
_MAX_REASON_CHARS: Final = 1_000
_log = get_logger()


class Alert(Struct, frozen=True):
    """A failure with its reason, the recovery from it, or a success."""

    event: Literal["failed", "recovered", "succeeded"]
    exit_code: int
    reason: str = ""


async def send_alert(settings: Settings, alert: Alert, result: RunResult) -> bool:
    """Send the alert about a run; return whether the receiver took it, or there is none."""
    if settings.notify_url is None:
        return True
    problem = await _post(settings.notify_url.get_secret_value(), _alert_fields(alert, result))
    if problem is None:
        _log.info("alert.sent", alert=alert.event, exit_code=alert.exit_code)
    else:
        _log.warning("alert.failed", alert=alert.event, reason=problem)
    return problem is None


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
