"""A dbt sources file of the lake's tables, with descriptions and tests from the declared schema."""

import json
from collections.abc import Iterator

from schemas.references import find_reference
from schemas.tables import TABLES, Table

_HEAD = """version: 2

sources:
  - name: scanlake
    database: lake
    schema: main
    tables:
"""


def format_dbt_sources() -> str:
    """Return the YAML of the tables in main. The profile attaches the catalog as `lake`, read-only."""
    return _HEAD + "".join(line for table in TABLES if table.schema == "main" for line in _format_table(table))


def _format_table(table: Table) -> Iterator[str]:
    yield f"      - name: {table.name}\n        description: {json.dumps(table.comment)}\n        columns:\n"
    for column in table.columns:
        yield f"          - name: {json.dumps(column.name)}\n            description: {json.dumps(column.comment)}\n"
        yield f"            data_type: {column.kind.sql}\n"
        reference = find_reference(table.name, column.name)
        if reference is not None:
            yield f"            meta: {{refers_to: {reference}}}\n"
        tests = [] if column.nullable else ["              - not_null\n"]
        if table.key == (column.name,):
            tests.append("              - unique\n")
        if tests:
            yield "            data_tests:\n" + "".join(tests)
