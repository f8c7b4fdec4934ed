"""Names of the tables that scanlake keeps in a catalog for itself: schema `physical`, apart from the data.

Tools list the tables of `main` first, so it has only those. Catalogs and snapshots that earlier versions have written
have these tables in `main`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import duckdb

PHYSICAL_SCHEMA: Final = "physical"
SUPERSEDED_VERSIONS: Final = f"{PHYSICAL_SCHEMA}.superseded_versions"
PARTS: Final = f"{PHYSICAL_SCHEMA}.parts"
EMBEDDED_LEDGER: Final = f"{PHYSICAL_SCHEMA}.ledger"
_FORMER_NAMES: Final = {
    SUPERSEDED_VERSIONS: "main._superseded_versions",
    PARTS: "main._parts",
    EMBEDDED_LEDGER: "main._ledger",
}


def find_physical_table(db: duckdb.DuckDBPyConnection, name: str, *, database: str | None = None) -> str:
    """Return the name under which a catalog has a table, without its database. Default: the current database."""
    owner = "current_database()" if database is None else "?"
    sql = f"SELECT count(*) FROM duckdb_schemas() WHERE database_name = {owner} AND schema_name = '{PHYSICAL_SCHEMA}'"
    ((is_current,),) = db.execute(sql, [] if database is None else [database]).fetchall()
    return name if is_current else _FORMER_NAMES[name]
