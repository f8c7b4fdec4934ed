"""`scanlake report`: order and download the PDFs of many files."""

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from msgspec import Struct

from pipeline.cli.context import CommandContext
from pipeline.cli.option_rules import Excludes
from pipeline.cli.options import Location
from pipeline.client.client import create_client
from pipeline.errors import ExitCode, SettingsError, refuse_unreadable
from pipeline.lake.catalog.folder_checks import require_lake
from pipeline.lake.ledger.folder import require_outside_lakes
from pipeline.lake.ledger.readonly import open_ledger_readonly
from pipeline.lake.ledger.request_log import ReportJobFile, open_request_log
from pipeline.output.formatting import format_bytes, pluralize
from pipeline.output.redaction import to_one_line
from pipeline.processes.event_loop import run_async
from pipeline.query.reader import open_catalog, warn_if_incomplete
from pipeline.query.sandbox import run_interruptibly
from pipeline.reports.job import JobResult, published_at_end, run_job
from pipeline.reports.manifest import describe_reading
from pipeline.reports.models import CatalogState, JobOptions, Manifest, ManifestFile
from pipeline.reports.ordering import MAX_OUTSTANDING_REPORTS
from pipeline.reports.proof_times import find_time_problems
from pipeline.reports.selection import Selection, SelectionKind, make_batches, name_pdf, read_ids, select_files
from pipeline.reports.signing import sign
from pipeline.settings.locations import parse_folder
from pipeline.settings.settings import Settings, require_base_url

EXAMPLES: Final = ('report --where "closed" -o reports --dry-run', "report --ids ids.txt -o reports --per-file")
IS_MONITORED: Final = True

_MAX_LINES: Final = 20
_selection_option = partial(typer.Option, rich_help_panel="Files")
_content_option = partial(typer.Option, rich_help_panel="Content of the PDFs")
_run_option = partial(typer.Option, rich_help_panel="Run")


class PlannedPdf(Struct, frozen=True):
    """A PDF that a run would order."""

    pdf: str
    files: int
    group: str | None


class ReportPlan(Struct, frozen=True):
    """Result of `report --dry-run`. `seconds` is an estimate, None before the first job."""

    files: int
    not_ordered: int
    orders: int
    seconds: float | None
    batches: list[PlannedPdf]


class NamedFile(Struct, frozen=True):
    """A selected file that is in no PDF, or has changed since its selection."""

    file_id: int | None
    reference: str | None
    reason: str | None


class ReportResult(Struct, frozen=True):
    """Result of `report`. `unknown_orders` are those whose response was lost: they were ordered again.

    `pdfs_not_read` are delivered, but whether their pages show the files is not known. `time_problems` are times of the
    proof that contradict each other, or the service's clock.
    """

    job: str
    folder: Path
    resumed: bool
    was_complete: bool
    files: int
    delivered: int
    pdfs: int
    pdfs_not_read: list[str]
    orders: int
    unknown_orders: list[str]
    time_problems: list[str]
    changed: list[NamedFile]
    failed: list[NamedFile]


RESULT: Final = ReportResult | ReportPlan


def run(
    call: CommandContext,
    *,
    where: Annotated[
        str | None,
        _selection_option(metavar="SQL", help="Select files by a condition on the table files."),
        Excludes("--sql", "--ids", "--reference"),
    ] = None,
    sql: Annotated[
        str | None,
        _selection_option(metavar="SQL", help="Select files by a query with a column file_id."),
        Excludes("--ids", "--reference"),
    ] = None,
    ids: Annotated[
        Path | None,
        _selection_option(metavar="FILE", help="Select files by id: one per line; - reads stdin."),
        Excludes("--reference"),
    ] = None,
    reference: Annotated[
        list[str] | None, _selection_option(metavar="REF", help="Select all files of a reference; repeatable.")
    ] = None,
    out: Annotated[
        Path | None,
        _run_option(
            "--out", "-o", metavar="DIR", click_type=Location(parse_folder), help="Folder of the PDFs and the manifest."
        ),
    ] = None,
    group_by: Annotated[
        str | None, _content_option(metavar="SQL", help="Expression over files; each PDF has one value of it.")
    ] = None,
    per_file: Annotated[
        bool,
        _content_option("--per-file", help="One PDF for each file, named by its reference."),
        Excludes("--group-by"),
    ] = False,
    template: Annotated[
        int | None, _content_option(metavar="ID", help="Report template. Default: the service's.")
    ] = None,
    locale: Annotated[
        str | None, _content_option(help="Language and formats, for example en-US. Default: the service's.")
    ] = None,
    timezone: Annotated[
        str | None, _content_option(help="Time zone of dates, for example Europe/Berlin. Default: the service's.")
    ] = None,
    datetime_format: Annotated[
        str | None, _content_option(help="Pattern of dates, for example Y-m-d H:i:s. Default: the service's.")
    ] = None,
    title: Annotated[str | None, _content_option(help="Title of index.html. Default: the id of the job.")] = None,
    purpose: Annotated[str | None, _content_option(help="What the PDFs are for; in index.html and manifest.")] = None,
    requested_by: Annotated[str | None, _content_option(help="Who asked for them; in index.html and manifest.")] = None,
    dry_run: Annotated[bool, _run_option("--dry-run", help="Show the batches, calls and time; order nothing.")] = False,
    timeout: Annotated[float, _run_option(min=0, help="Seconds to wait for a report after its order.")] = 1_800,
    sign_with: Annotated[
        Path | None, _run_option("--sign", metavar="KEY", help="Sign SHA256SUMS with this SSH key.")
    ] = None,
) -> ExitCode:
    """Download the PDFs of many files into a folder with a manifest.

    Files are ordered in batches of at most 100. Each file is confirmed in the service before its order and after its
    delivery. The same command resumes an interrupted job and orders failed reports again. A complete job is not
    changed, and a signed folder only with --sign. Another selection or other options are refused in the same folder.
    The folder has the PDFs, manifest.csv, manifest.json, index.html and SHA256SUMS, and manifest.xlsx if XlsxWriter is
    installed. VERIFY.txt lists commands that check it; `scanlake check --report DIR` compares more.
    """
    settings = call.settings()
    selection = _parse_selection(where, sql, ids, reference, group_by, per_file=per_file)
    options = JobOptions(
        service=require_base_url(settings),
        selection=selection.to_json(),
        template=template,
        locale=locale,
        timezone=timezone,
        datetime_format=datetime_format,
        title=title,
        purpose=purpose,
        requested_by=requested_by,
    )
    layout = require_lake(settings.lake)
    if dry_run:
        selected, _ = _select_files(settings, selection)
        with open_ledger_readonly(layout) as ledger:
            return _print_plan(call, selected, options, ledger.mean_report_seconds())
    if out is None:
        raise SettingsError("--out is required.", hint="Use --out with a new folder or the folder of an earlier job.")
    require_outside_lakes(out, f"--out {out}", settings.lake)
    signer = None if sign_with is None else partial(sign, sign_with)
    if signer is not None:
        signer(b"")  # a key that cannot sign must fail now, not after hours
    with open_request_log(layout) as request_log:
        properties = request_log.ledger.properties
        properties.require_service(options.service)
        job = run_job(
            create_client(settings, call.token(settings), learned=properties.learned_limits),
            request_log,
            out,
            options,
            timeout_seconds=timeout,
            select_files=partial(_select_files, settings, selection),
            published=published_at_end(settings, "report"),
            sign=signer,
            progress=call.progress(),
        )
        result = run_async(job)
    return _print_result(call, result, out)


def _parse_selection(
    where: str | None,
    sql: str | None,
    ids: Path | None,
    references: list[str] | None,
    group_by: str | None,
    *,
    per_file: bool,
) -> Selection:
    options: dict[SelectionKind, Any] = {"where": where, "sql": sql, "ids": ids, "reference": references or None}
    kind = next((kind for kind, value in options.items() if value is not None), None)
    if kind is None:
        raise SettingsError("No files are selected.", hint="Use one of --where, --sql, --ids and --reference.")
    listed_ids = () if ids is None else _read_ids(ids)
    return Selection(kind, where or sql or "", listed_ids, tuple(references or ()), group_by, per_file)


def _read_ids(source: Path) -> tuple[int, ...]:
    if source == Path("-"):
        return read_ids(sys.stdin, "--ids -")
    with (
        refuse_unreadable(f"--ids {source}", hint="Use a text file with one id per line."),
        source.open(encoding="utf-8-sig") as lines,
    ):
        return read_ids(lines, f"--ids {source}")


def _select_files(settings: Settings, selection: Selection) -> tuple[Sequence[ReportJobFile], CatalogState]:
    """Select the files and name those that cannot be ordered, before the first order."""
    with open_catalog(settings) as lake:
        warn_if_incomplete(lake)
        selected, state = run_interruptibly(lake, lambda: select_files(lake, selection), settings.query_memory_bytes)
    named = [f"{_describe_file(file)}: {file.reason}" for file in selected if file.reason is not None]
    for line in _shorten(named, ", all in the manifest"):
        sys.stderr.write(f"not ordered: {line}\n")
    return selected, state


def _print_plan(
    call: CommandContext, selected: Sequence[ReportJobFile], options: JobOptions, mean_seconds: float | None
) -> ExitCode:
    batches = make_batches(selected, options.max_batch_files)
    pdfs = [PlannedPdf(name_pdf(batch), len(batch.files), batch.group_name) for batch in batches]
    orders = len(pdfs)
    seconds = None if mean_seconds is None else round(mean_seconds * max(1, orders / MAX_OUTSTANDING_REPORTS), 1)
    plan = ReportPlan(len(selected), sum(file.reason is not None for file in selected), orders, seconds, pdfs)
    lines = _shorten([f"{pdf.pdf}  {pluralize(pdf.files, 'file')}" for pdf in pdfs])
    calls = f"{pluralize(orders, 'order')}, at least {pluralize(2 * orders, 'call')}, each file confirmed twice"
    time = "unknown before the first job" if seconds is None else f"about {seconds:,.0f} s, as in earlier jobs"
    lines += [
        f"{pluralize(plan.files - plan.not_ordered, 'file')} in {pluralize(orders, 'PDF')}: {calls}",
        f"time: {time}",
        "nothing was ordered",
    ]
    return call.print_result(plan, "\n".join(lines) + "\n", ExitCode.REJECTS if plan.not_ordered else ExitCode.OK)


def _print_result(call: CommandContext, result: JobResult, folder: Path) -> ExitCode:
    manifest = result.manifest
    printed = ReportResult(
        job=manifest.job,
        folder=folder,
        resumed=result.resumed,
        was_complete=result.was_complete,
        files=manifest.counts.files,
        delivered=manifest.counts.delivered,
        pdfs=manifest.counts.pdfs,
        pdfs_not_read=[pdf.pdf for pdf in manifest.pdfs if pdf.references_found is None],
        orders=manifest.counts.orders,
        unknown_orders=[order.name for order in manifest.unknown_orders],
        time_problems=find_time_problems(manifest),
        changed=_name_files(manifest.changed),
        failed=_name_files(manifest.failed),
    )
    lines = _format_result(manifest, folder) + [f"times: {problem}" for problem in printed.time_problems]
    if result.was_complete:
        lines.append("the job was complete and its folder is unchanged: nothing to do")
    code = ExitCode.REJECTS if manifest.failed or manifest.changed or printed.time_problems else ExitCode.OK
    code = ExitCode.PROTOCOL if result.had_protocol_errors else code
    return call.print_result(printed, "\n".join(lines) + "\n", code)


def _format_result(manifest: Manifest, folder: Path) -> list[str]:
    counts = manifest.counts
    size = format_bytes(sum(pdf.bytes for pdf in manifest.pdfs))
    lines = [
        f"{counts.delivered:,} of {pluralize(counts.files, 'file')} in {pluralize(counts.pdfs, 'PDF')}, {size}",
        f"{folder}: manifest.csv, manifest.json, index.html, VERIFY.txt, SHA256SUMS",
    ]
    lines += [f"ordered twice, because the response was lost: {order.name}" for order in manifest.unknown_orders]
    lines[1:1] = [describe_reading([pdf.references_found for pdf in manifest.pdfs])] if manifest.pdfs else []
    lines += _shorten([f"{pdf.pages}: {pdf.pdf}" for pdf in manifest.pdfs if pdf.references_found is None])
    named = [f"failed: {_describe_file(file)}: {to_one_line(file.reason or '')}" for file in manifest.failed]
    named += [f"{_describe_file(file)}: {file.reason}" for file in manifest.changed]
    return lines + _shorten(named, ", all in manifest.csv")


def _name_files(files: Sequence[ManifestFile]) -> list[NamedFile]:
    return [NamedFile(file.file_id, file.reference, file.reason) for file in files]


def _shorten(lines: list[str], where: str = "") -> list[str]:
    more = [f"... and {len(lines) - _MAX_LINES:,} more{where}"] if len(lines) > _MAX_LINES else []
    return lines[:_MAX_LINES] + more


def _describe_file(file: ManifestFile | ReportJobFile) -> str:
    return f"reference {to_one_line(file.reference or '')}" if file.file_id is None else f"file {file.file_id}"
