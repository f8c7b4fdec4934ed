"""The lake at scale: made-up lakes with six uploads a file, grown through the lake's own commits.

`measure(files)` grows one and returns its figures: `python -m tests.bench.lake 1000000` prints those of a million.
Times are the best of several tries, since other work on the machine only ever adds to them; ratios to native tables
are of CPU time.
"""

from __future__ import annotations

import os
import random
import shutil
import statistics
import sys
import tempfile
import time
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import duckdb

from pipeline.lake import compaction
from pipeline.lake.kept_snapshots import RetentionRules
from pipeline.lake.lake import Lake
from pipeline.lake.models import Commit
from pipeline.lake.retention import expire_snapshots
from schemas.file_versions import FileVersion
from schemas.tables import BY_NAME
from tests.bench import operations
from tests.bench.serving import run
from tests.lake.lake_builder import write_parts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import pyarrow as pa

FILES: Final = 100_000
UPLOADS: Final = 6
FIELDS: Final = 3
CHANGED: Final = 1_000
LAYERS: Final = 190  # commits of the first sync, which a compaction follows
DELTAS: Final = 10
DEAD_SHARE: Final = 0.049  # just below what makes a compaction fold the whole base
AT: Final = 1_795_000_000_000_000
_COMPACTION: Final = """
import json, os
from pathlib import Path
from pipeline.lake.lake import Lake
from pipeline.settings import Settings
from tests.lake import operations
root = Path(os.environ["SCANLAKE_LAKE"])
with Lake(root, doing="bench") as lake:
    print(json.dumps({{"merged": operations.{}(lake, Settings(lake=root))}}))
"""

_ROWS: Final = {
    "files": (
        "wanted",
        {
            "id": "file_id",
            "instance_file_id": "file_id",
            "scan_code": "'SC' || lpad(file_id::VARCHAR, 9, '0')",
            "closed": "hash(file_id) % 3 = 0",
            "created_at": f"make_timestamp({AT} - file_id * 30000000)",
            "updated_at": f"make_timestamp({AT} + $stamp)",
            "snap_count": f"{UPLOADS}",
            "_has_detail": "true",
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
        rows = {name: self._rows(name, run_id, seq) for name in _ROWS}
        raw = b'{"id":%d,"stamp":%d,"said":"' + b"x" * 200 + b'"}'
        versions = [
            FileVersion(key, (said := raw % (key, self.stamp)), said, AT + self.stamp, AT, "detail")
            for key in sorted(ids)
        ]
        return write_parts(lake, Commit(seq, run_id, AT + self.stamp, versions=versions), rows)

    def _rows(self, name: str, run_id: str, seq: int) -> pa.Table:
        source, given = _ROWS[name]
        marks = {
            "file_id": "file_id",
            "_run_id": f"'{run_id}'",
            "_fetched_at": f"make_timestamp({AT})",
            "_seq": f"{seq}",
        }
        schema = BY_NAME[name].arrow
        columns = ", ".join(f'{(given | marks).get(column, "NULL")} AS "{column}"' for column in schema.names)
        sql = f"SELECT {columns} FROM {source}".replace("$stamp", str(self.stamp))
        return self._db.sql(sql).to_arrow_table().cast(schema)

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


def written_bytes() -> int:
    """Bytes that this process has handed to the system so far, the ledger's log included."""
    fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(fields["wchar"])


@contextmanager
def native(lake: Path, file: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """The same rows as DuckDB's own tables."""
    file.unlink(missing_ok=True)
    with duckdb.connect(str(file)) as db:
        db.execute(f"ATTACH '{lake / 'catalog.duckdb'}' AS lake (READ_ONLY)")
        for name in _ROWS:
            db.execute(f"CREATE TABLE {name} AS SELECT * FROM lake.{name} ORDER BY file_id")
        db.execute("DETACH lake")
    with duckdb.connect(str(file), read_only=True) as db:
        yield db


def aggregates(catalog: Path, beside: duckdb.DuckDBPyConnection) -> dict[str, float]:
    """CPU time of each aggregate on a catalog as a ratio to native tables, and the geometric mean."""
    found: dict[str, float] = {}
    with duckdb.connect(str(catalog), read_only=True) as db:
        for name, sql in AGGREGATES.items():
            pairs = [(_cpu(db, sql), _cpu(beside, sql)) for _ in range(7)]
            found[f"{name} / native"] = min(ours for ours, _ in pairs) / min(theirs for _, theirs in pairs)
    return found | {"aggregates / native": statistics.geometric_mean(found.values())}


def queries(lake: Path, beside: duckdb.DuckDBPyConnection, files: int) -> dict[str, float]:
    """Aggregates on the tables and on the views, as ratios to native tables; point look-ups in seconds."""
    rng = random.Random(1)
    catalog = str(lake / "catalog.duckdb")
    views = max((lake / "snapshots").glob("*.duckdb"))  # a snapshot has the form of a large catalog
    found = {f"views: {name}": ratio for name, ratio in aggregates(views, beside).items()}
    found |= aggregates(Path(catalog), beside)
    with duckdb.connect(catalog, read_only=True) as db:

        def one(table: str) -> None:
            assert db.execute(f"FROM {table} WHERE file_id = ?", [rng.randrange(1, files + 1)]).fetchall()

        for table in ("files", "uploads", "fields_wide"):
            found[f"look-up in {table}, s"] = best(lambda table=table: one(table))  # type: ignore[misc]

    def opened() -> None:
        with duckdb.connect(catalog, read_only=True) as db:
            assert db.execute("FROM uploads WHERE file_id = ?", [rng.randrange(1, files + 1)]).fetchall()

    found["open the catalog, look up uploads, s"] = best(opened)
    return found


def _cpu(db: duckdb.DuckDBPyConnection, sql: str) -> float:
    began = time.process_time()
    db.execute(sql).fetchall()
    return time.process_time() - began


def folded(lake: Path, work: str = "run_compaction", name: str = "compaction of a first sync") -> dict[str, float]:
    """A compaction, as a process of its own: its CPU seconds and peak memory. `work`: what of tests.lake.operations."""
    done = run([sys.executable, "-c", _COMPACTION.format(work)], os.environ, lake)
    assert done.said["merged"], "nothing was compacted"
    return {f"{name}, CPU s": done.cpu, f"{name}, MB": done.mb}


def changed(grown: Grown, lake: Lake, times: int) -> dict[str, float]:
    """Commits of a thousand changed files, each published."""
    commits, cpu, bytes_, publishes = [], [], [], []
    for _ in range(times):
        commit = grown.new_commit(lake, grown.some(CHANGED))
        before, began = written_bytes(), time.process_time()
        commits.append(_seconds(partial(lake.commit, commit)))
        bytes_.append(written_bytes() - before)
        cpu.append(time.process_time() - began)
        publishes.append(_seconds(lambda: publish(lake)))
    return {
        "commit, s": min(commits),
        "commit, CPU s": min(cpu),
        "commit, MB written": statistics.median(bytes_) / 1e6,
        "publish, s": min(publishes),
    }


def started(grown: Grown) -> float:
    """Seconds for the lake's part of a run that finds nothing changed, but for its publish."""

    def run() -> None:
        with Lake(grown.root, doing="bench") as lake:
            assert not lake.needs_publish
            lake.ledger.file_versions(grown.some(20))
            compaction.select_for_compaction(compaction.list_part_groups(lake.ledger))
            expire_snapshots(lake.layout, lake.ledger, RetentionRules(), now=time.time())

    return best(run, 3)


def measure(files: int) -> dict[str, float]:
    """The figures of a lake of so many files, by what they are; a lake of a tenth stands beside it where size may tell.

    The states: just synced, ten deltas later, after a compaction, and with as many dead versions as a lake ever has.
    """
    found: dict[str, float] = {}
    folder = Path(tempfile.mkdtemp(prefix="bench-lake-"))
    try:
        tenth = Grown(folder / "tenth", files // 10)
        with Lake(tenth.root, doing="bench") as lake:
            tenth.first_sync(lake)
            publish(lake)
            small = changed(tenth, lake, 3)
        small_operations = operations.measure(tenth.root, folder / "backup")
        shutil.rmtree(tenth.root)
        grown = Grown(folder / "lake", files)
        began = time.perf_counter()
        with Lake(grown.root, doing="bench") as lake:
            grown.first_sync(lake)
            publish(lake)
        found["grown, files/s"] = files / (time.perf_counter() - began)
        found["files, MB"] = sum(path.stat().st_size for path in grown.root.glob("tables/*/*")) / 1e6
        found |= folded(grown.root)  # as a sync does in the end
        with native(grown.root, folder / "native.duckdb") as beside:
            _note(found, "synced", queries(grown.root, beside, files))
            with Lake(grown.root, doing="bench") as lake:
                found |= changed(grown, lake, DELTAS)
                ids = [grown.some(1_000) for _ in range(5)]
                found["states of 1,000 files, s"] = best(lambda: lake.ledger.file_versions(ids.pop()))
            for name, value in small.items():
                found[f"{name}: times that of a tenth"] = found[name] / value
            found["a run without its fetch and publish, s"] = started(grown)
            _note(found, "10 deltas", queries(grown.root, beside, files))
            found |= folded(grown.root, "compact_all", "compaction of everything")
            _note(found, "folded", queries(grown.root, beside, files))
            with Lake(grown.root, doing="bench") as lake:
                lake.commit(grown.new_commit(lake, grown.some(int(files * DEAD_SHARE))))
                found["publish with a year's dead, s"] = best(lambda: publish(lake), 3)
            _note(found, "a year's dead", queries(grown.root, beside, files))
        for name, value in operations.measure(grown.root, folder / "backup").items():
            found[name] = value
            found[f"{name}: times that of a tenth"] = value / small_operations[name]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return found


def _note(found: dict[str, float], state: str, figures: dict[str, float]) -> None:
    found.update({f"{state}: {name}": value for name, value in figures.items()})


if __name__ == "__main__":
    for name, value in measure(int(sys.argv[1]) if len(sys.argv) > 1 else FILES).items():
        print(f"{name:52} {value:12,.3f}")
