"""Run a command for all sources: one process per source, several at a time, one line per source."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import typer

from pipeline.config import lake_paths, per_source_path
from pipeline.errors import ExitCode, RunInterrupted, SettingsError, most_severe
from pipeline.formatting import pluralize
from pipeline.logs import to_one_line
from pipeline.monitoring.child_process import parse_json_object
from pipeline.process import run_async
from pipeline.settings import TOKEN_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pipeline.context import CommandContext

_TERMINATE_TIMEOUT_SECONDS: Final = 30.0  # a run needs at most 10 seconds to end after SIGTERM
_COMMAND_IN_HINT: Final = re.compile(r"`scanlake (?!init\b|report verify)[a-z]+(?=[` ])(?! --source)")
_MAX_LINE_BYTES: Final = 16_000_000
ArgumentsOfSource: TypeAlias = "list[str] | Callable[[str], list[str]]"
ALL_OPTION: Final = typer.Option("--all", help="Every source in the settings file, one line per source.")


@dataclass(slots=True)
class SourceResult:
    """Result of a source's process: its exit code (None: not started) and its JSON output."""

    source: str
    code: int | None = None
    output: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def exit_code(self) -> int:
        """An `ExitCode`; a process that was killed or not started counts as interrupted."""
        return ExitCode.INTERRUPTED if self.code is None or self.code < 0 else self.code


def default_jobs() -> int:
    """Return the number of usable cores."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def refuse_single_source_options(context: CommandContext, all_option: str = "--all") -> None:
    """Raise `SettingsError` for options that select one source, beside the option for all of them."""
    flags = context.setting_flags
    values = {
        "--source": context.source,
        "--lake": context.lake,
        "--base-url": flags.get("base_url"),
        "--token-file": flags.get("token_file"),
    }
    for option, value in values.items():
        if value is not None:
            hint = f"Leave out {all_option} or {option}."
            raise SettingsError(f"{all_option} and {option} exclude each other.", hint=hint)


def run_for_all_sources(
    context: CommandContext, sources: Sequence[str], arguments: ArgumentsOfSource, *, jobs: int
) -> list[SourceResult]:
    """Run `scanlake ARGUMENTS --source NAME --json` for every source, `jobs` at a time.

    Forwards SIGTERM and Ctrl-C to the processes and waits for them.
    """
    results = [SourceResult(source) for source in sources]
    with suppress(RunInterrupted):  # every result has its own exit code
        run_async(_run_all(context, results, arguments, jobs))
    return results


async def _run_all(
    context: CommandContext, results: Sequence[SourceResult], arguments: ArgumentsOfSource, jobs: int
) -> None:
    slots = asyncio.Semaphore(jobs)

    async def run_in_slot(result: SourceResult) -> None:
        async with slots:
            await _run_one(context, result, arguments if isinstance(arguments, list) else arguments(result.source))

    async with asyncio.TaskGroup() as group:
        for result in results:
            group.create_task(run_in_slot(result))


async def _run_one(context: CommandContext, result: SourceResult, arguments: Sequence[str]) -> None:
    # SCANLAKE_TOKEN belongs to no source: a wrong service would receive it.
    environment = {name: value for name, value in os.environ.items() if name not in {TOKEN_VARIABLE, "SCANLAKE_SOURCE"}}
    started = time.monotonic()
    source = result.source
    log_file = context.log_file and per_source_path(context.log_file, source)
    context = replace(context, source=source, log_file=log_file)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "pipeline", *arguments, "--json", *global_argv(context)),
        env=environment,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        limit=_MAX_LINE_BYTES,
        start_new_session=True,  # only this process receives Ctrl-C, and forwards it once
    )
    assert process.stdout is not None  # noqa: S101 - both are pipes
    assert process.stderr is not None  # noqa: S101
    forward = asyncio.create_task(_forward_stderr(process.stderr, source, as_json=context.log_json))
    output = asyncio.create_task(process.stdout.read())
    try:
        await process.wait()
    except asyncio.CancelledError:
        process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(_TERMINATE_TIMEOUT_SECONDS):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
        raise
    finally:
        await forward
        result.code, result.seconds = process.returncode, time.monotonic() - started
        result.output = parse_json_object((await output).decode(errors="replace"))
        if "hint" in result.output:
            result.output["hint"] = name_source(str(result.output["hint"]), source)


def name_source(hint: str, source: str) -> str:
    """Return the hint with the source in its commands, which need it beside several others."""
    return _COMMAND_IN_HINT.sub(rf"\g<0> --source {source}", hint)


def global_argv(context: CommandContext) -> list[str]:
    """Return the global options as arguments of another process, without `--json`."""
    names = ("config", "source", "lake", "log_file", "quiet", "log_json")
    return to_argv({name: getattr(context, name) for name in names}) + ["--verbose"] * context.verbosity


def to_argv(options: Mapping[str, Any]) -> list[str]:
    """Return the options as command-line arguments; None and False are left out."""
    arguments = []
    for name, value in options.items():
        if value is not None and value is not False:
            arguments += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    return arguments


async def _forward_stderr(stream: asyncio.StreamReader, source: str, *, as_json: bool) -> None:
    """Forward the log of a process with the source's name, without its last line, which the result contains."""
    async for line in stream:
        text = line.decode(errors="replace").rstrip("\n")
        if as_json:
            event = parse_json_object(text) or {"event": "source.stderr", "level": "warning", "message": text}
            text = json.dumps({"source": source, **event})
        elif text.startswith("scanlake: "):
            continue
        else:
            text = f"{source}: {text}"
        sys.stderr.write(text + "\n")
        sys.stderr.flush()


def report_all_sources(
    context: CommandContext, arguments: ArgumentsOfSource, describe: Callable[[Mapping[str, Any]], str]
) -> ExitCode:
    """Run a command for every source and print one line per source; `describe` returns that of a JSON result.

    `arguments` are those of every source, or a function of its name.

    Returns the most severe exit code. Raises `SettingsError` if the settings file has no sources.
    """
    refuse_single_source_options(context)
    lakes = lake_paths(context.config)
    results = run_for_all_sources(context, list(lakes), arguments, jobs=default_jobs())
    code = most_severe(result.exit_code for result in results)
    width = max(map(len, lakes))
    sources = {result.source: {"exit_code": result.code} | result.output for result in results}
    text = "".join(format_source_result(result, width, describe) for result in results)
    context.print_result({"exit_code": code, "sources": sources}, text)
    return code


def format_source_result(
    result: SourceResult, width: int, describe: Callable[[Mapping[str, Any]], str] | None = None
) -> str:
    """Return the line of a source: of a sync, or as `describe` formats its JSON."""
    name = f"{result.source:{width}}"
    if result.code is None:
        return f"{name}  not started\n"
    output = result.output
    if "error" in output:
        return (
            f"{name}  failed ({result.code}): {to_one_line(str(output['error']))} {to_one_line(str(output['hint']))}\n"
        )
    if describe is not None and output:
        return f"{name}  {describe(output)}\n"
    if result.code < 0 or "snapshot" not in output:
        return f"{name}  ended with {result.code} and without a result\n"
    rejects = f", {pluralize(output['rejects'], 'reject')}" if output["rejects"] else ""
    files = f"snapshot {output['snapshot']}, {pluralize(output['files_stored'], 'file')} fetched{rejects}"
    return f"{name}  {files}, watermark {output['watermark'] or 'none yet'} ({result.seconds:.1f} s)\n"
