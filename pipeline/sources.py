"""A command for all sources: the command as it was typed, one process a source, several at a time, a line a source."""

from __future__ import annotations

import asyncio
import json
import os
import re
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct
from msgspec.structs import replace

from pipeline.child_commands import ChildResult, parse_json_object, run_command, write_line
from pipeline.command_options import ALL_PARAMETERS
from pipeline.config import load_all_sources, token_variable
from pipeline.errors import ExitCode, RunInterrupted, most_severe
from pipeline.logs import to_one_line
from pipeline.process import run_async
from pipeline.tokens import environment_without_tokens

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import ModuleType

    from pipeline.context import CommandContext

_COMMAND_IN_HINT: Final = re.compile(r"`scanlake (?!init\b)[a-z]+(?=[` ])(?! --source)")
_NEED_TOKEN: Final = frozenset({"check", "sync", "verify"})


class AllSourcesResult(Struct, frozen=True):
    """The JSON objects of a command for all sources, by source."""

    sources: Mapping[str, Mapping[str, Any]]


def run_for_all_sources(context: CommandContext, command: ModuleType, jobs: int | None) -> ExitCode:
    """Run the typed command for every source and print a line for each, by `command.describe_source`.

    `command.FOLDER_PER_SOURCE`, if there is one, names an argument that is the folder above those of the sources.
    Forwards SIGTERM and Ctrl-C to the processes and waits for them. Returns the most severe exit code.
    Raises `SettingsError` if the settings file has no sources.
    """
    context.refuse_options_of_one_source()
    sources = list(load_all_sources(context.config))
    folder = getattr(command, "FOLDER_PER_SOURCE", None)
    argv = {source: _argv_of_source(context, source, folder) for source in sources}
    environments = {source: environment_of_source(source, context.typed.name) for source in sources}
    results = _run_all(argv, environments, partial(_forward_line, as_json=context.log_json), jobs or default_jobs())
    outputs = {source: _complete_output(source, results.get(source)) for source in sources}
    code = most_severe(output["exit_code"] for output in outputs.values())
    width = max(map(len, sources))
    text = "".join(
        f"{source:{width}}  {_describe(output, command.describe_source)}\n" for source, output in outputs.items()
    )
    return replace(context, result_type=AllSourcesResult).print_result(AllSourcesResult(outputs), text, code)


def default_jobs() -> int:
    """Return the number of usable cores."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def environment_of_source(source: str, command: str) -> dict[str, str]:
    """Return the environment of a process of one source: its own token, if the command needs one, and no other."""
    environment = environment_without_tokens(*([token_variable(source)] if command in _NEED_TOKEN else []))
    environment.pop("SCANLAKE_SOURCE", None)
    return environment


def name_source(hint: str, source: str) -> str:
    """Return the hint with the source in its commands, which need it beside several others."""
    return _COMMAND_IN_HINT.sub(rf"\g<0> --source {source}", hint)


def _argv_of_source(context: CommandContext, source: str, folder: str | None) -> list[str]:
    typed = context.typed
    changed = {folder: (f"{typed.arguments[folder][0].rstrip('/') or '/'}/{source}",)} if folder else {}
    own = typed.to_argv(without={parameter.name for parameter in ALL_PARAMETERS}, **changed)
    return ["--json", *replace(context, source=source).to_argv(), *own]


def _run_all(
    argv: Mapping[str, Sequence[str]],
    environments: Mapping[str, Mapping[str, str]],
    forward: Callable[[str, str], None],
    jobs: int,
) -> dict[str, ChildResult]:
    results: dict[str, ChildResult] = {}

    async def run_one(slots: asyncio.Semaphore, source: str) -> None:
        async with slots:
            await run_command(
                argv[source],
                on_line=partial(forward, source),
                on_end=partial(results.__setitem__, source),
                variables=environments[source],
            )

    async def run_every() -> None:
        slots = asyncio.Semaphore(jobs)
        async with asyncio.TaskGroup() as group:
            for source in argv:
                group.create_task(run_one(slots, source))

    with suppress(RunInterrupted):  # every result has its own exit code
        run_async(run_every())
    return results


def _complete_output(source: str, result: ChildResult | None) -> dict[str, Any]:
    """Return a source's JSON object; a process that was not started, or was killed, has only an exit code."""
    code = ExitCode.INTERRUPTED if result is None or result.code < 0 else result.code
    output = {"ok": code == ExitCode.OK, "exit_code": int(code)} | dict(result.output if result else {})
    if "hint" in output:
        output["hint"] = name_source(str(output["hint"]), source)
    return output


def _describe(output: Mapping[str, Any], describe: Callable[[Mapping[str, Any]], str]) -> str:
    code = output["exit_code"]
    if "error" in output:
        return f"failed ({code}): {to_one_line(str(output['error']))} {to_one_line(str(output['hint']))}"
    return describe(output) if len(output) > 2 else f"ended with {code} and without a result"


def _forward_line(source: str, line: str, *, as_json: bool) -> None:
    """Write a line of a source's log with its name; the last line of a failure is in its result already."""
    if as_json:
        event = parse_json_object(line) or {"event": "source.stderr", "level": "warning", "message": line}
        write_line(json.dumps({"source": source, **event}))
    elif not line.startswith("scanlake: "):
        write_line(f"{source}: {line}")
