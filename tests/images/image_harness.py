"""Lakes with pictures from the emulator's image host, and what they must hold."""

from __future__ import annotations

import asyncio
import hashlib
import sqlite3
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import duckdb

from pipeline.emulator import Emulator, ImageOptions
from pipeline.errors import ExitCode
from pipeline.lake.lake import Lake
from tests.constants import set_constants
from tests.lake_copies import copy_lake
from tests.made_once import make_once
from tests.processes import Answer, ran
from tests.sync.sync_harness import SEED, synced

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from pathlib import Path

    import pytest

    from pipeline.emulator.image_host import ImageHost

Row = dict[str, Any]
Key = tuple[int, int, str]
_COLUMNS = ("file_id", "upload_id", "kind", "state", "sha256", "bytes", "mime", "fetched_at", "path")


@dataclass(frozen=True)
class Scene:
    """An emulator with an image host, and a lake that was synced from it."""

    emulator: Emulator
    lake: Path

    @property
    def host(self) -> ImageHost:
        """The image host."""
        assert self.emulator.images is not None
        return self.emulator.images

    async def fetch(self, *arguments: str, **environment: str) -> Answer:
        """Run `scanlake images --json`."""
        return await self.run("images", "--json", *arguments, **environment)

    async def run(self, *arguments: str, **environment: str) -> Answer:
        """Run a command on the lake."""
        return Answer(*await ran(self.emulator, self.lake, *arguments, **environment))

    def truth(self, *kinds: str) -> dict[Key, Row]:
        """The pictures that the host has, by upload and kind."""
        rows = {(row["file_id"], row["upload_id"], row["kind"]): row for row in self.host.truth()}
        return {key: row for key, row in rows.items() if key[2] in (kinds or ("image",))}

    def calls(self) -> tuple[int, int]:
        """Requests to the image host, and for files."""
        return self.host.counts.total(), self.emulator.counts["detail"]


@asynccontextmanager
async def scene(tmp_path: Path, files: int = 40, **options: Any) -> AsyncIterator[Scene]:
    """Start the emulator and sync a lake from it."""
    async with Emulator(files=files, seed=SEED, images=ImageOptions(**options)) as emulator:
        lake = tmp_path / "lake"
        await synced(emulator, lake)
        assert emulator.images is not None
        yield Scene(emulator, lake)
        assert not emulator.images.leaks, "a credential arrived at the image host"


@dataclass(frozen=True)
class PicturedLakes:
    """A lake before its images were fetched, with those of files with an even id, and with all and their thumbnails.

    They are made once for a run, and only read. `summary` is what the command printed that made the last one.
    """

    bare: Path
    half: Path
    whole: Path
    truth: dict[Key, Row]
    summary: dict[str, Any]
    service: dict[str, str]
    """Environment of a command that needs an address and a token, but no answer."""

    @classmethod
    def make(cls, folder: Path) -> PicturedLakes:
        """Make the lakes."""
        return asyncio.run(cls._make(folder))

    @classmethod
    async def _make(cls, folder: Path) -> PicturedLakes:
        async with scene(folder, 12, duplicate_ratio=0.3, duplicate_pictures=3) as here:
            with Lake(here.lake, doing="test") as held:
                held.ledger.get_lake_id()  # the first call makes it
            bare = copy_lake(here.lake, folder / "bare")
            assert (await here.fetch("--where", "files.file_id % 2 = 0")).code == ExitCode.OK
            half = copy_lake(here.lake, folder / "half")
            answer = await here.fetch("--set", "images_thumbnails=true")
            assert (answer.code, errors_of(answer)) == (ExitCode.OK, [])
            service = {"SCANLAKE_BASE_URL": here.emulator.base_url, "SCANLAKE_TOKEN": here.emulator.token}
            return cls(bare, half, here.lake, here.truth("image", "thumbnail"), answer.json, service)


def make_pictured_lakes(factory: pytest.TempPathFactory) -> PicturedLakes:
    """Return lakes with images, for the fixture of a session."""
    with ThreadPoolExecutor(1) as pool:  # a fixture of a session has no loop, and none of a test may be replaced
        return pool.submit(make_once, factory, "pictured", PicturedLakes.make).result()


def limited(concurrency: int) -> dict[str, str]:
    """Return the environment of a run with so many requests at a time."""
    return set_constants({"pipeline.client.client._MAX_IMAGE_CONCURRENCY": concurrency})


def errors_of(answer: Answer) -> list[str]:
    """The lines on stderr that are errors, without those of the log."""
    return [line for line in answer.lines if line.startswith("scanlake: ")]


def rows_of(lake: Path) -> dict[Key, Row]:
    """The rows of the ledger, by upload and kind."""
    with closing(sqlite3.connect(lake / "ledger.sqlite")) as db:
        db.row_factory = sqlite3.Row
        return {(row["file_id"], row["upload_id"], row["kind"]): dict(row) for row in db.execute("SELECT * FROM image")}


def published_rows(lake: Path) -> list[Any]:
    """The rows of the table of images, as sorted values."""
    names = ", ".join(f"epoch_us({name})" if name.endswith("_at") else name for name in _COLUMNS)
    with closing(duckdb.connect(str(lake / "catalog.duckdb"), read_only=True)) as db:
        return db.execute(f"SELECT {names} FROM images ORDER BY ALL").fetchall()


def recorded_rows(lake: Path) -> list[Any]:
    """The same values of the rows of the ledger."""
    return sorted(tuple(row[name] for name in _COLUMNS) for row in rows_of(lake).values())


def states_of(lake: Path) -> Counter[str]:
    """How many rows there are in each state."""
    return Counter(row["state"] for row in rows_of(lake).values())


def files_in(lake: Path) -> dict[str, bytes]:
    """Every file below images/, by its path below the lake."""
    paths = (path for path in (lake / "images").rglob("*") if path.is_file())
    return {path.relative_to(lake).as_posix(): path.read_bytes() for path in paths}


def disagreements(lake: Path, truth: Mapping[Key, Row]) -> list[str]:
    """Where the stored rows, the files and the truth differ, byte for byte."""
    rows, files = rows_of(lake), files_in(lake)
    found = [f"{key} is not in the truth" for key in rows.keys() - truth.keys()]
    named = {row["path"] for row in rows.values() if row["state"] == "stored"}
    found += [f"{name} is in no row" for name in files.keys() - named]
    for key, row in rows.items():
        if row["state"] != "stored" or key not in truth:
            continue
        content, expected = files.get(row["path"], b""), truth[key]
        sha256 = hashlib.sha256(content).hexdigest()
        folder, name = row["path"].split("/")[1:]
        checks = {
            "file": sha256 == row["sha256"] == expected["sha256"],
            "name": folder + name.partition(".")[0] == sha256,
            "size": len(content) == row["bytes"] == expected["bytes"],
            "type": row["mime"] == expected["mime"],
        }
        found += [f"{key}: {check}" for check, is_equal in checks.items() if not is_equal]
    return found


def wanted(truth: Mapping[Key, Row]) -> set[Key]:
    """The pictures that a download can bring."""
    return {key for key, row in truth.items() if row["outcome"] in {"served", "slow"}}


def stored(lake: Path) -> set[Key]:
    """The pictures that the lake has."""
    return {key for key, row in rows_of(lake).items() if row["state"] == "stored"}


def require_whole(lake: Path, truth: Mapping[Key, Row]) -> None:
    """Require every picture of the truth in the lake, and nothing else, byte for byte."""
    assert disagreements(lake, truth) == []
    assert stored(lake) == set(truth)
