"""Publishing to object storage after another command, in a process of its own, and its result."""

from dataclasses import dataclass
from datetime import datetime
from typing import Self

from pipeline.child_commands import run_maintenance
from pipeline.context import CommandContext
from pipeline.errors import ExitCode, ScanlakeError
from pipeline.formatting import format_instant, pluralize
from pipeline.lake.layout import LakeLayout
from pipeline.lake.models import PublishRecord
from pipeline.lake.reader import open_ledger_readonly
from pipeline.logs import to_one_line
from pipeline.process import run_async
from pipeline.settings import Settings
from schemas.timestamps import to_datetime


@dataclass(frozen=True, slots=True)
class PublishOutcome:
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


def publish_in_subprocess(
    context: CommandContext, settings: Settings, target: str | None = None, *options: str
) -> PublishOutcome:
    """Publish the lake to `target`, by default `publish_to`, with more options. A failure is logged."""
    before = read_publish_record(settings)
    url = target or settings.publish_to
    child = run_async(run_maintenance(context.child_argv("publish", *(["--to", url] if url else []), *options)))
    record = read_publish_record(settings)
    if record is None or record == before:  # it recorded nothing: settings are wrong, or another run holds the lake
        is_done = child.code in {ExitCode.OK, ExitCode.LOCKED}
        problem = None if is_done else child.message or f"Exit code {child.code}."
        return PublishOutcome(url, None, None, problem, (before["failures"] if before else 0) + (problem is not None))
    return PublishOutcome.from_record(record)


def read_publish_record(settings: Settings) -> PublishRecord | None:
    """Return the record of the last publish to object storage; None if there is none, or no readable ledger."""
    layout = LakeLayout(settings.lake.absolute())
    if not layout.ledger.is_file():
        return None
    try:
        with open_ledger_readonly(layout) as ledger:
            return ledger.properties.remote_publish
    except ScanlakeError:
        return None
