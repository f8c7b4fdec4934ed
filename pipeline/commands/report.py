"""`scanlake report`: order and download the PDFs of many files."""

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from pipeline.client.factory import create_client
from pipeline.commands._completeness import warn_if_incomplete
from pipeline.context import CommandContext
from pipeline.errors import ExitCode, SettingsError, refuse_unreadable
from pipeline.formatting import format_bytes, pluralize
from pipeline.images.image_export import DEFAULT_NAME, export_images, select_images
from pipeline.lake.folder_checks import require_lake
from pipeline.lake.handover import NO_LINK
from pipeline.lake.lake_folder import require_outside_lakes
from pipeline.lake.layout import LakeLayout
from pipeline.lake.reader import open_catalog, open_ledger_readonly, run_interruptibly
from pipeline.lake.request_log import RequestLog, open_request_log
from pipeline.logs import to_one_line
from pipeline.process import run_async
from pipeline.reports.batches import make_batches, pdf_stem, validate_name_pattern
from pipeline.reports.image_folder import describe_images
from pipeline.reports.job import JobRequest, JobResult, run_job
from pipeline.reports.models import FileOutcome, JobOptions, ManifestImages
from pipeline.reports.run_state import MAX_OUTSTANDING_REPORTS, RunOptions
from pipeline.reports.selection import (
    CatalogState,
    SelectedFile,
    Selection,
    SelectionKind,
    describe_unorderable,
    read_catalog_state,
    read_ids,
    select_files,
)
from pipeline.reports.signing import sign
from pipeline.settings import Settings, require_base_url

GROUP: Final = "Use the data"

_MAX_LINES: Final = 20
_MIB: Final = 1024 * 1024
_selection_option = partial(typer.Option, rich_help_panel="Files")
_content_option = partial(typer.Option, rich_help_panel="Content of the PDFs")
_run_option = partial(typer.Option, rich_help_panel="Run")


def run(
    call: CommandContext,
    *,
    where: Annotated[
        str | None, _selection_option(metavar="SQL", help="Select files by a condition on the table files.")
    ] = None,
    sql: Annotated[
        str | None, _selection_option(metavar="SQL", help="Select files by a query with a column file_id.")
    ] = None,
    ids: Annotated[
        str | None, _selection_option(metavar="FILE", help="Select files by id: one per line; - reads stdin.")
    ] = None,
    reference: Annotated[
        list[str] | None, _selection_option(metavar="REF", help="Select all files of a reference; repeatable.")
    ] = None,
    out: Annotated[
        Path | None, _run_option("--out", "-o", metavar="DIR", help="Folder for the PDFs and the manifest.")
    ] = None,
    group_by: Annotated[
        str | None, _content_option(metavar="SQL", help="Expression over files; each PDF has one value of it.")
    ] = None,
    per_file: Annotated[
        bool, _content_option("--per-file", help="One PDF for each file, named by its reference.")
    ] = False,
    template: Annotated[
        int | None, _content_option(metavar="ID", help="Report template. Default: the service's.")
    ] = None,
    locale: Annotated[
        str | None, _content_option(help="Language and formats, for example en-US. Default: the service's.")
    ] = None,
    format_: Annotated[str | None, _content_option("--format", help="File format; the service has only pdf.")] = None,
    timezone: Annotated[
        str | None, _content_option(help="Time zone of dates, for example Europe/Berlin. Default: the service's.")
    ] = None,
    datetime_format: Annotated[
        str | None, _content_option(help="Pattern of dates, for example Y-m-d H:i:s. Default: the service's.")
    ] = None,
    name: Annotated[
        str | None,
        _content_option(
            metavar="PATTERN",
            help="Names of the PDFs, with {batch}, {group}, {count} and, with --per-file, {reference}."
            " Default: report-{batch}, or {group}-{batch}.",
        ),
    ] = None,
    with_images: Annotated[
        bool, _content_option("--with-images", help="Also the images of the files that the lake has.")
    ] = False,
    title: Annotated[str | None, _content_option(help="Title of index.html. Default: the id of the job.")] = None,
    purpose: Annotated[str | None, _content_option(help="What the PDFs are for; in index.html and manifest.")] = None,
    requested_by: Annotated[str | None, _content_option(help="Who asked for them; in index.html and manifest.")] = None,
    dry_run: Annotated[bool, _run_option("--dry-run", help="Show the batches, calls and time; order nothing.")] = False,
    timeout: Annotated[float, _run_option(min=0, help="Seconds to wait for a report after its order.")] = 1_800,
    synchronous: Annotated[
        bool, _run_option("--synchronous", help="The service has no asynchronous reports; found out if omitted.")
    ] = False,
    concurrency: Annotated[
        int, _run_option(min=1, max=32, help="Orders in flight if the service answers when the report is made.")
    ] = 4,
    max_mb: Annotated[int, _run_option(min=1, help="Maximum size of a PDF, in MiB.")] = 1024,
    sign_with: Annotated[
        Path | None, _run_option("--sign", metavar="KEY", help="Sign SHA256SUMS with this SSH key.")
    ] = None,
) -> ExitCode:
    """Download the PDFs of many files into a folder with a manifest.

    Files are ordered in batches of at most 100. Each file is confirmed in the service before its order and after its
    delivery. The same command resumes an interrupted job and orders failed reports again; a complete job is left as it
    is. A signed folder is changed only with --sign. A changed selection or option in the same folder is refused. The
    folder has the PDFs, manifest.csv, manifest.json, index.html and SHA256SUMS; `scanlake report verify DIR` checks it.
    With --with-images it also has the images of its files; run `scanlake images --where ...` first to download them.

    Exit codes: 0 every file is in a PDF, 4 some files are named as failed, or images are missing, 1 the service failed
    (run again), 3 token refused, 5 another run uses the folder, 6 the URL of a report must not be requested.
    """
    settings = call.settings()
    selection = _parse_selection(where, sql, ids, reference, group_by, per_file=per_file)
    options = JobOptions(
        service=require_base_url(settings),
        selection=selection.to_json(),
        name=validate_name_pattern(name, grouped=group_by is not None or per_file, per_file=per_file),
        template=template,
        locale=locale,
        format=_validate_format(format_),
        timezone=timezone,
        datetime_format=datetime_format,
        title=title,
        purpose=purpose,
        requested_by=requested_by,
        with_images=with_images,
    )
    layout = LakeLayout(settings.lake.absolute())
    require_lake(layout)
    if dry_run:
        selected, _ = _select_files(settings, selection)
        with open_ledger_readonly(layout) as ledger:
            return _print_dry_run(call, selected, options, ledger.mean_report_seconds())
    folder = _validate_output_folder(out, settings)
    with open_request_log(layout) as request_log:
        request_log.properties.require_service(options.service)
        run_options = RunOptions(
            timeout, max_pdf_bytes=max_mb * _MIB, asynchronous=not synchronous, concurrency=concurrency
        )
        request = JobRequest(
            settings,
            folder,
            options,
            run_options,
            partial(_select_and_warn, settings, selection, with_images=with_images),
            None if sign_with is None else partial(sign, sign_with),
            call.progress(),
            partial(_export_images, settings) if with_images else None,
        )
        result = _run_job(call, request_log, request)
    _print_result(call, result, folder)
    if result.had_protocol_errors:
        return ExitCode.PROTOCOL
    return ExitCode.OK if result.is_complete else ExitCode.REJECTS


def _run_job(call: CommandContext, request_log: RequestLog, request: JobRequest) -> JobResult:
    if request.sign is not None:
        request.sign(b"")  # a key that cannot sign must fail now, not after hours
    settings, learned = request.settings, request_log.properties.learned_limits
    client = create_client(settings, call.token(settings), learned=learned)
    return run_async(run_job(client, request_log, request))


def _parse_selection(
    where: str | None,
    sql: str | None,
    ids: str | None,
    references: list[str] | None,
    group_by: str | None,
    *,
    per_file: bool,
) -> Selection:
    if per_file and group_by is not None:
        raise SettingsError("--per-file and --group-by exclude each other.", hint="Leave one out.")
    options: dict[SelectionKind, Any] = {"where": where, "sql": sql, "ids": ids, "reference": references or None}
    kinds = [kind for kind, value in options.items() if value is not None]
    if len(kinds) != 1:
        raise SettingsError(
            "No files are selected." if not kinds else "More than one option selects files.",
            hint="Use one of --where, --sql, --ids and --reference.",
        )
    listed_ids = () if ids is None else _read_ids(ids)
    return Selection(kinds[0], where or sql or "", listed_ids, tuple(references or ()), group_by, per_file)


def _read_ids(source: str) -> tuple[int, ...]:
    if source == "-":
        return read_ids(sys.stdin, "--ids -")
    with (
        refuse_unreadable(f"--ids {source}", hint="Use a text file with one id per line."),
        Path(source).open(encoding="utf-8-sig") as lines,
    ):
        return read_ids(lines, f"--ids {source}")


def _validate_format(value: str | None) -> str | None:
    if value not in {None, "pdf"}:
        raise SettingsError(f"--format {value}: the service has only pdf.", hint="Omit --format.")
    return value


def _validate_output_folder(out: Path | None, settings: Settings) -> Path:
    if out is None:
        raise SettingsError("--out is required.", hint="Use --out with a new folder or the folder of an earlier job.")
    require_outside_lakes(out, f"--out {out}", settings.lake)
    return out


def _select_files(settings: Settings, selection: Selection) -> tuple[Sequence[SelectedFile], CatalogState]:
    with open_catalog(settings) as lake:
        warn_if_incomplete(lake)
        selected = run_interruptibly(lake, lambda: select_files(lake, selection))
        return selected, read_catalog_state(lake)


def _select_and_warn(
    settings: Settings, selection: Selection, *, with_images: bool
) -> tuple[Sequence[SelectedFile], CatalogState]:
    """Select the files and name those that cannot be ordered, before the first order.

    Raises `SettingsError` for a job with images if the lake has none: no order may come before that.
    """
    selected, state = _select_files(settings, selection)
    if with_images:
        with open_catalog(settings) as lake:
            select_images(lake, "false", thumbnails=False)
    _print_unorderable(selected)
    return selected, state


def _export_images(settings: Settings, folder: Path, file_ids: Sequence[int]) -> ManifestImages:
    """Export the images of files. They are copies: an edit of a hard link would change the lake."""
    layout = LakeLayout(settings.lake.absolute())
    where = f"uploads.file_id IN (SELECT unnest([{', '.join(map(str, file_ids))}]::BIGINT[]))"
    with open_catalog(settings) as lake:
        images = select_images(lake, where, thumbnails=False)
        result = export_images(layout, images, folder, DEFAULT_NAME, copies=True)
    missing = {state: count for state, count in sorted(result.missing.items()) if state != NO_LINK}
    return ManifestImages(folder=folder.name, exported=result.exported, bytes=result.bytes, missing=missing)


def _print_unorderable(selected: Sequence[SelectedFile]) -> None:
    lines = describe_unorderable(selected)
    for line in lines[:_MAX_LINES]:
        sys.stderr.write(f"not ordered: {to_one_line(line)}\n")
    if len(lines) > _MAX_LINES:
        sys.stderr.write(f"not ordered: {len(lines) - _MAX_LINES:,} more, all in the manifest\n")


def _print_dry_run(
    call: CommandContext, selected: Sequence[SelectedFile], options: JobOptions, mean_seconds: float | None
) -> ExitCode:
    files, batches = make_batches(selected, options.max_batch_files)
    _print_unorderable(selected)
    not_ordered = sum(file.batch is None for file in files)
    names = [f"{pdf_stem(options.name, batch)}.pdf" for batch in batches]
    seconds = None if mean_seconds is None else round(mean_seconds * max(1, len(batches) / MAX_OUTSTANDING_REPORTS), 1)
    if call.as_json:
        plan = [
            {"pdf": name, "files": len(batch.files), "group": batch.group_name}
            for name, batch in zip(names, batches, strict=True)
        ]
        totals = {"files": len(files), "not_ordered": not_ordered, "orders": len(batches), "seconds": seconds}
        call.print_json(totals | {"batches": plan})
        return ExitCode.REJECTS if not_ordered else ExitCode.OK
    lines = [f"{name}  {pluralize(len(batch.files), 'file')}" for name, batch in zip(names, batches, strict=True)]
    if len(lines) > _MAX_LINES:
        lines[_MAX_LINES:] = [f"... and {len(lines) - _MAX_LINES:,} more"]
    counts = f"{pluralize(len(files) - not_ordered, 'file')} in {pluralize(len(batches), 'PDF')}"
    calls = (
        f"{pluralize(len(batches), 'order')}, at least {pluralize(2 * len(batches), 'call')}, each file confirmed twice"
    )
    time = "unknown before the first job" if seconds is None else f"about {seconds:,.0f} s, as in earlier jobs"
    lines += [f"{counts}: {calls}", f"time: {time}", "nothing was ordered"]
    sys.stdout.write("\n".join(lines) + "\n")
    return ExitCode.REJECTS if not_ordered else ExitCode.OK


def _print_result(call: CommandContext, result: JobResult, folder: Path) -> None:
    status = result.status
    failed, unknown_orders = status.failed, status.unknown_orders
    delivered = len(status.files) - len(failed)
    images = result.images
    if call.as_json:
        call.print_json(
            ({} if images is None else {"images": images.model_dump()})
            | {
                "job": status.job.job,
                "folder": str(folder),
                "resumed": result.resumed,
                "was_complete": result.was_complete,
                "files": len(status.files),
                "delivered": delivered,
                "pdfs": len(status.pdfs),
                "orders": len(status.orders),
                "unknown_orders": [order.name for order in unknown_orders],
                "failed": [
                    {"file_id": outcome.file.file_id, "reference": outcome.file.reference, "reason": outcome.reason}
                    for outcome in failed
                ],
            }
        )
        return
    size = sum(order.bytes or 0 for order in status.pdfs)
    total = pluralize(len(status.files), "file")
    lines = [
        f"{delivered:,} of {total} in {pluralize(len(status.pdfs), 'PDF')}, {format_bytes(size)}",
        f"{folder}: manifest.csv, manifest.json, index.html, SHA256SUMS",
    ]
    if images is not None:
        lines.append(describe_images(images))
        if images.missing:
            lines.append("get them with `scanlake images --where ...`, then run the same command again")
    if result.was_complete:
        lines.append("the job was complete and its folder is unchanged: nothing to do")
    lines += [f"ordered twice, because the response was lost: {order.name}" for order in unknown_orders]
    lines += [
        f"failed: {_describe_file(outcome)}: {to_one_line(outcome.reason or '')}" for outcome in failed[:_MAX_LINES]
    ]
    if len(failed) > _MAX_LINES:
        lines.append(f"... and {len(failed) - _MAX_LINES:,} more, all in manifest.csv")
    sys.stdout.write("\n".join(lines) + "\n")


def _describe_file(outcome: FileOutcome) -> str:
    file = outcome.file
    return f"reference {to_one_line(file.reference or '')}" if file.file_id is None else f"file {file.file_id}"
