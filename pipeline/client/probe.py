"""One list call that proves address, token and clock: before a lake is made, by `init`, and by `check`."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from pipeline.client.calls import MAX_ATTEMPTS
from pipeline.client.client import create_client
from pipeline.client.errors import RetriesExhaustedError
from pipeline.errors import AuthenticationError, ScanlakeError, ServiceUnavailableError
from pipeline.output.findings import Finding, from_error, ok, warning
from pipeline.output.formatting import pluralize
from schemas.file_query import FileQuery

if TYPE_CHECKING:
    from pipeline.settings.settings import Settings

_QUICK_SECONDS: Final = 30.0
_QUICK_ATTEMPTS: Final = 2
_CLOCK_SKEW_LIMITS_SECONDS: Final = (5.0, 60.0)  # above the first: a note; above the second: a warning


class ServiceProbe(Struct, frozen=True):
    """The answer to the call: files in the service, if it counts them, and its clock's lead, if it sends its time."""

    files: int | None
    seconds: float
    clock_seconds_ahead: float | None


async def probe_service(settings: Settings, token: str, *, is_quick: bool = True) -> ServiceProbe:
    """List one file. Raises `ServiceUnavailableError`, `AuthenticationError` or `ProtocolError`.

    `is_quick`: with two attempts in at most 30 s, because a person waits; otherwise within the limits of the settings.
    """
    seconds = min(settings.request_timeout_seconds, _QUICK_SECONDS) if is_quick else settings.request_timeout_seconds
    attempts = _QUICK_ATTEMPTS if is_quick else MAX_ATTEMPTS
    limited = replace(settings, request_timeout_seconds=seconds)
    async with create_client(limited, token, max_attempts=attempts) as client:
        started = time.monotonic()
        try:
            async with asyncio.timeout(seconds if is_quick else None):
                page = await client.list_files(FileQuery(limit=1))
        except TimeoutError:
            hint = "Try again later: the service may be overloaded."
            raise ServiceUnavailableError(f"GET /files: no answer in {seconds:g} s.", hint=hint) from None
        except RetriesExhaustedError as error:
            if error.status is None and error.hint == error.default_hint:  # nothing is committed that could stay
                error.hint = f"Check base_url ({settings.base_url}), the firewall and the proxy."
            raise
        return ServiceProbe(page.total, time.monotonic() - started, client.clock.seconds_ahead)


async def check_service(settings: Settings, token: str) -> list[Finding]:
    """Return findings for the service, which are also those for address, proxy, TLS and token, and for the clock."""
    try:
        probe = await probe_service(settings, token)
    except ScanlakeError as error:
        return [from_error("service", "token" if isinstance(error, AuthenticationError) else "service", error)]
    total = "" if probe.files is None else f"; it has {pluralize(probe.files, 'file')}"
    answer = f"accepts the token, answered a list call in {probe.seconds * 1000:,.0f} ms{total}"
    return [ok("service", str(settings.base_url), answer), _check_clock(probe.clock_seconds_ahead)]


def _check_clock(service_ahead: float | None) -> Finding:
    if service_ahead is None:
        hint = "Nothing to do: the watermark stays ten minutes behind this machine's clock."
        return warning("service", "clock", "the service sends no Date header", hint)
    skew = -service_ahead
    if abs(skew) < _CLOCK_SKEW_LIMITS_SECONDS[0]:
        return ok("service", "clock", "equals the service's clock")
    direction = "ahead of" if skew > 0 else "behind"
    problem = f"this machine's clock is {abs(skew):,.0f} s {direction} the service's"
    if abs(skew) < _CLOCK_SKEW_LIMITS_SECONDS[1]:
        return ok("service", "clock", problem)
    hint = "Synchronize this machine's clock by NTP: scanlake computes ages with it."
    return warning("service", "clock", problem, hint)
