"""The questions to one engine, in the engine's own environment: no other module of the project is imported.

Usage: ask.py ENGINE TABLES ENDPOINT. TABLES is a JSON file with the locations of the tables' metadata files,
and with the snapshots of two of them at the tag of an earlier sync. Prints the answers as JSON: groups, join, counts,
and groups and join at the tag.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

KEY, SECRET, REGION = "testing", "testing-secret", "us-east-1"
GROUPS = "SELECT comment, position, count(*) AS n, sum(file_id % 97) AS s FROM {uploads} GROUP BY comment, position"
JOIN = (
    "SELECT f.snap_count, count(*) AS n, sum(u.id % 1009) AS s FROM {files} f JOIN {uploads} u"
    " ON f.file_id = u.file_id GROUP BY f.snap_count"
)
COUNT = "SELECT count(*) AS n FROM {table}"
EARLIER = "earlier_{}".format
"""The name of a table at the earlier sync, for engines that read it under a name."""


@dataclass(frozen=True)
class Tables:
    """Published tables: the locations of their metadata files, and an earlier sync."""

    locations: dict[str, str]
    tag: str
    snapshots: dict[str, int]
    """Snapshots of `files` and `uploads` at the tag."""

    @property
    def names(self) -> list[str]:
        """Names of all tables."""
        return sorted(self.locations)


def ask(
    run: Callable[[str], list[Any]],
    tables: list[str],
    name: Callable[[str], str] = str,
    earlier: Callable[[str], str] | None = None,
) -> dict[str, Any]:
    """Ask by a function that runs SQL.

    `name` turns a table into what the engine reads in its place; `earlier` does it for the earlier sync, None if the
    engine cannot read one.
    """
    counts = {table: int(next(iter(run(COUNT.format(table=name(table)))[0]))) for table in tables}
    answers = {**ask_pair(run, name), "counts": counts}
    if earlier is not None:
        answers["at the tag"] = ask_pair(run, earlier)
    # Once more, as engines remember what they have read.
    again = {table: int(next(iter(run(COUNT.format(table=name(table)))[0]))) for table in tables}
    return {**answers, "counts again": again}


def ask_pair(run: Callable[[str], list[Any]], name: Callable[[str], str]) -> dict[str, Any]:
    """Ask what needs two tables."""
    names = {"files": name("files"), "uploads": name("uploads")}
    return {"groups": normalize(run(GROUPS.format(**names))), "join": normalize(run(JOIN.format(**names)))}


def normalize(rows: list[Any]) -> list[list[Any]]:
    """Return rows sorted, numbers as integers."""
    return sorted([value if isinstance(value, str) else int(value) for value in row] for row in rows)


def to_static_tables(tables: Tables, endpoint: str) -> dict[str, Any]:
    """Return tables of pyiceberg, for engines that read its metadata by pyiceberg."""
    from pyiceberg.table import StaticTable  # noqa: PLC0415 - the environment of the engine has it

    s3 = {"endpoint": endpoint, "access-key-id": KEY, "secret-access-key": SECRET, "region": REGION}
    s3 |= {"path-style-access": "true", "force-virtual-addressing": "false"}
    properties = {f"s3.{name}": value for name, value in s3.items()}
    return {name: StaticTable.from_metadata(location, properties) for name, location in tables.locations.items()}


def read_frames(tables: Tables, static: dict[str, Any], read: Callable[..., Any]) -> dict[str, Any]:
    """Return what a frame library reads of each table, and, with a prefix, of the earlier sync."""
    frames = {name: read(table) for name, table in static.items()}
    return frames | {
        f"earlier_{name}": read(static[name], snapshot_id=snapshot) for name, snapshot in tables.snapshots.items()
    }


def ask_duckdb(tables: Tables, endpoint: str) -> dict[str, Any]:
    """DuckDB with its extension iceberg."""
    import duckdb  # noqa: PLC0415
    from duckdb_extensions import import_extension  # noqa: PLC0415

    db = duckdb.connect()
    for extension in ("avro", "httpfs", "iceberg"):
        import_extension(extension)
        db.execute(f"LOAD {extension}")
    host = endpoint.removeprefix("http://")
    db.execute(
        f"CREATE SECRET (TYPE s3, KEY_ID '{KEY}', SECRET '{SECRET}', ENDPOINT '{host}', URL_STYLE 'path',"
        f" USE_SSL false, REGION '{REGION}')"
    )
    return ask(
        lambda sql: db.execute(sql).fetchall(),
        tables.names,
        lambda name: f"iceberg_scan('{tables.locations[name]}')",
        lambda name: f"iceberg_scan('{tables.locations[name]}', snapshot_from_id = {tables.snapshots[name]})",
    )


def ask_polars(tables: Tables, endpoint: str) -> dict[str, Any]:
    """Polars, which reads the metadata by pyiceberg and the parts itself."""
    import polars as pl  # noqa: PLC0415

    options = {"endpoint_url": endpoint, "access_key_id": KEY, "secret_access_key": SECRET, "region": REGION}
    options |= {"allow_http": "true", "virtual_hosted_style_request": "false"}
    scan = partial(pl.scan_iceberg, storage_options={f"aws_{name}": value for name, value in options.items()})
    context = pl.SQLContext(read_frames(tables, to_static_tables(tables, endpoint), scan))
    return ask(lambda sql: context.execute(sql).collect().rows(), tables.names, earlier=EARLIER)


def ask_datafusion(tables: Tables, endpoint: str) -> dict[str, Any]:
    """DataFusion, by the table provider of pyiceberg-core, which knows the current snapshot only."""
    from datafusion import SessionContext  # noqa: PLC0415

    context = SessionContext()
    for name, table in to_static_tables(tables, endpoint).items():
        context.register_table(name, table)
    return ask(
        lambda sql: [tuple(row.values()) for batch in context.sql(sql).collect() for row in batch.to_pylist()],
        tables.names,
    )


def ask_daft_on_ray(tables: Tables, endpoint: str) -> dict[str, Any]:
    """Daft on the Ray cluster in the environment, whose head has no core."""
    import daft  # noqa: PLC0415
    import ray  # noqa: PLC0415

    daft.set_runner_ray(os.environ["RAY_ADDRESS"])
    s3 = daft.io.S3Config(
        endpoint_url=endpoint,
        key_id=KEY,
        access_key=SECRET,
        region_name=REGION,
        use_ssl=False,
        force_virtual_addressing=False,
    )
    read = partial(daft.read_iceberg, io_config=daft.io.IOConfig(s3=s3))
    frames = read_frames(tables, to_static_tables(tables, endpoint), read)
    answers = ask(
        lambda sql: [tuple(row.values()) for row in daft.sql(sql, **frames).to_pylist()], tables.names, earlier=EARLIER
    )
    workers = [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]
    assert (daft.get_or_infer_runner_type(), len(workers)) == ("ray", 2)
    return answers


def ask_clickhouse(tables: Tables, endpoint: str) -> dict[str, Any]:
    """ClickHouse, as the library chDB."""
    import chdb  # noqa: PLC0415

    def name(table: str) -> str:
        root, _, file = tables.locations[table].partition("/metadata/")
        url = f"{endpoint}/{root.removeprefix('s3://')}"
        setting = f"SETTINGS iceberg_metadata_file_path = 'metadata/{file}'"
        return f"icebergS3('{url}', '{KEY}', '{SECRET}', {setting})"

    session = chdb.connect(":memory:")
    # A join's runtime filter drops rows while a file is read, and 26.9 remembers the rest as the file's number of rows.
    session.query("SET use_cache_for_count_from_files = 0")

    def run(sql: str) -> list[Any]:
        return [json.loads(line) for line in str(session.query(sql, "JSONCompactEachRow")).splitlines()]

    def earlier(table: str) -> str:
        return f"(SELECT * FROM {name(table)} SETTINGS iceberg_snapshot_id = {tables.snapshots[table]})"

    return ask(run, tables.names, name, earlier)


def ask_spark(tables: Tables, endpoint: str) -> dict[str, Any]:
    """Spark at the master in the environment, with the reference implementation of Iceberg, over S3."""
    import snowpark_connect_deps_iceberg as wheel  # noqa: PLC0415 - it has the runtime's jar, unmodified
    from pyspark.sql import SparkSession  # noqa: PLC0415

    (runtime,) = Path(str(wheel.__file__)).parent.glob("jars/iceberg-spark-runtime-3.5_2.12*.jar")
    settings = {
        "spark.jars": ",".join(map(str, (runtime, *Path(sys.prefix).glob("jars/*.jar")))),
        "spark.ui.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.shuffle.partitions": "4",
        "spark.executor.memory": "700m",
        "spark.hadoop.fs.s3.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",
        "spark.hadoop.fs.s3a.endpoint": endpoint,
        "spark.hadoop.fs.s3a.access.key": KEY,
        "spark.hadoop.fs.s3a.secret.key": SECRET,
        "spark.hadoop.fs.s3a.path.style.access": "true",
        "spark.hadoop.fs.s3a.connection.ssl.enabled": "false",
    }
    builder = SparkSession.builder.master(os.environ["SPARK_MASTER"])
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    for name, location in tables.locations.items():
        session.read.format("iceberg").load(location).createOrReplaceTempView(name)
    for name in tables.snapshots:
        at_tag = session.read.format("iceberg").option("tag", tables.tag)
        at_tag.load(tables.locations[name]).createOrReplaceTempView(f"earlier_{name}")
    answers = ask(lambda sql: [tuple(row) for row in session.sql(sql).collect()], tables.names, earlier=EARLIER)
    executors = session.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1
    assert executors == 2, executors
    session.stop()
    return answers


ENGINES = {
    "duckdb": ask_duckdb,
    "polars": ask_polars,
    "datafusion": ask_datafusion,
    "daft-ray": ask_daft_on_ray,
    "clickhouse": ask_clickhouse,
    "spark": ask_spark,
}

if __name__ == "__main__":
    engine, file, url = sys.argv[1:]
    sys.stdout.write(json.dumps(ENGINES[engine](Tables(**json.loads(Path(file).read_text())), url)) + "\n")
