"""A real lake to be damaged, and ways to damage it."""

from __future__ import annotations

import os
import resource
import signal
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING

import pyarrow.parquet as pq

from pipeline.emulator import Emulator
from pipeline.lake.catalog.folder_checks import require_lake
from pipeline.lake.lake import Lake, Opening
from pipeline.lake.repair import LakeCheck, check_files, repair_files
from tests.sync.sync_harness import SEED, synced

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path


@asynccontextmanager
async def grown(lake: Path, *, files: int = 40, rounds: int = 2) -> AsyncIterator[Emulator]:
    """A lake of several commits and snapshots, in which files have changed and one was found deleted."""
    async with Emulator(files, seed=SEED) as emulator:
        await synced(emulator, lake, commit_every_files=15)
        for _ in range(rounds):
            emulator.world.update(emulator.world.pick_random(8))
            emulator.world.create(2)
            emulator.world.clock.advance(3)  # past their second: else the next sync reads them again
            await synced(emulator, lake)
        yield emulator


def checked(lake: Path, *, read_data: bool = False, mend: bool = True) -> LakeCheck:
    """Check, or with `mend` repair, as the commands do."""
    if not mend:
        return check_files(require_lake(lake), read_data=read_data)
    with Lake(lake, doing="repair", opening=Opening.REPAIR) as held:
        return repair_files(held, read_data=read_data)


def flip(path: Path, place: float = 0.5) -> bytes:
    """Flip one bit of a file; returns what it held before."""
    before = path.read_bytes()
    content = bytearray(before)
    content[int(len(content) * place)] ^= 4
    path.chmod(0o644)
    path.write_bytes(content)
    return before


def flip_column(part: Path, name: str) -> None:
    """Flip a bit at the end of a column of a raw part."""
    column = pq.read_metadata(part).row_group(0).column(pq.read_schema(part).get_field_index(name))
    flip(part, (column.data_page_offset + column.total_compressed_size - 8) / part.stat().st_size)


def parts(lake: Path) -> list[Path]:
    """Every part that holds rows."""
    return sorted(lake.glob("tables/*/*.parquet"))


@contextmanager
def limited(kind: int, limit: int) -> Iterator[None]:
    """Lower a limit of this process for a while."""
    former = resource.getrlimit(kind)
    resource.setrlimit(kind, (limit, former[1]))
    try:
        yield
    finally:
        resource.setrlimit(kind, former)


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """Let writes beyond `size` fail with EFBIG, as a full disk does with ENOSPC."""
    former = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        with limited(resource.RLIMIT_FSIZE, size):
            yield
    finally:
        signal.signal(signal.SIGXFSZ, former)


@contextmanager
def exhausted_descriptors() -> Iterator[None]:
    """Let this process have no free file descriptor."""
    handles = list[int]()
    with limited(resource.RLIMIT_NOFILE, 256):
        try:
            with suppress(OSError):
                while True:
                    handles.append(os.open(os.devnull, os.O_RDONLY))
            yield
        finally:
            for handle in handles:
                os.close(handle)
