"""`scanlake report`: the PDFs of many files, in a folder that proves itself."""

import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from pipeline.call import Call, setting
from pipeline.commands.running import run_to_end
from pipeline.errors import Exit, SettingsError
from pipeline.exports.batches import checked_pattern, cut, stem
from pipeline.exports.jobs import FileOutcome, Terms
from pipeline.exports.proof import prove
from pipeline.exports.reports import OUTSTANDING, Manner
from pipeline.exports.selection import Chosen, Wish, choose, in_words, read_ids, standing
from pipeline.exports.signing import sign
from pipeline.exports.work import Commission, Done, work
from pipeline.lake.files import Layout
from pipeline.lake.orders import OrderBook, order_book
from pipeline.logs import one_line
from pipeline.published import published, until_done
from pipeline.runs.clients import make_client
from pipeline.service.client import Client
from pipeline.settings import Settings, base_url_value
from pipeline.wording import many

_SHOWN: Final = 20
_MIB: Final = 1024 * 1024
_WHICH, _WHAT, _HOW = "Which files", "What the PDFs are", "How it is done"


def run(
    call: Call,
    *,
    where: Annotated[
        str | None, typer.Option(metavar="SQL", help="Files that meet a condition on `files`.", rich_help_panel=_WHICH)
    ] = None,
    sql: Annotated[
        str | None,
        typer.Option("--sql", metavar="SQL", help="Files of any query with a column file_id.", rich_help_panel=_WHICH),
    ] = None,
    ids: Annotated[
        str | None, typer.Option(metavar="FILE", help="Ids, one a line; - reads them here.", rich_help_panel=_WHICH)
    ] = None,
    reference: Annotated[
        list[str] | None, typer.Option(help="All files of this reference; may be repeated.", rich_help_panel=_WHICH)
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Folder of the job.", rich_help_panel=_HOW)] = None,
    group_by: Annotated[
        str | None,
        typer.Option(metavar="SQL", help="No PDF mixes two values of this over `files`.", rich_help_panel=_WHAT),
    ] = None,
    template: Annotated[int | None, typer.Option(help="Template id.", rich_help_panel=_WHAT)] = None,
    locale: Annotated[str | None, typer.Option(help="Locale, en-US for example.", rich_help_panel=_WHAT)] = None,
    format_: Annotated[str | None, typer.Option("--format", help="pdf.", rich_help_panel=_WHAT)] = None,
    timezone: Annotated[str | None, typer.Option(help="Time zone, Europe/Berlin.", rich_help_panel=_WHAT)] = None,
    datetime_format: Annotated[str | None, typer.Option(help="Pattern, Y-m-d H:i:s.", rich_help_panel=_WHAT)] = None,
    name: Annotated[
        str | None,
        typer.Option(metavar="PATTERN", help="PDFs' names, of {batch} {group} {count}.", rich_help_panel=_WHAT),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show batches, calls and time; order nothing.", rich_help_panel=_HOW)
    ] = False,
    wait: Annotated[
        float, typer.Option(min=0, help="Seconds from an order until its report is given up.", rich_help_panel=_HOW)
    ] = 1_800,
    synchronous: Annotated[
        bool, typer.Option("--synchronous", help="For services that make reports only so.", rich_help_panel=_HOW)
    ] = False,
    max_mb: Annotated[int, typer.Option(min=1, help="Largest PDF, in MiB.", rich_help_panel=_HOW)] = 1024,
    sign_with: Annotated[
        Path | None, typer.Option("--sign", metavar="KEY", help="Sign SHA256SUMS: SSH key.", rich_help_panel=_HOW)
    ] = None,
    verify: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Check a folder; needs neither lake nor service.", rich_help_panel=_HOW),
    ] = None,
    signers: Annotated[
        Path | None, typer.Option(help="With --verify: ssh's allowed_signers file.", rich_help_panel=_HOW)
    ] = None,
    base_url: Annotated[str | None, setting("base_url")] = None,
    token_file: Annotated[Path | None, setting("token_file")] = None,
    max_concurrency: Annotated[int | None, setting("max_concurrency")] = None,
    max_requests_per_second: Annotated[float | None, setting("max_requests_per_second")] = None,
) -> Exit:
    """Fetch the PDFs of many files into a folder that proves itself.

    Files are ordered in batches of at most 100. The same command resumes a job that was stopped or killed,
    and tries again what failed; a changed selection or setting in the same folder is refused. The folder holds
    the PDFs, manifest.csv, manifest.json, index.html and SHA256SUMS.

    Exit codes: 0 every file is in a PDF, 4 some are named as failed, 1 the service failed (run again),
    3 token refused, 5 another run works in the folder, 6 a report's address must not be asked, 9 damage found.
    """
    if verify is not None:
        return _verify(call, verify, signers)
    settings = call.settings(
        base_url=base_url,
        token_file=token_file,
        max_concurrency=max_concurrency,
        max_requests_per_second=max_requests_per_second,
    )
    wish = _wish(where, sql, ids, reference, group_by)
    terms = Terms(
        service=base_url_value(settings),
        selection=wish.words(),
        name=checked_pattern(name, grouped=group_by is not None),
        template=template,
        locale=locale,
        format=_pdf(format_),
        timezone=timezone,
        datetime_format=datetime_format,
    )
    layout = Layout(settings.lake.absolute())
    if not layout.ledger.exists():
        raise SettingsError(f"No lake at {settings.lake}.", remedy="Run `scanlake sync` first, or mend --lake.")
    with order_book(layout) as book:
        if dry_run:
            return _tell_plan(call, _selected(settings, wish)[0], terms, book.seconds_a_report())
        folder = _out(out, settings)
        _same_service(book, settings)
        signing = None if sign_with is None else partial(sign, sign_with)
        if signing is not None:
            signing(b"")  # better now than after hours
        manner = Manner(wait=wait, max_bytes=max_mb * _MIB, asynchronous=not synchronous)
        client = _client(settings, call.token(settings), book, manner)
        asked = Commission(settings, folder, terms, manner, partial(_chosen, settings, wish), signing, call.progress())
        done = run_to_end(work(client, book, asked))
    _tell(call, done, folder)
    if done.broken:
        return Exit.CONTRACT
    return Exit.REJECTS if done.standing.failed else Exit.DONE


# What was asked for


def _wish(
    where: str | None, sql: str | None, ids: str | None, references: list[str] | None, group_by: str | None
) -> Wish:
    given = [flag for flag in (where, sql, ids, references or None) if flag is not None]
    if len(given) != 1:
        raise SettingsError(
            "Say which files." if not given else "One way of selecting files excludes the others.",
            remedy="Give one of --where, --sql, --ids and --reference.",
        )
    if where is not None:
        return Wish("where", sql=where, group_by=group_by)
    if sql is not None:
        return Wish("sql", sql=sql, group_by=group_by)
    if ids is not None:
        return Wish("ids", ids=_ids(ids), group_by=group_by)
    return Wish("reference", references=tuple(references or ()), group_by=group_by)


def _ids(source: str) -> tuple[int, ...]:
    if source == "-":
        return read_ids(sys.stdin, "--ids -")
    try:
        with Path(source).open(encoding="utf-8-sig") as lines:
            return read_ids(lines, f"--ids {source}")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not text"
        raise SettingsError(f"--ids {source}: {reason}.", remedy="Name a file with one id a line.") from None


def _pdf(given: str | None) -> str | None:
    if given not in {None, "pdf"}:
        raise SettingsError("--format: the service makes pdf only.", remedy="Leave it out.")
    return given


def _out(out: Path | None, settings: Settings) -> Path:
    if out is None:
        raise SettingsError(
            "No --out: where shall the PDFs go?", remedy="Name a new folder, or one of a job begun before."
        )
    if out.resolve().is_relative_to(settings.lake.resolve()):
        raise SettingsError(f"--out {out} lies within the lake.", remedy="Name a folder somewhere else.")
    return out


def _same_service(book: OrderBook, settings: Settings) -> None:
    source = book.fact("source")
    if source is not None and source != str(settings.base_url):
        raise SettingsError(
            f"this lake holds the files of {source}, not of {settings.base_url}",
            remedy="Name the lake of this service: ids of one mean other files in another.",
        )


def _selected(settings: Settings, wish: Wish) -> tuple[Sequence[Chosen], dict[str, Any]]:
    with published(settings) as lake:
        chosen = until_done(lake, lambda: choose(lake, wish))
        return chosen, standing(lake)


def _chosen(settings: Settings, wish: Wish) -> tuple[Sequence[Chosen], dict[str, Any]]:
    """The selection, with those named that cannot be ordered: before anything is."""
    chosen, context = _selected(settings, wish)
    _name_missing(chosen)
    return chosen, context


def _name_missing(chosen: Sequence[Chosen]) -> None:
    missing = in_words(chosen)
    for line in missing[:_SHOWN]:
        sys.stderr.write(f"not ordered: {one_line(line)}\n")
    if len(missing) > _SHOWN:
        sys.stderr.write(f"not ordered: {len(missing) - _SHOWN:,} more; the manifest names them all\n")


def _client(settings: Settings, token: str, book: OrderBook, manner: Manner) -> Client:
    client = make_client(settings, token, learned=book.fact("learned_pace"))
    if manner.asynchronous:
        return client
    # A synchronous order is answered when the report is made: that may take minutes.
    patient = replace(
        client.options, total_timeout=manner.wait, max_seconds=max(manner.wait, client.options.max_seconds)
    )
    return Client(str(settings.base_url), token, options=patient, pacer=client.pacer)


# What is told


def _tell_plan(call: Call, chosen: Sequence[Chosen], terms: Terms, seconds: float | None) -> Exit:
    files, batches = cut(chosen)
    _name_missing(chosen)
    missing = sum(file.batch is None for file in files)
    plan = [
        {"pdf": f"{stem(terms.name, each)}.pdf", "files": len(each.files), "group": each.group_name} for each in batches
    ]
    time = None if seconds is None else round(seconds * max(1, len(batches) / OUTSTANDING), 1)
    if call.as_json:
        call.print_json(
            {"files": len(files), "not_ordered": missing, "batches": plan, "orders": len(batches), "seconds": time}
        )
    else:
        lines = [f"{each['pdf']}  {many(int(each['files'] or 0), 'file')}" for each in plan[:_SHOWN]]
        lines += [f"... and {len(plan) - _SHOWN:,} more"] if len(plan) > _SHOWN else []
        lines.append(
            f"{many(len(files) - missing, 'file')} in {many(len(batches), 'PDF')}: {many(len(batches), 'order')},"
            f" {many(2 * len(batches), 'call')} or more: each report is asked for until it is there"
        )
        lines.append(
            "how long the service takes is known after the first job"
            if time is None
            else f"about {time:,.0f} s, as earlier jobs had it"
        )
        lines.append("nothing was ordered")
        sys.stdout.write("\n".join(lines) + "\n")
    return Exit.REJECTS if missing else Exit.DONE


def _tell(call: Call, done: Done, folder: Path) -> None:
    found = done.standing
    failed, ambiguous = found.failed, found.ambiguous
    if call.as_json:
        call.print_json(
            {
                "job": found.record.job,
                "folder": str(folder),
                "resumed": done.resumed,
                "files": len(found.files),
                "delivered": len(found.files) - len(failed),
                "pdfs": len(found.pdfs),
                "orders": len(found.orders),
                "ambiguous_orders": [order.name for order in ambiguous],
                "failed": [
                    {"file_id": each.file.file_id, "reference": each.file.reference, "reason": each.reason}
                    for each in failed
                ],
            }
        )
        return
    size = sum(order.bytes or 0 for order in found.pdfs) / 1e6
    there = f"{len(found.files) - len(failed):,} of {many(len(found.files), 'file')}"
    lines = [
        f"{there} in {many(len(found.pdfs), 'PDF')}, {size:,.1f} MB",
        f"{folder}: manifest.csv, manifest.json, index.html, SHA256SUMS",
    ]
    lines += [f"ordered twice, as no answer came: {order.name}" for order in ambiguous]
    lines += [f"failed: {_of_file(each)}: {one_line(each.reason or '')}" for each in failed[:_SHOWN]]
    if len(failed) > _SHOWN:
        lines.append(f"... and {len(failed) - _SHOWN:,} more, all in manifest.csv")
    sys.stdout.write("\n".join(lines) + "\n")


def _of_file(each: FileOutcome) -> str:
    return (
        f"reference {one_line(each.file.reference or '')}" if each.file.file_id is None else f"file {each.file.file_id}"
    )


def _verify(call: Call, folder: Path, signers: Path | None) -> Exit:
    verdict = prove(folder, signers)
    if call.as_json:
        call.print_json(asdict(verdict))
    else:
        lines = [f"flaw: {one_line(flaw)}" for flaw in verdict.flaws]
        lines += [f"not of this job: {one_line(name)}" for name in verdict.foreign]
        if verdict.signer:
            lines.append(f"signed by {one_line(verdict.signer)}")
        elif not verdict.signed:
            lines.append("not signed")
        held_ = f"{many(verdict.files, 'file')}, {many(verdict.pdfs, 'PDF')}, {verdict.failed:,} named as failed"
        lines.append(f"{'DAMAGED' if verdict.flaws else 'whole'}: job {one_line(verdict.job)}, {held_}")
        sys.stdout.write("\n".join(lines) + "\n")
    return Exit.DAMAGE if verdict.flaws else Exit.DONE
