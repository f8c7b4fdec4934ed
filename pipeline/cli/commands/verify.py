"""`scanlake verify`: compare the lake with the service and repair differences."""

from typing import Annotated, Final

import typer

from pipeline.cli.context import CommandContext
from pipeline.cli.summaries import format_verification
from pipeline.errors import ExitCode
from pipeline.lake.lake import Lake, Opening
from pipeline.processes.event_loop import run_async
from pipeline.settings.settings import require_base_url
from pipeline.sync.verify import VerifyMode, VerifyResult, verify

EXAMPLES: Final = ("verify", "verify --dry-run")
IS_MONITORED: Final = True
TAKES_ALL_SOURCES: Final = True
RESULT: Final = VerifyResult


def run(
    context: CommandContext,
    *,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Report and record differences (exit code 4), but repair none.")
    ] = False,
    accept_deletions: Annotated[
        bool,
        typer.Option(
            "--accept-deletions",
            help="Accept that more than 5 % of the files were deleted, and that the account is the right one.",
        ),
    ] = False,
    accept_new_base_url: Annotated[
        bool, typer.Option("--accept-new-base-url", help="Compare with the service under its new base URL.")
    ] = False,
    deep: Annotated[
        float,
        typer.Option(min=0, max=1, help="Share of the files whose details are fetched and compared, from 0 to 1."),
    ] = 0.0,
) -> ExitCode:
    """Compare the lake with the service and repair differences (`check` checks the lake's own files).

    Incremental syncs never see a deletion. This command reads the service's full list and fetches missing and stale
    files. A file counts as deleted if the complete list does not contain it and it is not found by its id. Deleted
    files move to deleted_files. The result is printed and stored in meta.verifications.
    """
    settings = context.settings()
    require_base_url(settings)
    token = context.token(settings)
    mode = VerifyMode(
        check_only=dry_run, accept_deletions=accept_deletions, accept_new_base_url=accept_new_base_url, deep=deep
    )
    with Lake(settings.lake, doing="verify", opening=Opening.EXISTING) as lake:
        result = run_async(verify(lake, settings, token, mode, context.progress()))
    code = ExitCode.OK if result.consistent else ExitCode.REJECTS
    return context.print_result(result, format_verification(result), code)
