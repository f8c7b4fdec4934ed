"""Random lives of a lake and its published copies, and what of a purged file is left in any of them."""

from __future__ import annotations

import asyncio
import gzip
import json
import sqlite3
import tempfile
import zlib
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final
from unittest import mock

import duckdb
import pyarrow.parquet as pq

from pipeline.cli import followers
from pipeline.emulator import Emulator, ImageOptions
from pipeline.errors import ExitCode
from pipeline.lake.lake import Lake
from pipeline.lake.storage.layout import LakeLayout
from pipeline.processes.children import ChildResult
from pipeline.publish.iceberg_catalogs import connect_catalog
from pipeline.publish.stores import open_store
from pipeline.publish.target_checks import check_published
from pipeline.settings.settings import Settings
from tests.findings import lines_of
from tests.images.image_harness import Scene
from tests.lake.operations import called, compact_all
from tests.lake_copies import copy_lake
from tests.publish.iceberg_reading import reader
from tests.publish.lake_history import list_differences
from tests.publish.target_reading import attached
from tests.sync.sync_harness import SEED, synced

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator

    from pipeline.publish.object_store import ObjectStore
    from tests.images.image_harness import PicturedLakes
    from tests.processes import Answer

PLACES: Final[dict[str, tuple[str | None, str | None]]] = {
    "a mirror": ("target", None),
    "tables": (None, "target"),
    "both at one place": ("target", "target"),
    "both side by side": ("target", "tables"),
    "tables below the mirror": ("target", "target/iceberg"),
    "tables in a folder of the mirror": ("target", "target/tables"),
    "tables in the folder of its probes": ("target", "target/probe"),
    "a mirror below the tables": ("target/mirror", "target"),
    "a mirror among the files of a table": ("target/tables/files/data", "target"),
}
"""Where the mirror and the Iceberg tables are, below the place of a life."""
_STEPS: Final = ("touch", "touch", "publish", "publish", "compact", "back_up", "fetch_images", "purge", "lose")
_WORD_CHARS: Final = 10
_BOUND_CHARS: Final = 16  # that many of a text are in the bounds of an Iceberg manifest


@dataclass
class Life:
    """One lake, its service, and the places to which it is published and backed up, all below `url`.

    Without `settings` only the options of each publish name the places. `catalog` is a catalog of the tables in SQLite.
    `steps` is what was done.
    """

    scene: Scene
    runner: asyncio.Runner
    url: str
    rng: random.Random
    mirror: str | None
    tables: str | None
    catalog: dict[str, str] | None
    settings: dict[str, str]
    has_images: bool
    backup: str
    steps: list[str] = field(default_factory=list)
    _words: dict[int, set[str]] = field(default_factory=dict)
    _purged: list[int] = field(default_factory=list)
    _written: set[str] = field(default_factory=set)

    def live(self) -> None:
        """Do some steps, the first of them a publish, the last a purge."""
        self._learn()
        chosen = self.rng.choices(_STEPS, k=self.rng.randrange(4))
        for name in ("publish", *(name for name in chosen if name != "fetch_images" or self.has_images), "purge"):
            self.steps.append(name)
            step: Callable[[], None] = getattr(self, name)
            step()

    def touch(self) -> None:
        """Files change and come; a sync brings it."""
        world = self.scene.emulator.world
        world.update(world.pick_random(self.rng.randrange(1, 5)))
        world.create(self.rng.randrange(2))
        self._learn()
        self.runner.run(synced(self.scene.emulator, self.scene.lake, keep_snapshots=self.rng.choice((1, 3))))

    def compact(self) -> None:
        """Everything is compacted."""
        with Lake(self.scene.lake, doing="compaction") as held:
            compact_all(held, Settings(lake=self.scene.lake, keep_snapshots=3))

    def fetch_images(self) -> None:
        """The images of new files come."""
        answer = self.runner.run(self.scene.fetch())
        assert answer.code in {0, 4}, (answer, self)

    def publish(self) -> None:
        """The lake is published as a mirror, as tables, or as both."""
        kinds = [kind for kind, place in (("mirror", self.mirror), ("tables", self.tables)) if place is not None]
        if not self.settings and len(kinds) == 2 and self.rng.random() < 0.6:
            # Among the files of a table a first mirror is refused: they are not its own.
            must_mirror = "mirror" not in self._written and str(self.mirror).startswith(f"{self.tables}/tables/")
            kinds.remove("tables" if must_mirror else self.rng.choice(kinds))
        options = []
        if "mirror" in kinds:
            options += ["--set", "publish_images=true"] * (self.rng.random() < 0.4)
            options += [] if self.settings else ["--to", str(self.mirror)]
        if "tables" in kinds and not self.settings:
            options += ["--iceberg", "--set", f"iceberg_location={self.tables}"]
        self.steps[-1] += f" {' '.join(kinds)}"
        self._run("publish", *options)
        self._written.update(kinds)

    def back_up(self) -> None:
        """The lake is backed up to a URL."""
        self._run("backup", self.backup, *self.rng.choice(((), ("--with-images",))))
        self._written.add("backup")

    def purge(self) -> None:
        """Some files are deleted in the service, and purged; the next backup is up to the operator."""
        answer = self._purge_some()
        assert answer.code == 0, (answer, self)
        if "backup" in self._written:
            self.back_up()
        problems = list(self._find_problems(answer.out))
        assert not problems, (problems, self)

    def lose(self) -> None:
        """All places are away during a publish and a purge, which write nothing there, and say so; then they return."""
        if self.url.startswith("s3:"):
            return
        place = Path(self.url.removeprefix("file://"))
        away = place.rename(place.with_name("away"))
        place.mkdir()
        if self.settings:
            answer = called(self.scene.lake, "publish", **self.settings)
            assert answer.code == ExitCode.PUBLISH, (answer, self)
        answer = self._purge_some()
        kinds = len(self._written - {"backup"})
        assert (answer.code, answer.out.count(": NOT ERASED: ")) == (ExitCode.PUBLISH, kinds), (answer, self)
        place.rmdir()
        away.rename(place)

    def _purge_some(self) -> Answer:
        world = self.scene.emulator.world
        ids = [key for key in world.pick_random(self.rng.randrange(1, 3)) if key in self._words]
        world.delete(ids)
        self._purged += ids
        self.steps[-1] += f" {ids}"
        return purged(self.scene.lake, *ids, **self.settings)

    # What must hold

    def _find_problems(self, said: str) -> Iterator[str]:
        """Look into every place after a purge: it is clean, whole, and said to be erased."""
        with tempfile.TemporaryDirectory() as folder:
            copy = _copy(open_store(self.url), Path(folder, "all"))
            yield from find_words(copy, set[str]().union(*(self._words[key] for key in self._purged)))
            yield from self._check_copies(Path(folder, "catalog"), said)

    def _check_copies(self, folder: Path, said: str) -> Iterator[str]:
        """Check a mirror and tables."""
        if "mirror" in self._written:
            store = open_store(str(self.mirror))
            if f"{store.base_url}: erased" not in said:
                yield f"the mirror is not said to be erased: {said}"
            yield from lines_of(check_published(LakeLayout(self.scene.lake), store, read_data=False))
            with attached(store, folder) as db:
                for (sql,) in db.execute(_COUNT_ROWS).fetchall():
                    db.execute(sql)
        if "tables" in self._written:
            if f"Iceberg tables at {self.tables}: erased" not in said:
                yield f"the tables are not said to be erased: {said}"
            with Lake(self.scene.lake, doing="look") as held:
                last = held.ledger.last_snapshot()
            assert last is not None
            catalog = connect_catalog(str(self.tables), properties=self.catalog)
            yield from list_differences(self.scene.lake, last.snapshot, reader(catalog))

    def _learn(self) -> None:
        """Remember the texts that only one file has, as the service has them now."""
        truths = {true["key"]: true for true in self.scene.emulator.truth()}
        texts = {key: json.dumps([true["item"], true["detail"]]) for key, true in truths.items()}
        for key, true in truths.items():
            detail = true["detail"]
            said = [detail["scan_code"], *(upload["image_name"] for upload in detail["uploads"])]
            said += [run["client_key"] for run in detail["workflow_runs"]]
            words = {str(text)[:_BOUND_CHARS] for text in said if len(str(text)) > _WORD_CHARS}
            others = "".join(text for other, text in texts.items() if other != key)
            self._words.setdefault(key, set()).update(word for word in words if word not in others)

    def _run(self, *arguments: str) -> str:
        answer = called(self.scene.lake, *arguments, **self.settings)
        assert answer.code == 0, (answer, self)
        return answer.out


_COUNT_ROWS: Final = (
    "SELECT format('SELECT count(*) FROM remote.{}.{}', schema_name, name) FROM"
    " (SELECT schema_name, table_name AS name, database_name FROM duckdb_tables()"
    " UNION ALL SELECT schema_name, view_name, database_name FROM duckdb_views() WHERE NOT internal)"
    " WHERE database_name = 'remote'"
)


@contextmanager
def begun(pictured: PicturedLakes, folder: Path, url: str, rng: random.Random) -> Iterator[Life]:
    """A life with a lake that was synced once, with the images of its files or without."""
    has_images, is_stated = rng.random() < 0.3, rng.random() < 0.6
    lake, backup = folder / "lake", f"{url}/{rng.choice(('backup', 'target/backup', 'target'))}"
    mirror, tables = (place and f"{url}/{place}" for place in PLACES[rng.choice(list(PLACES))])
    catalog, settings = None, dict[str, str]()
    if is_stated:
        named = {"SCANLAKE_PUBLISH_TO": mirror, "SCANLAKE_ICEBERG_LOCATION": tables}
        settings = {name: value for name, value in named.items() if value is not None}
        if tables is not None and rng.random() < 0.2:
            catalog = {"uri": f"sqlite:///{lake}-catalog.sqlite"}
            settings["PYICEBERG_CATALOG__SCANLAKE__URI"] = catalog["uri"]
    # The first files are those of the lakes that were made once.
    emulator = Emulator(12, seed=SEED, images=ImageOptions(duplicate_ratio=0.3, duplicate_pictures=3))
    with asyncio.Runner() as runner, mock.patch("pipeline.lake.catalog.duckdb.sql_comment", return_value=""):
        runner.run(emulator.__aenter__())
        copy_lake(pictured.whole if has_images else pictured.bare, lake, emulator.base_url)
        yield Life(Scene(emulator, lake), runner, url, rng, mirror, tables, catalog, settings, has_images, backup)
        runner.run(emulator.__aexit__(None, None, None))


def purged(lake: Path, *file_ids: int, **environment: str) -> Answer:
    """Run `scanlake purge` with the publish that it starts in this process, which is seconds faster."""

    async def run_child(command: list[str], options: list[str]) -> ChildResult:
        answer = await asyncio.to_thread(called, lake, *options, *command, **environment)
        return ChildResult(answer.code, answer.out.encode(), (answer.lines or [""])[-1])

    with mock.patch.object(followers, "run_maintenance", run_child):
        return called(lake, "purge", *map(str, file_ids), "--yes", **environment)


def _copy(store: ObjectStore, folder: Path) -> Path:
    """Copy every object of a store to a folder."""
    for item in store.list():
        (folder / item.path).parent.mkdir(parents=True, exist_ok=True)
        store.download(item.path, folder / item.path)
    return folder


def find_words(folder: Path, words: set[str]) -> Iterator[str]:
    """Yield where words are in the files below a folder: in their bytes, or in what they hold, decompressed."""
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        text = "\n".join(read_texts(file))
        yield from (f"{file.relative_to(folder)} has {word}" for word in sorted(words) if word in text)


def read_texts(file: Path) -> Iterator[str]:
    """Yield all that a file holds: its bytes, and what a reader of its format sees."""
    content = file.read_bytes()
    yield content.decode("latin-1")
    if content.startswith(b"PAR1"):
        yield str(pq.read_table(file).to_pylist())
    elif content[8:12] == b"DUCK":
        with duckdb.connect(str(file), read_only=True) as db:
            tables = db.execute("SELECT schema_name, table_name FROM duckdb_tables()").fetchall()
            for schema, name in tables:
                yield str(db.execute(f'FROM "{schema}"."{name}"').fetchall())
    elif content.startswith(b"SQLite format 3"):
        with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as db:
            yield from db.iterdump()
    elif content.startswith(b"\x1f\x8b"):
        yield gzip.decompress(content).decode("latin-1")
    elif content.startswith(b"Obj\x01"):
        mark = content[-16:]  # Avro: every block ends with it
        for block in content.removesuffix(mark).split(mark)[1:]:
            yield zlib.decompress(_skip_numbers(block), -15).decode("latin-1")


def _skip_numbers(block: bytes) -> bytes:
    """Return a block of Avro without the two numbers before its data."""
    for _ in range(2):
        block = block[next(place for place, byte in enumerate(block) if byte < 0x80) + 1 :]
    return block
