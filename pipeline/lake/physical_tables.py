"""Tables that scanlake keeps in a catalog for itself.

They are in schema `physical`, apart from the data: tools list the tables of `main` first, so it has only those.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pipeline.lake.models import Part

if TYPE_CHECKING:
    import duckdb

PHYSICAL_SCHEMA: Final = "physical"
SUPERSEDED_VERSIONS: Final = f"{PHYSICAL_SCHEMA}.superseded_versions"
PARTS: Final = f"{PHYSICAL_SCHEMA}.parts"
PART_COLUMNS: Final = Part.__struct_fields__


def read_parts(db: duckdb.DuckDBPyConnection) -> list[Part]:
    """Return the parts that an open catalog names. Raises `duckdb.Error`."""
    return [Part(*row) for row in db.execute(f"SELECT {', '.join(PART_COLUMNS)} FROM {PARTS}").fetchall()]
