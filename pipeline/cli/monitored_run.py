"""A command whose end is reported: by metrics and alerts, whatever has failed."""

from __future__ import annotations

import os
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from pipeline.cli.followers import FOLLOWER
from pipeline.errors import ExitCode, to_scanlake_error
from pipeline.output.redaction import to_one_line
from pipeline.processes.event_loop import run_async
from pipeline.processes.signals import take_stop_request
from pipeline.sync.after_run import report_run
from pipeline.sync.metrics import require_metrics_file
from pipeline.sync.run_result import SYNC, RunResult

if TYPE_CHECKING:
    from collections.abc import Callable

    from pipeline.cli.context import CommandContext
    from pipeline.settings.settings import Settings


def run_monitored(context: CommandContext, command: str, run: Callable[..., ExitCode], **options: Any) -> ExitCode:
    """Run a command and report its end.

    A failure at a terminal is reported there alone, unless it is of a sync, which a timer runs too: a wrong option of
    that is. Invalid settings are reported on stderr alone, because the channels are settings.
    """
    settings = context.load_layers().settings()
    result = RunResult(settings.lake, context.source or "", command=command, follows_sync=FOLLOWER in os.environ)
    try:
        require_metrics_file(settings)
        code = run(replace(context, run=result), **options)
        result.code = code
    except BaseException as error:
        failure = to_scanlake_error(error)
        result.code, result.error_type = failure.exit_code, type(failure).__name__
        result.reason = to_one_line(f"{failure.message} {failure.hint}")
        raise
    finally:
        report_end(settings, result)
    return code


def report_end(settings: Settings, result: RunResult) -> None:
    """Report the end of a run, unless it is a failure that a terminal shows."""
    result.seconds = max(0.0, (datetime.now(UTC) - result.started_at).total_seconds())
    is_typed = sys.stdin.isatty() and (result.code == ExitCode.USAGE or result.command != SYNC)
    if not (is_typed and result.has_failed):
        take_stop_request()  # one that has ended the run does not end its report
        run_async(report_run(settings, result))
