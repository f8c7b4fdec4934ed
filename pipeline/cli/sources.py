"""A command for all sources: the command line as it was typed, one process a source, several at a time."""

from __future__ import annotations

import asyncio
import json
import os
import re
import textwrap
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct
from msgspec.structs import replace

from pipeline.errors import ExitCode, RunInterrupted, most_severe
from pipeline.processes.children import ChildResult, parse_json_object, run_command, write_line
from pipeline.processes.environment import environment_without_tokens
from pipeline.processes.event_loop import run_async
from pipeline.settings.layers import load_all_sources, token_variable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pipeline.cli.context import CommandContext

_COMMAND_IN_HINT: Final = re.compile(r"`scanlake (?!init\b)[a-z]+(?=[` ])(?! --source)")
_NEED_TOKEN: Final = frozenset({"check", "sync", "verify"})


class AllSourcesResult(Struct, frozen=True):
    """The JSON objects of a command for all sources, by source."""

    sources: Mapping[str, Mapping[str, Any]]


def run_for_all_sources(context: CommandContext, command: str, argv: Sequence[str]) -> ExitCode:
    """Run the line `argv` of a command once for every source, and print what each process has printed.

    Forwards SIGTERM and Ctrl-C to the processes and waits for them. Returns the most severe exit code.
    Raises `SettingsError` if the settings file has no sources.
    """
    context.refuse_options_of_one_source()
    words = [word for word in argv if word != "--all"]
    stopped = ChildResult(ExitCode.INTERRUPTED, b"", "")  # its log is on stderr, if it was started
    results = dict.fromkeys(load_all_sources(context.config), stopped)
    with suppress(RunInterrupted):  # every result has its own exit code
        run_async(_run_all(command, words, results, as_json=context.log_json))
    codes = {source: ExitCode.INTERRUPTED if end.code < 0 else end.code for source, end in results.items()}
    texts = {source: _name_source(end.text.decode(errors="replace"), source) for source, end in results.items()}
    outputs = {
        source: {"ok": not code, "exit_code": int(code), **parse_json_object(texts[source])}
        for source, code in codes.items()
    }
    text = "".join(
        f"{source}: exit code {code}\n{textwrap.indent(texts[source], '  ')}" for source, code in codes.items()
    )
    everything = AllSourcesResult(outputs)
    return replace(context, result_type=AllSourcesResult).print_result(everything, text, most_severe(codes.values()))


def count_usable_cores() -> int:
    """Return the number of cores that this process may use: a container or taskset can leave it fewer."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def environment_of_source(source: str, command: str) -> dict[str, str]:
    """Return the environment of a process of one source: its own token, if the command needs one, and no other."""
    return environment_without_tokens(*([token_variable(source)] if command in _NEED_TOKEN else []))


async def _run_all(command: str, words: Sequence[str], results: dict[str, ChildResult], *, as_json: bool) -> None:
    """Put the result of each source into `results`."""
    slots = asyncio.Semaphore(count_usable_cores())

    async def run_one(source: str) -> None:
        async with slots:
            results[source] = await run_command(
                [*words, "--source", source],
                on_line=partial(_forward_line, source, as_json=as_json),
                variables=environment_of_source(source, command),
            )

    async with asyncio.TaskGroup() as group:
        for source in results:
            group.create_task(run_one(source))


def _name_source(text: str, source: str) -> str:
    """Return the text with the source in the commands of its hints, which need it beside several others."""
    return _COMMAND_IN_HINT.sub(rf"\g<0> --source {source}", text)


def _forward_line(source: str, line: str, *, as_json: bool) -> None:
    """Write a line of a source's log with its name."""
    line = _name_source(line, source)
    if as_json:
        event = parse_json_object(line) or {"event": "source.stderr", "level": "warning", "message": line}
        write_line(json.dumps({"source": source, **event}))
    else:
        write_line(f"{source}: {line}")
