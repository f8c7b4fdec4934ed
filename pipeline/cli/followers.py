"""Publishing to object storage after another command, in a process of its own."""

from pipeline.cli.context import CommandContext
from pipeline.errors import ExitCode
from pipeline.lake.ledger.queries import PublishRecord
from pipeline.lake.ledger.readonly import read_live_state
from pipeline.processes.children import run_maintenance
from pipeline.processes.event_loop import run_async
from pipeline.publish.outcome import PublishOutcome
from pipeline.settings.settings import Settings


def publish_in_subprocess(
    context: CommandContext, settings: Settings, target: str | None = None, *options: str
) -> PublishOutcome:
    """Publish the lake to `target`, by default `publish_to`, with more options. A failure is logged."""
    before = read_publish_record(settings)
    url = target or settings.publish_to
    command = ["publish", *(["--to", url] if url else []), *options]
    child = run_async(run_maintenance(command, options=context.child_options()))
    record = read_publish_record(settings)
    if record is None or record == before:  # it recorded nothing: settings are wrong, or another run holds the lake
        is_done = child.code in {ExitCode.OK, ExitCode.LOCKED}
        problem = None if is_done else child.message or f"Exit code {child.code}."
        return PublishOutcome(url, None, None, problem, (before["failures"] if before else 0) + (problem is not None))
    return PublishOutcome.from_record(record)


def read_publish_record(settings: Settings) -> PublishRecord | None:
    """Return the record of the last publish to object storage; None if there is none, or no readable ledger."""
    state = read_live_state(settings.lake, runs=0)
    return None if state is None else state.properties.remote_publish
