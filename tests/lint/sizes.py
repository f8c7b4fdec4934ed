"""The sizes of files and functions."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Final

from tests.lint.problems import Problem

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tests.lint.problems import Source

_MAX_FILE_STATEMENTS: Final = 320
_MAX_FUNCTION_STATEMENTS: Final = 45


def check_sizes(source: Source) -> Iterator[Problem]:
    """Find files and functions with too many statements; docstrings and blank lines cost nothing."""
    if (statements := _count_statements(source.nodes)) > _MAX_FILE_STATEMENTS:
        yield Problem(source.path, 1, f"split the file: {statements} statements, at most {_MAX_FILE_STATEMENTS}")
    for function in source.functions:
        if (statements := _count_statements(ast.walk(function)) - 1) > _MAX_FUNCTION_STATEMENTS:
            advice = f"split {function.name}: {statements} statements, at most {_MAX_FUNCTION_STATEMENTS}"
            yield Problem(source.path, function.lineno, advice)


def _count_statements(nodes: Iterable[ast.AST]) -> int:
    return sum(
        isinstance(node, ast.stmt) and not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
        for node in nodes
    )
