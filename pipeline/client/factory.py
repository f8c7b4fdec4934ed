"""Creates the client that the settings describe."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pipeline import __version__
from pipeline.client.client import Client
from pipeline.client.options import ClientOptions
from pipeline.client.rate_limiter import LearnedLimits, RateLimiter

if TYPE_CHECKING:
    from pipeline.settings import Settings

_MAX_ATTEMPT_TIMEOUT_SECONDS: Final = 60.0


def create_client(settings: Settings, token: str, *, learned: dict[str, Any] | None = None) -> Client:
    """Return the client for `settings`. `learned` are the stored limits of an earlier run."""
    options = ClientOptions(
        max_concurrency=settings.max_concurrency,
        max_requests_per_second=settings.max_requests_per_second,
        max_attempts=settings.max_attempts,
        total_deadline_seconds=settings.request_timeout_seconds,
        attempt_timeout_seconds=min(_MAX_ATTEMPT_TIMEOUT_SECONDS, settings.request_timeout_seconds),
        token_location=settings.token_location,
        proxy=settings.proxy,
        user_agent=f"scanlake/{__version__}",
    )
    rate_limiter = RateLimiter(
        max_concurrency=options.max_concurrency,
        max_rate=options.max_requests_per_second,
        max_retry_after_seconds=options.max_retry_after_seconds,
        learned=LearnedLimits(**learned) if learned else None,
    )
    return Client(str(settings.base_url), token, options=options, rate_limiter=rate_limiter)
