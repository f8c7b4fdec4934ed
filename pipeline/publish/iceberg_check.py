"""Check of published Iceberg tables: their files, and their rows as another engine reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.table import Table as IcebergTable

from pipeline.errors import ScanlakeError
from pipeline.lake.catalog.snapshots import open_snapshot
from pipeline.lake.catalog.sql import sql_identifier
from pipeline.lake.storage.layout import list_snapshots
from pipeline.output.findings import error, ok, warning
from pipeline.output.formatting import pluralize
from pipeline.publish.iceberg_format import SYNC_PROPERTY, read_positions
from pipeline.publish.iceberg_publish import TAG, list_stored_files, list_table_files, load_all_tables, read_own_state
from pipeline.publish.target import REMAKE_HINT
from schemas.tables import BY_NAME, FILES

if TYPE_CHECKING:
    from collections.abc import Iterator

    import duckdb
    from pyiceberg.table import DataScan

    from pipeline.lake.storage.layout import LakeLayout
    from pipeline.output.findings import Finding
    from pipeline.publish.iceberg_catalogs import IcebergCatalog
    from schemas.tables import Table

_HINT: Final = "Run `scanlake publish --iceberg`."


def check_tables(catalog: IcebergCatalog, layout: LakeLayout, subject: str, *, read_data: bool) -> Iterator[Finding]:
    """Yield the files that tables lack, and the tables that show its rows differ from the snapshot that was published.

    Rows are counted, with `read_data` compared. Raises `PublishError`, and `LakeCorruptedError` for the snapshot.
    """
    states, snapshots = load_all_tables(catalog), {f"{TAG}{number}": path for number, path in list_snapshots(layout)}
    stored = {file for state in states.values() for _, file, _ in list_stored_files(catalog.io, state)}
    lost = list_table_files(catalog.io, states.values()) - stored
    yield from (error("target", file, "missing", REMAKE_HINT) for file in sorted(lost))
    tag, rows = states[FILES.name].metadata.properties.get(SYNC_PROPERTY, ""), "not compared"
    if tag != (newest := next(reversed(snapshots), "")):
        yield warning("target", subject, f"has {tag or 'no sync'}, the lake has {newest or 'no snapshot'}", _HINT)
    if tag in snapshots and not lost:
        rows = "compared" if read_data else "counted"
        with open_snapshot(snapshots[tag]) as db:
            for name, state in states.items():
                reader = IcebergTable((name,), state.metadata, state.metadata_location, catalog.io, NoopCatalog(name))
                if problem := _find_wrong_rows(db, BY_NAME[name], reader.scan(), read_data=read_data):
                    yield error("target", f"Iceberg table {name}", problem, _HINT)
                elif not (read_data or read_own_state(state.metadata.current_snapshot())):
                    yield warning("target", f"Iceberg table {name}", "another program has changed it", _HINT)
    yield ok("target", subject, f"{pluralize(len(stored), 'object')} compared, rows {rows}")


def _find_wrong_rows(db: duckdb.DuckDBPyConnection, table: Table, scan: DataScan, *, read_data: bool) -> str | None:
    """Return how the rows of a scan differ from those of the table in the open snapshot."""
    values = ", ".join(f"{sql_identifier(column.name)}::VARCHAR" for column in table.columns)
    query = f"SELECT count(*), {f'sum(hash({values})::HUGEINT)' if read_data else 'NULL'} FROM "
    own = expected, _ = db.execute(query + table.qualified_name).fetchall()[0]
    try:
        tasks = [(task.file, [file.file_path for file in task.delete_files]) for task in scan.plan_files()]
        rows = sum(file.record_count - len(read_positions(scan.io, paths, file.file_path)) for file, paths in tasks)
        if rows != expected:
            return f"{pluralize(rows, 'row')}, the snapshot has {expected:,}"
        if read_data and rows:
            db.register("published", scan.to_arrow_batch_reader())
            if db.execute(query + "published").fetchall() != [own]:
                return "its rows differ from the snapshot"
    except ScanlakeError as failure:
        return failure.message.rstrip(".")
    except Exception as failure:  # noqa: BLE001 - pyiceberg cannot read all that other engines write
        return f"cannot be read ({type(failure).__name__})"
    return None
