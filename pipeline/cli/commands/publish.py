"""`scanlake publish`: copy the lake to object storage, as a mirror and as Iceberg tables."""

from typing import Annotated, Final

import typer
from msgspec import Struct

from pipeline.cli.context import CommandContext
from pipeline.cli.options import Location
from pipeline.errors import ExitCode, SettingsError
from pipeline.lake.lake import Lake, Opening
from pipeline.output.formatting import format_bytes, pluralize
from pipeline.publish.iceberg import has_iceberg_tables, publish_iceberg_tables
from pipeline.publish.mirror import MirrorOptions, MirrorResult, complete_catalog, mirror_lake
from pipeline.publish.outcome import IcebergResult, format_mirror
from pipeline.publish.stores import open_store
from pipeline.settings.locations import parse_store_url
from schemas.timestamps import now_us

EXAMPLES: Final = ("publish --to s3://bucket/lake", "publish --iceberg")
IS_MONITORED: Final = True


class PublishedLake(Struct, frozen=True):
    """What was published: to a mirror, and to Iceberg tables."""

    mirror: MirrorResult | None
    iceberg: IcebergResult | None


RESULT: Final = PublishedLake


def run(
    context: CommandContext,
    *,
    to: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            click_type=Location(parse_store_url),
            help="Target: s3://, gs://, az:// or file://. Default: publish_to.",
        ),
    ] = None,
    iceberg: Annotated[
        bool,
        typer.Option("--iceberg", help="Also publish Iceberg tables; without a target, publish only these."),
    ] = False,
) -> ExitCode:
    """Copy the lake to object storage, for readers on other machines and for other engines.

    Readers attach catalog.duckdb from the object storage. A changed catalog is uploaded as a whole. The next publish
    completes an interrupted one. With publish_images, an image has the same path below the URL as in the lake.

    With --iceberg, the tables are also published as Iceberg tables for engines such as Spark, and only what is new is
    uploaded. The same happens if iceberg_location or variables PYICEBERG_CATALOG__SCANLAKE__* are set. Without
    iceberg_location, the tables are at the URL of --to or publish_to.
    """
    settings = context.settings()
    target = to or settings.publish_to
    with_iceberg = iceberg or has_iceberg_tables(settings)
    if target is None and not with_iceberg:
        raise SettingsError("No target to publish to.", hint="Add --to URL, or set publish_to.")
    store = None if target is None else open_store(target)
    result = tables = None
    with Lake(settings.lake, doing="publish", opening=Opening.EXISTING) as lake:
        complete_catalog(lake, at=now_us())
        if store is not None:
            grace_seconds = settings.retention_hours * 3600
            options = MirrorOptions(images=settings.publish_images, grace_seconds=grace_seconds)
            result = mirror_lake(lake, store, options, at=now_us())
        if with_iceberg:
            tables = publish_iceberg_tables(lake, settings, at=now_us(), location=target)
    text = (format_mirror(result) if result else "") + (_format_tables(tables) if tables else "")
    return context.print_result(PublishedLake(result, tables), text)


def _format_tables(result: IcebergResult) -> str:
    text = f"snapshot {result.snapshot}: {result.tables} Iceberg tables, tag {result.tag}: "
    parts = f"{pluralize(result.parts_added, 'part')} added, {result.parts_removed:,} removed"
    deletes = f"{pluralize(result.rows_deleted, 'row')} struck out"
    return f"{text}{result.changed} changed, {parts}, {deletes} ({format_bytes(result.bytes)} written)\n"
