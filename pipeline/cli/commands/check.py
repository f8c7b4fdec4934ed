"""`scanlake check`: check the set-up, the lake and its copies; nothing is written."""

import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Final

import typer

from pipeline.cli.context import CommandContext
from pipeline.cli.followers import read_publish_record
from pipeline.cli.monitored_run import report_end
from pipeline.cli.option_rules import Excludes, Requires
from pipeline.cli.options import Location, ReadDataOption
from pipeline.client.probe import check_service
from pipeline.errors import ExitCode, ScanlakeError, SettingsError
from pipeline.lake.repair import check_folder, check_lake, check_permissions
from pipeline.lake.storage.lake_lock import lock_lake_for_reading
from pipeline.lake.storage.layout import LakeLayout
from pipeline.output.findings import CheckResult, Finding, Severity, collect, format_finding, from_error, ok, skipped
from pipeline.output.redaction import to_one_line
from pipeline.processes.event_loop import run_async
from pipeline.publish.iceberg import check_iceberg_tables, has_iceberg_tables
from pipeline.publish.restore import check_backup
from pipeline.publish.stores import open_location, open_store
from pipeline.publish.target_checks import check_published, check_target, name_tables
from pipeline.query.reader import has_catalog
from pipeline.reports.folder_check import check_report_folder
from pipeline.reports.pdf_reader import PdfReader
from pipeline.settings.locations import parse_location
from pipeline.settings.settings import Settings, require_base_url
from pipeline.sync.after_run import check_channels
from pipeline.sync.run_result import RunResult

EXAMPLES: Final = ("check", "check --backup /mnt/backup")
TAKES_ALL_SOURCES: Final = True
RESULT: Final = CheckResult


def run(
    context: CommandContext,
    *,
    read_data: ReadDataOption = False,
    published: Annotated[
        bool, typer.Option("--published", help="Also compare the lake with its copy on object storage.")
    ] = False,
    backup: Annotated[
        str | None,
        typer.Option(
            metavar="DIR|URL",
            click_type=Location(parse_location),
            help="Check a backup instead: whether a restore would find everything.",
        ),
        Excludes("--published", "--report", "--all"),
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Check the folder of a finished `scanlake report` instead."),
        Excludes("--read-data", "--published", "--all"),
    ] = None,
    allowed_signers: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Require a signature by a signer of this file (format of ssh-keygen)."),
        Requires("--report"),
    ] = None,
) -> ExitCode:
    """Check settings, service, disk, lake and images, and write nothing; every problem has a hint.

    Makes one list call if base_url and token are set, and connects to notify_url. Compares every part with its recorded
    hash and every image with its size, and opens the catalog and every kept snapshot. `scanlake repair` repairs the
    damage in a lake.

    --published compares objects, rows and images of the newest published snapshot with the lake; with --read-data, also
    the hash of every object. In Iceberg tables it finds missing files and wrong numbers of rows; with --read-data, also
    different rows.

    --backup reads every object of a backup and compares its hash; images are compared by size, or by hash with
    --read-data. It needs neither lake nor service.

    --report checks checksums, PDFs, manifest and signature of a folder, and needs neither lake nor service. If the job
    signed the folder, the signature must be there.

    The exit code is that of the most severe finding. Warnings give 0, except wrong times of a report. While a run holds
    the lake, its files are not compared, and the exit code is 5. A check of the lake also reports to metrics and
    alerts.
    """
    started_at = datetime.now(UTC)
    if backup is not None:
        checks = check_backup(open_location(backup), read_data=read_data)
    elif report is not None:
        with closing(PdfReader()) as reader:
            checks = iter(check_report_folder(report, reader, allowed_signers).findings)
    else:
        checks = _check_setup(context, read_data=read_data, published=published)
    findings: list[Finding] = []
    for finding in checks:
        findings.append(finding)
        is_silent = context.quiet and finding.severity is Severity.OK
        if not (context.as_json or is_silent):  # at once: the later checks take long
            sys.stdout.write(format_finding(finding))
            sys.stdout.flush()
    result = collect(findings)
    if backup is None and report is None:
        _report_check(context, result, started_at)
    is_silent = context.quiet and result.counts.keys() <= {Severity.OK}
    return context.print_result(result, "" if is_silent else f"{result.summarize()}\n", result.most_severe)


def _report_check(context: CommandContext, result: CheckResult, started_at: datetime) -> None:
    """Report the check as a run of a monitored command. It has named settings that are wrong, among them channels."""
    with suppress(SettingsError):
        settings = context.load_layers().settings()
        worst = next((item for item in result.findings if item.exit_code == result.most_severe), None)
        reason = f"{worst.subject}: {worst.problem}. {worst.hint}" if worst and result.most_severe else ""
        values = (settings.lake, context.source or "", result.most_severe, to_one_line(reason))
        run = RunResult(*values, started_at=started_at, command="check")
        if settings.metrics_file or settings.notify_url:
            report_end(settings, run)


def _check_setup(context: CommandContext, *, read_data: bool, published: bool) -> Iterator[Finding]:
    """Yield findings; the checks that take longest come last."""
    try:
        layers = context.load_layers()
        settings = context.use_settings(layers)
    except SettingsError as failure:
        yield from_error("settings", "file", failure)
        return
    source = f", source {layers.source}" if layers.source else ""
    yield ok("settings", "file", f"{layers.path or 'none'}{source}")
    yield from check_permissions(layers.path, settings)
    yield from check_channels(settings)
    yield from check_folder(settings)
    yield from _check_service(context, settings)
    if settings.publish_to is not None and not published:
        yield from check_target(LakeLayout(settings.lake.absolute()), settings.publish_to)
    yield from check_lake(settings, read_data=read_data)
    if published:
        yield from _check_published(settings, read_data=read_data)


def _check_service(context: CommandContext, settings: Settings) -> Iterator[Finding]:
    """Yield findings for the service. On a machine that only reads a lake, it is not set up, which is in order."""
    try:
        require_base_url(settings)
        token = context.token(settings)
    except SettingsError as failure:
        is_reader = settings.token_file is None and has_catalog(settings)
        if is_reader:
            yield skipped("service", "service", f"not asked: {failure.message}", failure.hint)
        else:
            yield from_error("settings", "service", failure)
        return
    yield from run_async(check_service(settings, token))


def _check_published(settings: Settings, *, read_data: bool) -> Iterator[Finding]:
    record = read_publish_record(settings)
    target = settings.publish_to or (record["target"] if record else None)
    layout, subject = LakeLayout(settings.lake.absolute()), target or "publish_to"
    try:
        has_tables = has_iceberg_tables(settings)
        if target is None and not has_tables:
            raise SettingsError("The lake was not published.", hint="Set publish_to or iceberg_location.")
        if target is not None:
            yield from check_published(layout, open_store(target), read_data=read_data)
        if has_tables:
            location = settings.iceberg_location or target or ""
            subject = name_tables(location)
            with lock_lake_for_reading(layout):
                yield from check_iceberg_tables(layout, settings, location, subject, read_data=read_data)
    except ScanlakeError as failure:
        yield from_error("target", subject, failure)
