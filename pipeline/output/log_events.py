"""Events by structlog, and the formatter of all lines of the log. `logs` imports this module with the first event."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import structlog
from structlog.stdlib import ProcessorFormatter

if TYPE_CHECKING:
    import logging
    from collections.abc import MutableMapping, Sequence

_add_timestamp = structlog.processors.TimeStamper(fmt="iso", utc=True, key="at")


def send_events(logger: logging.Logger) -> None:
    """Send every event of this process to `logger`, from its level on."""
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            _add_timestamp,
            ProcessorFormatter.wrap_for_formatter,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logger.level),
        logger_factory=lambda *_: logger,
        cache_logger_on_first_use=False,  # it may be called again
    )


def create_formatter(processors: Sequence[Any]) -> logging.Formatter:
    """Return a formatter that passes each event, also those of libraries, through processors."""
    return ProcessorFormatter(
        foreign_pre_chain=[
            structlog.contextvars.merge_contextvars,
            _rename_foreign_event,
            structlog.processors.add_log_level,
            _add_timestamp,
        ],
        processors=[ProcessorFormatter.remove_processors_meta, *processors],
    )


def _rename_foreign_event(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Make the text of a library a field: aiohttp and asyncio put whole URLs into it."""
    return {**event, "event": "stdlib.message", "logger": event["_record"].name, "message": event["event"]}
