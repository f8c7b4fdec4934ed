"""The shell of `scanlake query`: statements from a terminal, with history and completion of names."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pipeline.errors import RunInterrupted, ScanlakeError
from pipeline.lake.user_query import strip_trailing_semicolon
from pipeline.logs import to_one_line

try:  # a shell without it has neither history nor completion
    import readline

    _can_edit = True
except ImportError:
    _can_edit = False

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    import duckdb

_PROMPT: Final = "scanlake> "
_CONTINUATION: Final = "     ...> "
_MAX_HISTORY_LINES: Final = 1_000
_QUIT: Final = frozenset({".quit", ".exit", "quit", "exit"})
_TABLES_SQL: Final = """
    SELECT CASE schema_name WHEN 'main' THEN '' ELSE schema_name || '.' END || table_name AS name,
           coalesce(comment, '') AS contents
    FROM (SELECT schema_name, table_name, comment FROM duckdb_tables() WHERE database_name = current_database()
          UNION ALL SELECT schema_name, view_name, comment FROM duckdb_views() WHERE database_name = current_database())
    WHERE schema_name IN ('main', 'meta') AND NOT starts_with(table_name, '_') ORDER BY schema_name, table_name"""
_NAMES_SQL: Final = f"""
    SELECT name FROM ({_TABLES_SQL})
    UNION SELECT column_name FROM duckdb_columns() WHERE database_name = current_database() ORDER BY ALL"""
_HELP: Final = "End a query with ; or an empty line. .tables lists the tables, Tab completes names, .quit ends.\n"


def run_shell(
    open_lake: Callable[[], AbstractContextManager[duckdb.DuckDBPyConnection]], answer: Callable[[str], object]
) -> None:
    """Read queries until the end of input; `answer` runs one and prints its result. An error ends no shell."""
    _start_editing(open_lake)
    sys.stdout.write(_HELP)
    try:
        while (query := _read_query()) is not None:
            if query.strip() in _QUIT:
                break
            if query.strip() == ".help":
                sys.stdout.write(_HELP)
            elif query.strip():
                _run(answer, _TABLES_SQL if query.strip() == ".tables" else query)
    finally:
        _store_history()


def _run(answer: Callable[[str], object], query: str) -> None:
    try:
        answer(strip_trailing_semicolon(query))
    except RunInterrupted:
        sys.stdout.write("interrupted\n")
    except ScanlakeError as error:
        sys.stderr.write(f"{to_one_line(error.message)}\n")


def _read_query() -> str | None:
    """Return the lines up to a semicolon, an empty line or a dot command; None at the end of input."""
    lines: list[str] = []
    while True:
        try:
            line = input(_CONTINUATION if lines else _PROMPT)
        except EOFError:
            sys.stdout.write("\n")
            return None
        except KeyboardInterrupt:
            sys.stdout.write("\n")
            lines.clear()
            continue
        lines.append(line)
        if not line.strip() or line.rstrip().endswith(";") or (len(lines) == 1 and _is_command(line)):
            return "\n".join(lines)


def _is_command(line: str) -> bool:
    return line.startswith(".") or line.strip() in _QUIT


def _history_file() -> Path:
    state = os.environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local" / "state") / "scanlake" / "query_history"


def _start_editing(open_lake: Callable[[], AbstractContextManager[duckdb.DuckDBPyConnection]]) -> None:
    if not _can_edit:
        return
    with suppress(OSError):
        readline.read_history_file(_history_file())
    with open_lake() as lake:
        names = [name for (name,) in lake.execute(_NAMES_SQL).fetchall()]
    readline.set_completer(_Completer(names))
    readline.set_completer_delims(" \t\n,()=<>;")
    readline.parse_and_bind("tab: complete")


def _store_history() -> None:
    """Keep the history in a file that only its owner can read: queries name files."""
    if not _can_edit:
        return
    path = _history_file()
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
        readline.set_history_length(_MAX_HISTORY_LINES)
        readline.write_history_file(path)


class _Completer:
    """Completes the names of tables and columns; called with rising `state` until it returns None."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names

    def __call__(self, text: str, state: int) -> str | None:
        """Return the match number `state`."""
        matches = [name for name in self._names if name.startswith(text)]
        return matches[state] if state < len(matches) else None
