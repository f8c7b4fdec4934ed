"""`scanlake publish`: publish the lake again, after a move or for other readers, or copy it to object storage."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from pipeline.context import CommandContext
from pipeline.errors import ExitCode, SettingsError
from pipeline.formatting import format_bytes, pluralize
from pipeline.maintenance.writable_lake import open_writable_lake
from pipeline.publish.iceberg import has_iceberg_tables, list_iceberg_files, publish_iceberg_tables
from pipeline.publish.mirror import MirrorOptions, MirrorResult, mirror_lake
from pipeline.publish.object_store import open_store
from schemas.timestamps import now_us

if TYPE_CHECKING:
    from pipeline.publish.iceberg_publish import IcebergResult

GROUP: Final = "Maintain the lake"


def run(
    context: CommandContext,
    *,
    to: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Copy the lake to object storage: s3://, gs://, az:// or file://."),
    ] = None,
    iceberg: Annotated[bool, typer.Option("--iceberg", help="Publish Iceberg tables over the same parts.")] = False,
    with_images: Annotated[
        bool, typer.Option("--with-images", help="With --to: also copy the images that the lake has.")
    ] = False,
    snapshot: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Snapshot to publish. Default: the newest.")
    ] = None,
) -> ExitCode:
    """Publish the lake again for local readers, or copy it to object storage.

    The catalog contains absolute paths of the parts. Publish after moving the lake, or if readers use another path
    (a mount on their machines). Kept snapshots are updated too. The lake stores --reader-root; use the lake's own
    folder to remove it. Every run detects a move automatically.

    With --to, and if publish_to is set, readers on other machines attach catalog.duckdb or snapshots/N.duckdb from
    the object storage. Only what is missing there is uploaded. An interrupted publish is completed by the next one.
    With --with-images, or publish_images, the path of an image in the lake is also its path below the URL.

    With --iceberg, if iceberg_location is set, or if pyiceberg has a catalog named scanlake, engines such as Spark
    read the same parts as Iceberg tables. Without iceberg_location they are at the URL of --to or publish_to.

    Exit codes: 0 done, 8 the object storage failed or refused, 5 another publisher was faster, 2 wrong settings,
    9 an image is damaged (the rest is published).
    """
    settings = context.settings()
    target = to or settings.publish_to
    with_iceberg = iceberg or has_iceberg_tables(settings)
    if snapshot is not None and target is None and not with_iceberg:
        raise SettingsError("--snapshot requires --to or --iceberg.", hint="Add --to URL, or set publish_to.")
    if with_images and (target is None or (iceberg and to is None)):
        raise SettingsError("--with-images requires --to.", hint="Add --to URL.")
    is_local = to is None and snapshot is None and not iceberg
    store = None if target is None or (iceberg and to is None) else open_store(target)
    result = tables = None
    with open_writable_lake(settings, "publish") as lake:
        if is_local:
            if context.given_settings.get("reader_root") is not None and settings.reader_root is not None:
                lake.set_reader_root(settings.reader_root)
            republished = lake.republish(at=now_us())
        if store is not None:
            protected = list_iceberg_files(settings, store) if with_iceberg else ()
            mirror_options = MirrorOptions.from_settings(settings, images=with_images)
            result = mirror_lake(lake, store, mirror_options, at=now_us(), number=snapshot, protected=protected)
        if with_iceberg:
            tables = publish_iceberg_tables(lake, settings, at=now_us(), location=target, number=snapshot)
        reader_root = lake.reader_root
    output: dict[str, Any] = {}
    text = ""
    if is_local:
        note = "" if reader_root.is_dir() else " (not reachable from this machine)"
        output |= {"snapshot": republished.snapshot, "files": republished.files, "reader_root": str(reader_root)}
        text = (
            f"snapshot {republished.snapshot}: {pluralize(republished.files, 'file')}, read from {reader_root}{note}\n"
        )
    if result is not None:
        output |= asdict(result)
        text += _format_mirror(result)
    if tables is not None:
        output["iceberg"] = asdict(tables)
        text += _format_tables(tables)
    context.print_result(output, text)
    return ExitCode.OK


def _format_tables(result: "IcebergResult") -> str:
    text = f"snapshot {result.snapshot}: {result.tables} Iceberg tables, tag {result.tag}: "
    parts = f"{pluralize(result.parts_added, 'part')} added, {result.parts_removed:,} removed"
    deletes = f"{pluralize(result.rows_deleted, 'row')} struck out"
    return f"{text}{result.changed} changed, {parts}, {deletes} ({format_bytes(result.bytes)} written)\n"


def _format_mirror(result: MirrorResult) -> str:
    text = f"snapshot {result.snapshot}: {pluralize(result.files, 'file')}, at {result.target}: "
    if not result.changed:
        return f"{text}nothing to publish\n"
    deleted = f", {pluralize(result.deleted, 'object')} deleted" if result.deleted else ""
    size = format_bytes(result.uploaded_bytes)
    images = ""
    if result.images is not None:
        new = f"{result.images_uploaded:,} new ({format_bytes(result.images_uploaded_bytes)})"
        images = f"; {pluralize(result.images, 'image')}, {new}"
    return f"{text}{pluralize(result.uploaded, 'part')} and two catalogs uploaded ({size}){deleted}{images}\n"
