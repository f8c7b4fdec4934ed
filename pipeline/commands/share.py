"""`scanlake share`: create share links; e-mails only on request."""

import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from msgspec import Struct
from msgspec.structs import replace

from pipeline.client.client import Client
from pipeline.client.factory import create_client
from pipeline.command_options import Excludes, Requires
from pipeline.context import CommandContext
from pipeline.csv_rows import format_csv_row
from pipeline.errors import ExitCode, ScanlakeError, SettingsError, refuse_unreadable
from pipeline.formatting import pluralize
from pipeline.lake.folder_checks import require_lake
from pipeline.lake.layout import LakeLayout
from pipeline.lake.reader import open_catalog, run_interruptibly
from pipeline.lake.request_log import ShareState, open_request_log
from pipeline.output_formats import OutputFormat, choose_format, format_option
from pipeline.process import run_async
from pipeline.reports.job import publish_if_unlocked
from pipeline.reports.selection import select_references
from pipeline.results import format_json_instant
from pipeline.settings import Settings, require_base_url
from pipeline.shares import (
    FIELDS,
    ShareOutcome,
    ShareRun,
    build_requests,
    count_recipients,
    lock_shares,
    read_share_csv,
)
from pipeline.terminal_prompt import require_confirmation
from pipeline.text_tables import format_table
from schemas.requests import ShareRequest
from schemas.timestamps import now_us

GROUP: Final = "Use the data"

_COLUMNS: Final = ShareOutcome.__struct_fields__
_FORMATS: Final = (OutputFormat.TABLE, OutputFormat.CSV, OutputFormat.JSON)
_selection_option = partial(typer.Option, rich_help_panel="Files")
_link_option = partial(typer.Option, rich_help_panel="Share link")
_run_option = partial(typer.Option, rich_help_panel="Run")


class CreatedShares(Struct, frozen=True):
    """The links, and how many there are of each state."""

    shares: list[ShareOutcome]
    counts: dict[str, int]


RESULT: Final = CreatedShares


def run(
    call: CommandContext,
    *,
    reference: Annotated[
        list[str] | None,
        typer.Argument(metavar="REF...", help="References of the files to share."),
        Excludes("--where", "--file"),
    ] = None,
    where: Annotated[
        str | None,
        _selection_option(metavar="SQL", help="Share files by a condition on the table files."),
        Excludes("--file"),
    ] = None,
    file: Annotated[
        Path | None, _selection_option(metavar="CSV", help=f"Share the rows of a CSV: {', '.join(FIELDS)}.")
    ] = None,
    expires: Annotated[
        str | None, _link_option(metavar="TIME", help="End of the links (ISO 8601, UTC). Default: never.")
    ] = None,
    language: Annotated[
        str | None, _link_option(metavar="CODE", help="Language of the shared view (ISO 639-1, for example en).")
    ] = None,
    customer_reference: Annotated[
        str | None, _link_option(metavar="REF", help="The recipient's reference for the file.")
    ] = None,
    dl: Annotated[str | None, _link_option(metavar="REF", help="DL reference: several recipients.")] = None,
    email: Annotated[str | None, _link_option(metavar="ADDRESS", help="E-mail address of the recipient.")] = None,
    timezone: Annotated[
        str | None, _link_option(help="Time zone of dates, for example Europe/Berlin. Default: the service's.")
    ] = None,
    username: Annotated[str | None, _link_option(help="User who shares. Default: the service's API user.")] = None,
    send_email: Annotated[
        bool, _run_option("--send-email", help="E-mail the recipients (default: no e-mail).")
    ] = False,
    yes: Annotated[
        bool, _run_option("--yes", help="Send e-mails without confirmation."), Requires("--send-email")
    ] = False,
    force_new: Annotated[
        bool, _run_option("--force-new", help="Create a link even if a link is valid or unknown.")
    ] = False,
    output_format: Annotated[
        OutputFormat | None, format_option(*_FORMATS, text="Output format. Default: table.")
    ] = None,
) -> ExitCode:
    """Create share links to files, by default without e-mail.

    A link that is still valid is reused. A call whose response was lost has the state unknown. No run repeats it,
    except with --force-new: check the service first.

    Exit codes: 0 every link exists, 4 some failed or are unknown, 1 the service failed, 3 token refused.
    """
    chosen = choose_format(output_format, None, _FORMATS, as_json=call.as_json)
    settings = call.settings()
    base_url = require_base_url(settings)
    defaults = {
        "expires": expires, "language": language, "customer_reference": customer_reference, "dl": dl, "email": email,
        "timezone": timezone, "username": username,
    }  # fmt: skip
    layout = LakeLayout(settings.lake.absolute())
    require_lake(layout)
    shares = _collect_shares(settings, reference, where, file, defaults)
    source = None if file is None else str(file)
    requests = build_requests(shares, send_email=send_email, now=now_us(), source=source)
    if not requests:
        raise SettingsError("No reference is selected.", hint="Correct the selection; nothing was shared.")
    token = call.token(settings)
    if send_email:
        _confirm(requests, yes=yes)
    with lock_shares(layout), open_request_log(layout) as request_log:
        request_log.ledger.properties.require_service(base_url)
        client = create_client(settings, token, learned=request_log.ledger.properties.learned_limits)
        share_run = ShareRun(client, request_log, force_new=force_new)
        try:
            run_async(_create_shares(client, share_run, requests))
        except BaseException:
            sys.stderr.write(_format_csv(share_run.outcomes))  # the links that exist must not be lost
            with suppress(ScanlakeError):  # the error that stopped the run is more important
                publish_if_unlocked(settings, "share")
            raise
        publish_if_unlocked(settings, "share")
    return _print_result(call, share_run.outcomes, chosen, send_email=send_email)


async def _create_shares(client: Client, share_run: ShareRun, requests: Sequence[ShareRequest]) -> None:
    async with client:
        await share_run.run(requests, now_us())


def _collect_shares(
    settings: Settings,
    references: Sequence[str] | None,
    where: str | None,
    file: Path | None,
    defaults: dict[str, Any],
) -> list[dict[str, Any]]:
    if not references and where is None and file is None:
        raise SettingsError("No files are selected.", hint="Use references, or --where, or --file.")
    if file is not None:
        with (
            refuse_unreadable(f"--file {file}", hint="Use a CSV file in UTF-8."),
            file.open(encoding="utf-8-sig", newline="") as lines,
        ):
            return read_share_csv(lines, f"--file {file}", defaults)
    if where is not None:
        with open_catalog(settings) as lake:
            references = run_interruptibly(lake, lambda: select_references(lake, where), settings.query_memory_bytes)
    return [{**defaults, "reference": reference} for reference in references or ()]


def _confirm(requests: Sequence[ShareRequest], *, yes: bool) -> None:
    """Prompt for the number of recipients, so that no one gets an e-mail by mistake. Scripts use --yes."""
    addresses, lists = count_recipients(requests)
    recipients = pluralize(addresses, "recipient")
    if lists:
        recipients += f" and the recipients of {pluralize(lists, 'DL reference')}"
    links = pluralize(len(requests), "link")
    if yes:
        sys.stderr.write(f"{links} will be e-mailed to {recipients}.\n")
        return
    refusal = f"{links} would be e-mailed to {recipients}. Nothing was shared."
    require_confirmation("", f"E-mail {links} to {recipients}?", refusal=refusal)


def _print_result(
    call: CommandContext, outcomes: list[ShareOutcome], chosen: OutputFormat, *, send_email: bool
) -> ExitCode:
    counts = Counter(str(outcome.state) for outcome in outcomes)
    is_complete = counts.keys() <= {ShareState.CREATED, ShareState.REUSED}
    text = _format_csv(outcomes)
    if chosen is OutputFormat.TABLE:
        columns = [name for name in _COLUMNS if any(getattr(outcome, name) for outcome in outcomes)]
        rows = ([_to_cell(getattr(outcome, name)) or "" for name in columns] for outcome in outcomes)
        text = format_table(columns, rows)
        text += ", ".join(f"{count:,} {state}" for state, count in counts.items())
        if not send_email and any(outcome.email or outcome.dl for outcome in outcomes):
            text += "; no e-mail was sent: that needs --send-email"
        text += "\n"
    result = CreatedShares(outcomes, dict(counts))
    code = ExitCode.OK if is_complete else ExitCode.REJECTS
    if chosen is OutputFormat.JSON:
        call = replace(call, as_json=True)
    return call.print_result(result, text, code)


def _format_csv(outcomes: Sequence[ShareOutcome]) -> str:
    rows = ([_to_cell(getattr(outcome, name)) for name in _COLUMNS] for outcome in outcomes)
    return "".join(map(format_csv_row, (_COLUMNS, *rows)))


def _to_cell(value: Any) -> str | None:
    return format_json_instant(value) if isinstance(value, datetime) else value
