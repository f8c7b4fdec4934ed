"""Field ids of all columns, frozen: readers of published parts find a column by its id alone.

`field_ids.json` has {table: {column: "id type[ required]"}}. A column that is removed keeps its line, so that no other
column takes its id. A new column is a new line.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Final

from schemas.tables import FIELD_ID_KEY, RAW, TABLES

if TYPE_CHECKING:
    import pyarrow as pa

GOLDEN: Final[dict[str, dict[str, str]]] = json.loads(Path(__file__).with_name("field_ids.json").read_text())
SCHEMAS: Final = {table.name: table.arrow for table in TABLES} | {"raw": RAW}


def describe(field: pa.Field) -> str:
    """Return a column's line in the golden file."""
    return f"{int(field.metadata[FIELD_ID_KEY])} {field.type}{'' if field.nullable else ' required'}"


def test_no_field_id_changes() -> None:
    """Every column of every part has the id, the type and the requiredness that earlier parts have."""
    current = {name: {field.name: describe(field) for field in schema} for name, schema in SCHEMAS.items()}
    assert current.keys() == GOLDEN.keys()
    for name, columns in current.items():
        assert columns == {column: GOLDEN[name].get(column) for column in columns}, name


def test_no_field_id_is_used_twice() -> None:
    """Within a table every column, removed ones included, has an id of its own, apart from Iceberg's reserved ids."""
    for name, columns in GOLDEN.items():
        ids = [int(line.split()[0]) for line in columns.values()]
        assert len(set(ids)) == len(ids), name
        assert 0 < min(ids) <= max(ids) < 1_000, name
