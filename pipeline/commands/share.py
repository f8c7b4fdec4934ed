"""`scanlake share`: links to files, made once, and e-mailed only when asked."""

import csv
import io
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, fields
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.table import Table
from rich.text import Text

from pipeline.call import Call, setting
from pipeline.commands.running import run_to_end
from pipeline.errors import Exit, ScanlakeError, SettingsError
from pipeline.exports.jobs import now_us
from pipeline.exports.publishing import publish
from pipeline.exports.selection import references
from pipeline.exports.shares import FIELDS, ShareOutcome, Sharing, read_file, recipients, requests_of, sharing
from pipeline.lake.files import Layout
from pipeline.lake.orders import order_book
from pipeline.published import published, until_done
from pipeline.runs.clients import make_client
from pipeline.service.client import Client
from pipeline.settings import Settings, base_url_value
from schemas.requests import ShareRequest

_COLUMNS: Final = tuple(field.name for field in fields(ShareOutcome))
_WHICH, _WHAT, _HOW = "Which files", "What the links are", "How it is done"


class Format(StrEnum):
    """How the links are written."""

    TABLE = "table"
    CSV = "csv"
    JSON = "json"


def run(
    call: Call,
    *,
    reference: Annotated[list[str] | None, typer.Argument(metavar="REF...", help="References.")] = None,
    where: Annotated[
        str | None,
        typer.Option(metavar="SQL", help="References of files that meet a condition.", rich_help_panel=_WHICH),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(metavar="CSV", help=f"Columns {', '.join(FIELDS)}.", rich_help_panel=_WHICH),
    ] = None,
    expires: Annotated[str | None, typer.Option(help="When the links end (UTC).", rich_help_panel=_WHAT)] = None,
    language: Annotated[str | None, typer.Option(help="Of the shared view: en, de.", rich_help_panel=_WHAT)] = None,
    lang: Annotated[str | None, typer.Option(help="The service's other way to say so.", rich_help_panel=_WHAT)] = None,
    customer_reference: Annotated[
        str | None, typer.Option(help="The recipient's reference.", rich_help_panel=_WHAT)
    ] = None,
    dl: Annotated[str | None, typer.Option(help="DL reference: several recipients.", rich_help_panel=_WHAT)] = None,
    email: Annotated[str | None, typer.Option(help="The recipient's address.", rich_help_panel=_WHAT)] = None,
    timezone: Annotated[str | None, typer.Option(help="Time zone, Europe/Berlin.", rich_help_panel=_WHAT)] = None,
    username: Annotated[str | None, typer.Option(help="In whose name.", rich_help_panel=_WHAT)] = None,
    send_email: Annotated[
        bool, typer.Option("--send-email", help="E-mail the recipients; otherwise nobody is.", rich_help_panel=_HOW)
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="Do not ask before e-mails are sent.", rich_help_panel=_HOW)
    ] = False,
    new: Annotated[
        bool, typer.Option("--new", help="New links, also where one is valid still.", rich_help_panel=_HOW)
    ] = False,
    format_: Annotated[Format, typer.Option("--format", rich_help_panel=_HOW)] = Format.TABLE,
    base_url: Annotated[str | None, setting("base_url")] = None,
    token_file: Annotated[Path | None, setting("token_file")] = None,
) -> Exit:
    """Create links to files; no e-mail is sent unless asked for.

    A link that is valid still is used again. A call whose answer never came is reported as unknown and not made
    again, not even by the next run: --new does that, once you have looked at the service.

    Exit codes: 0 every link stands, 4 some failed or are unknown, 1 the service failed, 3 token refused.
    """
    settings = call.settings(base_url=base_url, token_file=token_file)
    base_url_value(settings)
    given = {
        "expires": expires, "language": language, "lang": lang, "customer_reference": customer_reference,
        "dl": dl, "email": email, "timezone": timezone, "username": username,
    }  # fmt: skip
    layout = Layout(settings.lake.absolute())
    if not layout.ledger.exists():
        raise SettingsError(f"No lake at {settings.lake}.", remedy="Run `scanlake sync` first, or mend --lake.")
    wanted = _wanted(settings, reference, where, file, given)
    table = None if file is None else str(file)
    requests = requests_of(wanted, send_email=send_email, now=now_us(), source=table)
    if not requests:
        raise SettingsError("No reference is selected.", remedy="Nothing was shared; mend the selection.")
    token = call.token(settings)
    if send_email:
        _confirm(requests, yes=yes)
    with sharing(layout), order_book(layout) as book:
        client = make_client(settings, token, learned=book.fact("learned_pace"))
        work = Sharing(client, book, renew=new)
        try:
            run_to_end(_share(client, work, requests))
        except BaseException:
            sys.stderr.write(_csv(work.outcomes))  # what was created by then is not to be lost
            with suppress(ScanlakeError):  # what stopped the run is what is told
                publish(settings, "share")
            raise
        publish(settings, "share")
    _tell(call, work.outcomes, format_)
    good = all(each.state in {"created", "reused"} for each in work.outcomes)
    return Exit.DONE if good else Exit.REJECTS


async def _share(client: Client, work: Sharing, requests: Sequence[ShareRequest]) -> None:
    async with client:
        await work.run(requests, now_us())


def _wanted(
    settings: Settings, given: list[str] | None, where: str | None, file: Path | None, defaults: dict[str, Any]
) -> list[dict[str, Any]]:
    if sum(bool(way) for way in (given, where, file)) != 1:
        raise SettingsError("Say which files, in one way.", remedy="Give references, or --where, or --file.")
    if file is not None:
        try:
            with file.open(encoding="utf-8-sig", newline="") as lines:
                return read_file(lines, f"--file {file}", defaults)
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not text"
            raise SettingsError(f"--file {file}: {reason}.", remedy="Name a CSV file in UTF-8.") from None
    if where is not None:
        with published(settings) as lake:
            return [{**defaults, "reference": each} for each in until_done(lake, lambda: references(lake, where))]
    return [{**defaults, "reference": each} for each in given or ()]


def _confirm(requests: Sequence[ShareRequest], *, yes: bool) -> None:
    """Nobody is written to by mistake: a person says yes to the number, a script says --yes."""
    addresses, lists = recipients(requests)
    who = f"{addresses:,} {'recipient' if addresses == 1 else 'recipients'}"
    if lists:
        who += f" and the recipients of {lists:,} DL {'reference' if lists == 1 else 'references'}"
    what = f"E-mails about {len(requests):,} {'link' if len(requests) == 1 else 'links'} go to {who}."
    if yes:
        sys.stderr.write(f"{what}\n")
        return
    if not sys.stdin.isatty():
        raise SettingsError(what, remedy="Nothing was shared. Add --yes if that is what you want.")
    if not typer.confirm(f"{what} Send them?", err=True):
        raise SettingsError("Nothing was shared.", remedy="Leave --send-email out to create links alone.")


def _tell(call: Call, outcomes: Sequence[ShareOutcome], shape: Format) -> None:
    counts = Counter(each.state for each in outcomes)
    if call.as_json or shape is Format.JSON:
        call.print_json({"shares": [asdict(each) for each in outcomes], "counts": dict(counts)})
    elif shape is Format.CSV:
        sys.stdout.write(_csv(outcomes))
    elif outcomes:
        used = [name for name in _COLUMNS if any(getattr(each, name) for each in outcomes)]
        table = Table(*used, box=None)
        for each in outcomes:
            table.add_row(*(Text(_printable(getattr(each, name)), overflow="fold") for name in used))
        call.console().print(table)
        call.console().print(Text(", ".join(f"{count:,} {state}" for state, count in counts.items()), "dim"))


def _csv(outcomes: Sequence[ShareOutcome]) -> str:
    page = io.StringIO(newline="")
    writer = csv.writer(page, lineterminator="\n")
    writer.writerow(_COLUMNS)
    writer.writerows([getattr(each, name) for name in _COLUMNS] for each in outcomes)
    return page.getvalue()


def _printable(text: str | None) -> str:
    return "".join(sign if sign.isprintable() else "?" for sign in text or "")
