"""`scanlake share`: create share links; e-mails only on request."""

import sys
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from typing import Annotated, Final

import typer
from msgspec import Struct

from pipeline.cli.context import CommandContext, require_confirmation
from pipeline.cli.option_rules import Excludes, Requires
from pipeline.client.client import create_client
from pipeline.errors import ExitCode, SettingsError
from pipeline.lake.catalog.folder_checks import require_lake
from pipeline.lake.ledger.request_log import ShareState, open_request_log
from pipeline.output.formatting import format_json_instant, pluralize
from pipeline.output.redaction import to_one_line
from pipeline.output.tables import format_table
from pipeline.processes.event_loop import run_async
from pipeline.query.reader import open_catalog
from pipeline.query.sandbox import run_interruptibly
from pipeline.reports.job import published_at_end
from pipeline.reports.selection import select_references
from pipeline.reports.shares import ShareOutcome, ShareRun, build_requests, lock_shares
from pipeline.settings.settings import Settings, require_base_url
from schemas.requests import ShareRequest
from schemas.timestamps import now_us

EXAMPLES: Final = ("share SC06327281 --expires 2027-01-01", "share --where closed --language en")

_COLUMNS: Final = ShareOutcome.__struct_fields__
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
        Excludes("--where"),
    ] = None,
    where: Annotated[
        str | None, _selection_option(metavar="SQL", help="Share files by a condition on the table files.")
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
) -> ExitCode:
    """Create share links to files, by default without e-mail.

    A link that is still valid is reused. If the response to a call was lost, its state is unknown. No run repeats such
    a call, except with --force-new: check the service first.
    """
    settings = call.settings()
    base_url = require_base_url(settings)
    layout = require_lake(settings.lake)
    requests = build_requests(
        _select_references(settings, reference, where),
        send_email=send_email,
        now=now_us(),
        expires=expires,
        language=language,
        customer_reference=customer_reference,
        dl=dl,
        email=email,
        timezone=timezone,
        username=username,
    )
    if not requests:
        raise SettingsError("No reference is selected.", hint="Correct the selection; nothing was shared.")
    token = call.token(settings)
    if send_email:
        _confirm(requests, yes=yes)
    with lock_shares(layout), open_request_log(layout) as request_log:
        request_log.ledger.properties.require_service(base_url)
        client = create_client(settings, token, learned=request_log.ledger.properties.learned_limits)
        share_run = ShareRun(client, request_log, force_new=force_new)
        with published_at_end(settings, "share"):
            try:
                run_async(share_run.request_shares(requests, now_us()))
            except BaseException:
                sys.stderr.write(_format_outcomes(share_run.outcomes))  # the links that exist must not be lost
                raise
    outcomes = share_run.outcomes
    counts = Counter(str(outcome.state) for outcome in outcomes)
    text = _format_outcomes(outcomes) + ", ".join(f"{count:,} {state}" for state, count in counts.items())
    if not send_email and (email or dl):
        text += "; no e-mail was sent: that needs --send-email"
    is_complete = counts.keys() <= {ShareState.CREATED, ShareState.REUSED}
    code = ExitCode.OK if is_complete else ExitCode.REJECTS
    return call.print_result(CreatedShares(outcomes, dict(counts)), f"{text}\n", code)


def _select_references(settings: Settings, references: Sequence[str] | None, where: str | None) -> Sequence[str]:
    if references:
        return references
    if where is None:
        raise SettingsError("No files are selected.", hint="Use references, or --where.")
    with open_catalog(settings) as lake:
        return run_interruptibly(lake, lambda: select_references(lake, where), settings.query_memory_bytes)


def _confirm(requests: Sequence[ShareRequest], *, yes: bool) -> None:
    """Prompt for the recipients, so that no one gets an e-mail by mistake. Scripts use --yes."""
    recipients = " and ".join(filter(None, (requests[0].email, requests[0].dl)))  # all have the same
    links = f"{pluralize(len(requests), 'link')} would be e-mailed to {to_one_line(recipients)}."
    if yes:
        sys.stderr.write(links.replace("would", "will") + "\n")
    else:
        require_confirmation("", f"{links} Continue?", refusal=f"{links} Nothing was shared.")


def _format_outcomes(outcomes: Sequence[ShareOutcome]) -> str:
    columns = [name for name in _COLUMNS if any(getattr(outcome, name) for outcome in outcomes)]
    values = ([getattr(outcome, name) or "" for name in columns] for outcome in outcomes)
    rows = ([format_json_instant(it) if isinstance(it, datetime) else it for it in row] for row in values)
    return format_table(columns, rows)
