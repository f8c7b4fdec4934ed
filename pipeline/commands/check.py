"""`scanlake check`: check the set-up, the lake and its copies; nothing is written."""

import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Annotated, Final

import typer

from pipeline.client.probe import check_service
from pipeline.command_options import Excludes, Location, ReadDataOption, Requires
from pipeline.context import CommandContext
from pipeline.errors import ExitCode, ScanlakeError, SettingsError
from pipeline.findings import CheckResult, Finding, collect, format_finding, from_error, ok, skipped
from pipeline.lake.layout import LakeLayout, lock_lake_for_reading
from pipeline.lake.reader import has_catalog
from pipeline.locations import parse_location
from pipeline.maintenance.repair import check_folder, check_lake, check_permissions
from pipeline.monitoring.after_run import check_channels
from pipeline.process import run_async
from pipeline.publish.iceberg import check_iceberg_tables, has_iceberg_tables
from pipeline.publish.restore import check_backup
from pipeline.publish.stores import open_location, open_store
from pipeline.publish.target_checks import check_published, check_target, name_tables
from pipeline.publish_after_run import read_publish_record
from pipeline.reports.folder_check import check_report_folder
from pipeline.reports.pdf_reader import PdfReader
from pipeline.settings import Settings, require_base_url

GROUP: Final = "Maintain the lake"
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
            help="Instead check a backup: whether a restore finds everything.",
        ),
        Excludes("--published", "--report", "--all"),
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Instead check the folder of a finished `scanlake report`."),
        Excludes("--read-data", "--published", "--all"),
    ] = None,
    allowed_signers: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Require a signature by a signer of this file (format of ssh-keygen)."),
        Requires("--report"),
    ] = None,
) -> ExitCode:
    """Check settings, service, disk, lake and images, and write nothing; every problem has a hint.

    Makes one list call, if the service's address and token are set, and a connection to notify_url. Compares every part
    with its recorded hash, every image with its size, and opens the catalog and every kept snapshot. `scanlake repair`
    repairs the damage in a lake.

    --published compares objects, rows and images of the newest published snapshot with the lake, with --read-data also
    every object's hash. Of Iceberg tables it names missing files, and tables with another number of rows than the
    snapshot, with --read-data also other rows.

    --backup reads every object of a backup and compares its hash, images by size, with --read-data by hash. It needs
    neither lake nor service.

    --report checks checksums, PDFs, manifest and signature of a folder, and needs neither lake nor service. A folder
    that was signed by its job must have its signature.

    The exit code is that of the most severe finding; warnings have 0. While a run holds the lake, its files are not
    compared, and the exit code is 5.
    """
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
        if not context.as_json:  # at once: the later checks take long
            sys.stdout.write(format_finding(finding))
            sys.stdout.flush()
    result = collect(findings)
    return context.print_result(result, f"{result.summarize()}\n", result.most_severe)


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
