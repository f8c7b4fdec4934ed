"""A table of cases as one test, which names every row that fails."""

from __future__ import annotations

import inspect
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

_Test = TypeVar("_Test", bound="Callable[..., None]")


def every(names: str | Sequence[str], rows: Iterable[Any]) -> Callable[[_Test], _Test]:
    """Call the test once for each row, a value or one value per name; report all rows that fail together.

    For functions without state, whose rows need no folder or environment of their own.
    """
    keys = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    table = [(row,) if len(keys) == 1 else tuple(row) for row in rows]
    assert table, "a table without rows tests nothing"

    def decorate(test: _Test) -> _Test:
        @wraps(test)
        def run(**fixtures: Any) -> None:
            failures = []
            for row in table:
                try:
                    test(**fixtures, **dict(zip(keys, row, strict=True)))
                except Exception as error:  # noqa: BLE001 - any error is a failure of its row
                    error.add_note(f"row: {', '.join(map(ascii, row))}")
                    failures.append(error)
            if failures:
                raise ExceptionGroup(f"{len(failures)} of {len(table)} rows fail", failures)

        signature = inspect.signature(test)
        others = [item for name, item in signature.parameters.items() if name not in keys]
        run.__signature__ = signature.replace(parameters=others)  # type: ignore[attr-defined]
        return run  # type: ignore[return-value]

    return decorate
