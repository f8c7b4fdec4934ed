"""SQL text: quoted names and literals, comments, the current time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

UTC_NOW_SQL: Final = "now() AT TIME ZONE 'UTC'"
"""The current time in UTC as TIMESTAMP, the type of the lake's times. A cast of now() is in the reader's zone."""


def sql_identifier(name: str) -> str:
    """Return the name as a quoted SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def sql_literal(text: str) -> str:
    """Return the text as an SQL expression: a literal, or a concatenation because a NUL would end the statement."""
    quoted = " || chr(0) || ".join("'" + piece.replace("'", "''") + "'" for piece in text.split("\0"))
    return f"({quoted})" if "\0" in text else quoted


def sql_read_parquet(paths: Iterable[Path]) -> str:
    """Return the call of `read_parquet` that reads the files as one relation, with the columns of all."""
    return f"read_parquet([{', '.join(sql_literal(str(path)) for path in paths)}], union_by_name = true)"


def sql_comment(kind: str, subject: str, comment: str, columns: Iterable[tuple[str, str]] = ()) -> str:
    """Return the statements that comment a table or view and its columns, given as (name, comment)."""
    statements = [f"COMMENT ON {kind} {subject} IS {sql_literal(comment)}"]
    statements += [
        f"COMMENT ON COLUMN {subject}.{sql_identifier(name)} IS {sql_literal(text)}" for name, text in columns
    ]
    return ";".join(statements)
