"""Writing a batch: flatten it and put its parts on disk; and the process that does nothing else (see `writer`).

It knows neither ledger nor service: versions go in, parts and what was noticed come out.
"""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import signal
import sys
import traceback
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from pipeline.flatten.flatten import flatten
from pipeline.lake import parts
from pipeline.lake.files import Layout
from schemas.versions import digest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pipeline.lake.records import Part
    from schemas.versions import Reject, Version

BUFFER: Final = 2 * 1024**2
"""Bytes that go through a pipe at once: each time the crawl's interpreter is left, and has to be waited for."""
_AT_ONCE: Final = 4  # parts


@dataclass(frozen=True, slots=True)
class Order:
    """A batch to be written: versions sorted by file, the commit's number, definitions the lake holds."""

    versions: tuple[Version, ...]
    run_id: str
    seq: int
    definitions: frozenset[str]


@dataclass(frozen=True, slots=True)
class Written:
    """What came of it: parts on disk, digests of the list items in the order of the versions, and findings."""

    parts: tuple[Part, ...]
    digests: tuple[bytes, ...]
    rejects: tuple[Reject, ...]
    drift: Mapping[tuple[str, str, str], int]
    names: Mapping[tuple[str, str], int]
    definitions: frozenset[str]


@dataclass(frozen=True, slots=True)
class Failed:
    """An error, and where it came up, which a pickled error does not tell."""

    error: Exception
    frames: tuple[tuple[str, int, str], ...]  # file, line, function; outermost first


def write(layout: Layout, order: Order) -> Written:
    """Flatten and write one batch; raises `StorageError`. A version that cannot be read is a reject.

    Parts are written side by side: each waits for the disk twice, and none for another.
    """
    flat = flatten(order.versions, run_id=order.run_id, seq=order.seq, known_definitions=order.definitions)
    unreadable = {reject.file_id for reject in flat.rejects}
    versions = [version for version in order.versions if version.file_id not in unreadable]
    names = parts.names_in(flat.tables)
    write_part = partial(parts.write_part, layout, run_id=order.run_id, seq=order.seq)
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="disk") as disk:
        begun = [
            # Each table is let go of once it is written; the documents, which come last, are as large as all of them.
            disk.submit(write_part, name, flat.tables.pop(name))
            for name in tuple(flat.tables)
        ]
        if versions:
            begun.append(disk.submit(parts.write_documents, layout, versions, run_id=order.run_id, seq=order.seq))
        digests = tuple(digest(version.list_item or b"") for version in versions)
    return Written(
        parts=tuple(each.result() for each in begun),
        digests=digests,
        rejects=flat.rejects,
        drift={(drift.table, drift.key, drift.kind): count for drift, count in flat.drift.items()},
        names=names,
        definitions=flat.definitions,
    )


def send(pipe: IO[bytes] | None, value: object) -> None:
    """Send a value of ours through a pipe, piece by piece: a batch is never in memory once more."""
    if pipe is None:
        raise EOFError
    pickle.dump(value, pipe, protocol=pickle.HIGHEST_PROTOCOL)
    pipe.flush()


def receive(pipe: IO[bytes] | None) -> Any:
    """The next value from a pipe. Raises `EOFError` when whoever sends is gone, even in the middle of one."""
    if pipe is None:
        raise EOFError
    try:
        return pickle.load(pipe)  # noqa: S301 - from our own process, through a pipe that nobody else holds
    except pickle.UnpicklingError as error:  # whoever sent it was killed while sending
        raise EOFError from error


def serve(root: str) -> None:
    """Write what comes in until whoever sends it is gone, however it went."""
    for number in (signal.SIGINT, signal.SIGTERM):  # Ctrl-C and systemd reach the whole group; the sender decides
        signal.signal(number, signal.SIG_IGN)
    answers = sys.stdout.buffer
    sys.stdout = sys.stderr  # nothing else may get between the answers
    layout = Layout(Path(root))
    gc.disable()  # documents hold no cycles, and looking for some took a tenth of the time
    with os.fdopen(0, "rb", BUFFER, closefd=False) as orders, contextlib.suppress(EOFError, BrokenPipeError):
        while True:
            order = receive(orders)
            try:
                answer: object = write(layout, order)
            except Exception as error:  # noqa: BLE001 - raised again where it was asked for
                frames = traceback.extract_tb(error.__traceback__)
                answer = Failed(error, tuple((each.filename, each.lineno or 0, each.name) for each in frames))
            send(answers, answer)
            del order, answer
            gc.collect(0)
