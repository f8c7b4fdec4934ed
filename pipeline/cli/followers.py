"""Commands that follow another one, each in a process of its own: maintenance, and publishing."""

from collections.abc import Mapping, Sequence
from typing import Final

from pipeline.cli.context import CommandContext
from pipeline.errors import ExitCode
from pipeline.lake.ledger.live_state import read_live_state
from pipeline.lake.ledger.queries import PublishRecord
from pipeline.output.logs import log
from pipeline.processes.children import ChildResult, run_command, write_line
from pipeline.processes.environment import environment_without_tokens
from pipeline.processes.event_loop import run_async
from pipeline.publish.outcome import PublishOutcome
from pipeline.settings.settings import Settings

FOLLOWER: Final = "FOLLOWS_SCANLAKE"
"""Variable of a process that a command has started which reports its failure; not SCANLAKE_...: those are settings."""


async def run_maintenance(
    command: Sequence[str], *, options: Sequence[str] = (), variables: Mapping[str, str] | None = None
) -> ChildResult:
    """Run another command on the same lake after this one, with its own memory; a failure is logged, never raised.

    A lake that another run holds is no failure: the next run does the work. `options` are the global ones, which stand
    before the command; `variables` as of `run_command`.
    """
    lines: list[str] = []
    variables = {**(environment_without_tokens() if variables is None else variables), FOLLOWER: "1"}
    result = await run_command([*options, *command], on_line=lines.append, variables=variables)
    if result.code == ExitCode.LOCKED:
        log.info("maintenance.deferred", command=command[0], reason="another run holds the lake")
        return result
    for line in lines:
        write_line(line)
    if result.code:
        log.warning("maintenance.failed", command=command[0], exit_code=result.code)
    return result


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
