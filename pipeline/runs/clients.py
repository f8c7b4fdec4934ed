"""The client that a run asks the service with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pipeline import __version__
from pipeline.runs.counting import CountingClient
from pipeline.service.options import ClientOptions
from pipeline.service.pace import LearnedPace, Pacer

if TYPE_CHECKING:
    from pipeline.service.client import Client
    from pipeline.settings import Settings

_ONE_TRY: Final = 60.0  # seconds, of the time that a request has with all its tries


def make_client(settings: Settings, token: str, *, learned: dict[str, Any] | None = None) -> Client:
    """The client that the settings describe."""
    options = ClientOptions(
        max_concurrency=settings.max_concurrency,
        max_requests_per_second=settings.max_requests_per_second,
        attempts=settings.attempts,
        max_seconds=settings.request_seconds,
        total_timeout=min(_ONE_TRY, settings.request_seconds),
        token_in=settings.token_in,
        proxy=settings.proxy,
        user_agent=f"scanlake/{__version__}",
    )
    pacer = Pacer(
        max_concurrency=options.max_concurrency,
        max_rate=options.max_requests_per_second,
        retry_after_cap=options.retry_after_cap,
        learned=LearnedPace(**learned) if learned else None,
    )
    return CountingClient(str(settings.base_url), token, options=options, pacer=pacer)
