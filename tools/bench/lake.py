"""The lake at scale: a made-up lake with six uploads a file, grown through the lake's own commits.

Times are the best of several tries, since other work on the machine only ever adds to them; ratios to native tables
are of CPU time.
"""

from __future__ import annotations

import random
import statistics
import time
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final

import duckdb

from pipeline.lake.compaction import run_compaction
from pipeline.lake.lake import Lake
from pipeline.lake.ledger.queries import Commit
from pipeline.settings.settings import Settings
from schemas.file_versions import FileVersion
from schemas.tables import BY_NAME
from tests.lake.lake_builder import write_documents
from tools.bench.serving import scanlake

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

UPLOADS: Final = 6
FIELDS: Final = 3
CHANGED: Final = 1_000
LAYERS: Final = 190  # commits of the first sync, which a compaction follows
DELTAS: Final = 10
AT: Final = 1_795_000_000_000_000

_ROWS: Final = {
    "files": (
        "wanted",
        {
            "service_id": "file_id",
            "instance_file_id": "file_id",
            "scan_code": "'SC' || lpad(file_id::VARCHAR, 9, '0')",
            "closed": "hash(file_id) % 3 = 0",
            "created_at": f"make_timestamp({AT} - file_id * 30000000)",
            "updated_at": f"make_timestamp({AT} + $stamp)",
            "snap_count": f"{UPLOADS}",
        },
    ),
    "uploads": (
        f"wanted, range({UPLOADS}) AS many(n)",
        {
            "id": "file_id * 100 + n",
            "position": "n",
            "device_id": "hash(file_id, n) % 500",
            "created_at": f"make_timestamp({AT} - file_id * 30000000 + n)",
            "scan_date_time": f"make_timestamp({AT} - file_id * 30000000 + n)",
            "upload_type": "['image', 'document', 'signature'][(hash(n, file_id) % 3 + 1)::INT]",
            "has_damage": "hash(file_id, n, 1) % 9 = 0",
            "damage_type_id": "hash(file_id, n, 2) % 12",
            "latitude": "47 + (hash(file_id) % 1000000) / 1000000",
            "longitude": "8 + (hash(n, file_id) % 1000000) / 1000000",
            "image_name": "'image-' || file_id || '-' || n || '.jpg'",
            "image_mime": "'image/jpeg'",
            "image_path": "'/tenant/' || file_id % 100 || '/' || hash(file_id, n)",
            "comment": "CASE WHEN hash(n, file_id) % 10 = 0 THEN 'seen at the gate ' || n END",
        },
    ),
    "fields": (
        f"wanted, range({FIELDS}) AS many(n)",
        {
            "field_id": "(file_id + n) % 20",
            "name": "'field ' || (file_id + n) % 20",
            "value": "'value ' || hash(file_id, n) % 1000",
            "position": "n",
        },
    ),
}
AGGREGATES: Final = {
    "group": "SELECT upload_type, has_damage, count(*), avg(latitude) FROM uploads GROUP BY ALL",
    "distinct": "SELECT device_id, count(DISTINCT file_id) FROM uploads WHERE has_damage GROUP BY ALL",
    "join": "SELECT closed, count(*), sum(u.damage_type_id) FROM files JOIN uploads AS u USING (file_id) GROUP BY ALL",
    "month": "SELECT date_trunc('month', scan_date_time) AS m, count(*), max(image_name) FROM uploads GROUP BY ALL",
}


class Grown:
    """A lake that grows commit by commit, with the tables its rows are made from."""

    def __init__(self, root: Path, files: int) -> None:
        """Ids come in nearly, not quite, in their order: one in ten anywhere, as files that changed late."""
        self.root, self.files, self.stamp = root, files, 0
        self.rng = random.Random(files)
        self._db = duckdb.connect()
        self._db.execute("SET threads = 2")
        self._db.execute(
            "CREATE TABLE ids AS SELECT id AS file_id, row_number() OVER (ORDER BY CASE WHEN hash(id) % 10 = 0 THEN"
            f" hash(id, 1) % {files} ELSE id + hash(id, 2) % 2000 END) AS place FROM range(1, {files + 1}) AS every(id)"
        )
        self._db.execute("CREATE TABLE wanted (file_id BIGINT)")

    def first_sync(self, lake: Lake) -> None:
        """Every file, in as many commits as are left unfolded."""
        step = max(CHANGED, -(-self.files // LAYERS))
        for low in range(0, self.files, step):
            chosen = self._db.execute(
                "SELECT file_id FROM ids WHERE place > ? AND place <= ? ORDER BY 1", [low, low + step]
            ).fetchall()
            lake.commit(self.new_commit(lake, [file_id for (file_id,) in chosen]))

    def new_commit(self, lake: Lake, ids: Sequence[int]) -> Commit:
        """Return a commit of new versions of the files, with their rows."""
        self.stamp += 1
        seq = lake.ledger.next_commit_seq()
        run_id = f"20261121T000000Z-{seq:06x}"
        self._db.execute("DELETE FROM wanted")
        self._db.execute("INSERT INTO wanted SELECT unnest($ids)", {"ids": sorted(ids)})
        versions = [
            FileVersion(key, (said := text.encode()), said, AT + self.stamp, AT, "detail")
            for key, text in self._db.execute(self._documents_sql()).fetchall()
        ]
        return write_documents(lake, Commit(seq, run_id, AT + self.stamp, versions=versions))

    def _documents_sql(self) -> str:
        """Return the query for the documents of the wanted files, with their children."""
        objects = {}
        for name, (source, given) in _ROWS.items():
            keys = {column.name: column.wire_key for column in BY_NAME[name].from_wire}
            values = {keys.get(column, column): sql for column, sql in given.items() if column != "position"}
            pairs = ", ".join(f"'{key}': {sql}" for key, sql in values.items())
            objects[name] = source, f"{{{pairs}}}"
        children = " ".join(
            f"JOIN (SELECT file_id, list({pairs} ORDER BY n) AS {name} FROM {source} GROUP BY file_id) USING (file_id)"
            for name, (source, pairs) in objects.items()
            if name != "files"
        )
        _, own = objects["files"]
        merged = f"struct_insert({own}, uploads := uploads, fields := fields)"
        sql = f"SELECT file_id, to_json({merged})::VARCHAR FROM wanted {children} ORDER BY file_id"
        return sql.replace("$stamp", str(self.stamp))

    def some(self, count: int) -> list[int]:
        """Ids drawn at random."""
        return self.rng.sample(range(1, self.files + 1), count)


def publish(lake: Lake) -> None:
    """Show readers what there is."""
    lake.publish("bench", at=time.time_ns() // 1_000, complete=True, watermark=AT)


def best(work: Callable[[], object], tries: int = 5) -> float:
    """Seconds of the fastest of several tries."""
    return min(_seconds(work) for _ in range(tries))


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


@contextmanager
def native(lake: Path, file: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """The same rows as DuckDB's own tables."""
    with duckdb.connect(str(file)) as db:
        db.execute(f"ATTACH '{lake / 'catalog.duckdb'}' AS lake (READ_ONLY)")
        for name in _ROWS:
            db.execute(f"CREATE TABLE {name} AS SELECT * FROM lake.{name} ORDER BY file_id")
        db.execute("DETACH lake")
    with duckdb.connect(str(file), read_only=True) as db:
        yield db


def queries(lake: Path, beside: duckdb.DuckDBPyConnection, files: int) -> dict[str, float]:
    """CPU time of each aggregate as a ratio to native tables, and the geometric mean; point look-ups in seconds."""
    rng, catalog = random.Random(1), str(lake / "catalog.duckdb")
    found: dict[str, float] = {}

    def look_up(db: duckdb.DuckDBPyConnection, table: str) -> None:
        assert db.execute(f"FROM {table} WHERE file_id = ?", [rng.randrange(1, files + 1)]).fetchall()

    def open_and_look_up() -> None:
        with duckdb.connect(catalog, read_only=True) as db:
            look_up(db, "uploads")

    found["open the catalog, look up uploads, s"] = best(open_and_look_up)
    with duckdb.connect(catalog, read_only=True) as db:
        for table in ("files", "uploads", "fields_wide"):
            found[f"look-up in {table}, s"] = best(partial(look_up, db, table))
        pairs = {name: [(_cpu(db, sql), _cpu(beside, sql)) for _ in range(7)] for name, sql in AGGREGATES.items()}
    ratios = {name: min(own for own, _ in both) / min(other for _, other in both) for name, both in pairs.items()}
    found |= {f"{name} / native": ratio for name, ratio in ratios.items()}
    return found | {"aggregates / native": statistics.geometric_mean(ratios.values())}


def _cpu(db: duckdb.DuckDBPyConnection, sql: str) -> float:
    began = time.process_time()
    db.execute(sql).fetchall()
    return time.process_time() - began


def change(grown: Grown, lake: Lake) -> dict[str, float]:
    """Commits of a thousand changed files, each published."""
    commits, cpu, publishes = [], [], []
    for _ in range(DELTAS):
        commit, began = grown.new_commit(lake, grown.some(CHANGED)), time.process_time()
        commits.append(_seconds(partial(lake.commit, commit)))
        cpu.append(time.process_time() - began)
        publishes.append(_seconds(partial(publish, lake)))
    return {"commit, s": min(commits), "commit, CPU s": min(cpu), "publish, s": min(publishes)}


def publish_few(folder: Path) -> dict[str, float]:
    """Processor seconds of the first publish of ten files, and of the next, in a process that has published before."""
    taken: dict[str, float] = {}
    for number in range(2):
        grown = Grown(folder / f"few-{number}", 10)
        with Lake(grown.root, doing="bench") as lake:
            for name in ("first", "next"):
                lake.commit(grown.new_commit(lake, range(1, 11)))
                began = time.process_time()
                publish(lake)
                taken[f"publish of ten files, {name}, CPU s"] = time.process_time() - began
    return taken


def measure(folder: Path, files: int) -> dict[str, float]:
    """The figures of a lake of so many files, by what they are: just synced, and ten deltas later.

    Then come operations over the whole lake that find nothing to change, each in a process of its own.
    """
    found = publish_few(folder)
    grown, began = Grown(folder / "lake", files), time.perf_counter()
    with Lake(grown.root, doing="bench") as lake:
        grown.first_sync(lake)
        publish(lake)
        found["grown, files/s"] = files / (time.perf_counter() - began)
        run_compaction(lake, Settings(lake=grown.root))  # as a sync does in the end
    found["files, MB"] = sum(path.stat().st_size for path in grown.root.glob("tables/*/*")) / 1e6
    with native(grown.root, folder / "native.duckdb") as beside:
        found |= {f"synced: {name}": value for name, value in queries(grown.root, beside, files).items()}
        with Lake(grown.root, doing="bench") as lake:
            found |= change(grown, lake)
            ids = [grown.some(CHANGED) for _ in range(5)]
            found["states of 1,000 files, s"] = best(lambda: lake.ledger.file_versions(ids.pop()))
        found |= {f"10 deltas: {name}": value for name, value in queries(grown.root, beside, files).items()}
    for command in (("check",), ("backup", str(folder / "backup")), ("rebuild",)):
        ran = scanlake(None, grown.root, *command)
        found |= {f"{command[0]}, s": ran.seconds, f"{command[0]}, CPU s": ran.cpu, f"{command[0]}, MB": ran.mb}
    return found
