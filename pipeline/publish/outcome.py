"""Results of publishes, as commands show them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from msgspec import Struct

from pipeline.output.formatting import format_bytes, format_instant, pluralize
from pipeline.output.redaction import to_one_line
from schemas.timestamps import to_datetime

if TYPE_CHECKING:
    from datetime import datetime

    from pipeline.lake.ledger.queries import PublishRecord
    from pipeline.publish.mirror import MirrorResult


class IcebergResult(Struct, frozen=True):
    """A publish to Iceberg tables.

    `changed` are tables with a new snapshot; others only got the tag. `bytes` are those of metadata and delete files,
    beside the parts.
    """

    snapshot: int
    tag: str
    tables: int
    changed: int
    parts_added: int
    parts_removed: int
    delete_files: int
    rows_deleted: int
    bytes: int
    deleted: int
    seconds: float


class PublishOutcome(Struct, frozen=True):
    """The last publish. `problem` is None if the target has everything; `failures` are consecutive."""

    target: str | None
    snapshot: int | None
    published_at: datetime | None
    problem: str | None
    failures: int

    @classmethod
    def from_record(cls, record: PublishRecord) -> Self:
        """Return what the ledger knows of the last publish."""
        at = record["published_at"]
        published_at = None if at is None else to_datetime(at)
        return cls(record["target"], record["snapshot"], published_at, record["problem"], record["failures"])

    def __str__(self) -> str:
        """One sentence."""
        former = "nothing was published there before"
        if self.snapshot is not None:
            former = f"snapshot {self.snapshot}, published {format_instant(self.published_at)}"
        if self.problem is None:
            return f"{self.target} has {former}."
        times = pluralize(self.failures, "time")
        return to_one_line(f"Publishing to {self.target} failed {times}; {former}: {self.problem}")


def format_mirror(result: MirrorResult) -> str:
    """Return a publish or a backup in one line."""
    text = f"snapshot {result.snapshot}: {pluralize(result.files, 'file')}, at {result.target}: "
    compared = f"; {pluralize(result.compared, 'object')} compared" if result.compared else ""
    compared += f", {result.replaced:,} damaged and replaced" if result.replaced else ""
    if not result.changed:
        return f"{text}nothing to publish{compared}\n"
    deleted = f", {pluralize(result.deleted, 'object')} deleted" if result.deleted else ""
    size = format_bytes(result.uploaded_bytes)
    images = ""
    if result.images is not None:
        new = f"{result.images_uploaded:,} new ({format_bytes(result.images_uploaded_bytes)})"
        images = f"; {pluralize(result.images, 'image')}, {new}"
    return f"{text}{pluralize(result.uploaded, 'object')} uploaded ({size}){deleted}{images}{compared}\n"
