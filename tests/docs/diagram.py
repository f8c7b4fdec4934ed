"""The entity diagram of docs/tables.md, as the tables say it: `python -m tests.docs.diagram` prints it."""

from __future__ import annotations

import re
import sys
from typing import Final

from schemas import value_types
from schemas.tables import BY_NAME, TABLES, Table

POINTING: Final = (
    ("workflow_definitions", "workflow_runs", "_definition_hash"),
    ("workflow_definition_steps", "workflow_run_steps", "workflow_step_id"),
    ("uploads", "workflow_run_step_items", "entity_id"),
)
"""Columns that name a row of a table that is not the parent: (that table, the table, its column)."""

_TYPES: Final = {value_types.ID: "BIGINT", value_types.COUNT: "BIGINT", value_types.TEXT: "VARCHAR"}
_LINE: Final = re.compile(
    r"erDiagram"
    r'|    [a-z_]+ (\|\|--o\{|\|o\.\.o\{) [a-z_]+ : "[a-z_, ]+"'
    r"|    [a-z_]+ \{|    \}"
    r"|        [A-Z]+ [a-z_]+ (PK|FK|PK, FK)"
)


def diagram() -> str:
    """Mermaid's erDiagram of every table of main: keys, parents, and what else points to a row."""
    tables = [table for table in TABLES if table.schema == "main"]
    lines = ["erDiagram"]
    lines += [f'    {table.parent} ||--o{{ {table.name} : "{_joins(table)}"' for table in tables if table.parent]
    lines += [f'    {target} |o..o{{ {name} : "{column}"' for target, name, column in POINTING]
    for table in tables:
        lines += [f"    {table.name} {{", *_columns(table), "    }"]
    return "\n".join(lines) + "\n"


def strange(text: str) -> list[str]:
    """Lines that are not of the few forms used here, each of which mermaid's own parser was seen to take."""
    return [line for line in text.splitlines() if not _LINE.fullmatch(line)]


def _joins(table: Table) -> str:
    if not table.is_per_file:
        return "_definition_hash"
    own = [f"{table.parent.removesuffix('s')}_id"]
    names = {column.name for column in table.columns}
    return ", ".join(dict.fromkeys(["file_id", *[name for name in own if name in names]]))


def _columns(table: Table) -> list[str]:
    pointing = {column for _, name, column in POINTING if name == table.name}
    parents = set(_joins(table).split(", ")) if table.parent else set()
    kept = [column for column in table.columns if column.name in {*table.key, *pointing, *parents}]
    return [f"        {_TYPES[each.kind]} {each.name} {_mark(table, each.name, parents | pointing)}" for each in kept]


def _mark(table: Table, name: str, foreign: set[str]) -> str:
    return ", ".join(mark for mark, here in (("PK", name in table.key), ("FK", name in foreign)) if here)


assert all(column in {each.name for each in BY_NAME[name].columns} for _, name, column in POINTING)

if __name__ == "__main__":
    sys.stdout.write(diagram())
