"""A verb for all sources at once: one process each, some at a time, one line a source."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pipeline.commands.running import run_to_end
from pipeline.errors import Exit, Interrupted
from pipeline.logs import one_line
from pipeline.settings import TOKEN_VARIABLE
from pipeline.wording import many

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pipeline.call import Call

_PATIENCE: Final = 30.0  # seconds for the processes to end after they were asked to; a run needs ten at most
_LINE_BYTES: Final = 16_000_000


@dataclass(slots=True)
class Ended:
    """How the process of a source ended: its exit code (None: it was not started) and its one JSON object."""

    source: str
    code: int | None = None
    answer: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def exit_code(self) -> int:
        """One of `Exit`'s: a process that was ended from outside counts as interrupted."""
        return Exit.INTERRUPTED if self.code is None or self.code < 0 else self.code


def default_jobs() -> int:
    """As many as there are cores to run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def side_by_side(call: Call, sources: Sequence[str], arguments: Sequence[str], *, jobs: int) -> list[Ended]:
    """Run `scanlake ARGUMENTS --source NAME --json` for every source, `jobs` at a time.

    SIGTERM and Ctrl-C are passed on, and what they end is waited for.
    """
    ended = [Ended(source) for source in sources]
    with suppress(Interrupted):  # told by each source's own end
        run_to_end(_run_all(call, ended, arguments, jobs))
    return ended


async def _run_all(call: Call, ended: Sequence[Ended], arguments: Sequence[str], jobs: int) -> None:
    room = asyncio.Semaphore(jobs)

    async def one(each: Ended) -> None:
        async with room:
            await _run_one(call, each, arguments)

    async with asyncio.TaskGroup() as group:
        for each in ended:
            group.create_task(one(each))


async def _run_one(call: Call, each: Ended, arguments: Sequence[str]) -> None:
    # SCANLAKE_TOKEN is no source's own: sent to the wrong service it would be given away.
    around = {name: value for name, value in os.environ.items() if name not in {TOKEN_VARIABLE, "SCANLAKE_SOURCE"}}
    began = time.monotonic()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "pipeline", *arguments, "--source", each.source, "--json", *_flags(call, each.source)),
        env=around,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        limit=_LINE_BYTES,
        start_new_session=True,  # Ctrl-C reaches this process alone, which passes it on once
    )
    assert process.stdout is not None  # noqa: S101 - they are pipes
    assert process.stderr is not None  # noqa: S101
    relay = asyncio.create_task(_relay(process.stderr, each.source, as_json=call.log_json))
    answer = asyncio.create_task(process.stdout.read())
    try:
        await process.wait()
    except asyncio.CancelledError:
        process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(_PATIENCE):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
        raise
    finally:
        await relay
        each.code, each.seconds = process.returncode, time.monotonic() - began
        each.answer = _object((await answer).decode(errors="replace"))


def _flags(call: Call, source: str) -> list[str]:
    """The flags of every verb that were given, for a source's process."""
    flags = ["-v"] * call.verbosity
    if call.config is not None:
        flags += ["--config", str(call.config)]
    flags += ["--quiet"] if call.quiet else []
    flags += ["--log-json"] if call.log_json else []
    if call.log_file is not None:
        flags += ["--log-file", str(_own_log(call.log_file, source))]
    return flags


def _own_log(shared: Path, source: str) -> Path:
    return shared.with_name(f"{shared.stem}-{source}{shared.suffix}")


async def _relay(stream: asyncio.StreamReader, source: str, *, as_json: bool) -> None:
    """Hand on what a process logs, with the source's name; its closing line comes with its one line at the end."""
    async for line in stream:
        text = line.decode(errors="replace").rstrip("\n")
        if as_json:
            event = _object(text) or {"event": "process.said", "level": "warning", "message": text}
            text = json.dumps({"source": source, **event})
        elif text.startswith("scanlake: "):
            continue
        else:
            text = f"{source}: {text}"
        sys.stderr.write(text + "\n")
        sys.stderr.flush()


def _object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def tell(each: Ended, width: int) -> str:
    """The one line of a source."""
    name = f"{each.source:{width}}"
    if each.code is None:
        return f"{name}  not started\n"
    answer = each.answer
    if "error" in answer:
        return f"{name}  failed ({each.code}): {one_line(str(answer['error']))} {one_line(str(answer['remedy']))}\n"
    if each.code < 0 or "snapshot" not in answer:
        return f"{name}  ended with {each.code} and without a word\n"
    rejects = f", {many(answer['rejects'], 'reject')}" if answer["rejects"] else ""
    done = f"snapshot {answer['snapshot']}, {many(answer['files_expanded'], 'file')} fetched{rejects}"
    return f"{name}  {done}, horizon {answer['horizon'] or 'not reached yet'} ({each.seconds:.1f} s)\n"
