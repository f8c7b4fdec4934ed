"""Creates the client that the settings describe."""

from __future__ import annotations

import resource
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from pipeline.client.client import Client
from pipeline.client.image_client import ImageClient
from pipeline.client.options import MAX_ATTEMPTS, ClientOptions
from pipeline.client.rate_limiter import LearnedLimits
from pipeline.logs import get_logger
from pipeline.version import __version__

if TYPE_CHECKING:
    from pipeline.settings import Settings

_MAX_ATTEMPT_TIMEOUT_SECONDS: Final = 60.0
_FILES_OF_THE_LAKE: Final = 128  # open files that are no connections: 22 measured in a sync, and parts while published
_MIN_CONNECTIONS: Final = 8
_MAX_IMAGE_CONCURRENCY: Final = 64  # of one image host
_MAX_IMAGE_HOST_SILENCE_SECONDS: Final = 10.0  # one that restarts is back; one that is down ends the run

_log = get_logger()


def create_client(
    settings: Settings, token: str, *, learned: dict[str, Any] | None = None, max_attempts: int | None = None
) -> Client:
    """Return the client for `settings`. `learned` are the stored limits of an earlier run."""
    options = replace(
        _create_options(settings, settings.max_concurrency),
        max_requests_per_second=settings.max_requests_per_second,
        max_attempts=max_attempts or MAX_ATTEMPTS,
        token_location=settings.token_location,
    )
    limits = LearnedLimits(**learned) if learned else None
    return Client(str(settings.base_url), token, options=options, learned=limits)


def create_image_client(settings: Settings, token: str) -> ImageClient:
    """Return the client for the images' hosts. It never sends `token`."""
    options = _create_options(settings, _MAX_IMAGE_CONCURRENCY)
    options = replace(options, max_silence_seconds=_MAX_IMAGE_HOST_SILENCE_SECONDS)
    return ImageClient(str(settings.base_url), token, options=options)


def _create_options(settings: Settings, max_concurrency: int) -> ClientOptions:
    return ClientOptions(
        max_concurrency=_limit_to_open_files(max_concurrency),
        max_attempts=MAX_ATTEMPTS,
        total_deadline_seconds=settings.request_timeout_seconds,
        attempt_timeout_seconds=min(_MAX_ATTEMPT_TIMEOUT_SECONDS, settings.request_timeout_seconds),
        proxy=settings.proxy,
        user_agent=f"scanlake/{__version__}",
    )


def _limit_to_open_files(max_concurrency: int) -> int:
    """Return how many requests may be in flight at most: each is a connection, and each connection an open file."""
    open_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    possible = max(_MIN_CONNECTIONS, open_files - _FILES_OF_THE_LAKE)
    if open_files == resource.RLIM_INFINITY or max_concurrency <= possible:
        return max_concurrency
    _log.info("concurrency.limited", max_concurrency=max_concurrency, limit=possible, open_files=open_files)
    return possible
