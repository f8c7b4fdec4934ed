"""One-line mutants of a module: what a careless edit would do. Pure."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_COMPARISONS: Final = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in",
}  # fmt: skip
_OPERATORS: Final = {ast.Add: "-", ast.Sub: "+", ast.Mult: "+", ast.FloorDiv: "*", ast.Div: "*"}
_NAMES: Final = {"min": "max", "max": "min", "any": "all", "all": "any"}
_SILENT: Final = ("_log.", "log.", "typer.", "sys.stderr")
"""Calls whose loss changes no data: what they say has tests of its own."""

_LEFT_OUT: Final = {(ast.Raise, "exc"), (ast.ClassDef, "keywords")}
"""Messages of errors, and what a class promises to the type checker (`frozen`)."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """An edit of one line: from `start` to `end` (UTF-8 bytes of the line) stands `text` instead."""

    line: int
    start: int
    end: int
    text: str

    def apply(self, source: str) -> str:
        """Return the module with the edit."""
        lines = source.encode().splitlines(keepends=True)
        line = lines[self.line - 1]
        lines[self.line - 1] = line[: self.start] + self.text.encode() + line[self.end :]
        return b"".join(lines).decode()


def list_mutants(source: str) -> list[Mutant]:
    """Return all mutants of a module, in the order of its lines."""
    found = sorted(
        set(_Finder(source).find(ast.parse(source))), key=lambda mutant: (mutant.line, mutant.start, mutant.text)
    )
    return [mutant for mutant in found if _compiles(mutant.apply(source))]


def _compiles(source: str) -> bool:
    try:
        compile(source, "mutant", "exec")
    except (SyntaxError, ValueError):
        return False
    return True


class _Finder:
    """Walks statements; leaves out docstrings, annotations, `_LEFT_OUT`, and what is for the type checker."""

    def __init__(self, source: str) -> None:
        self._source = source

    def find(self, node: ast.AST) -> Iterator[Mutant]:
        """Yield the mutants below a node."""
        if _is_left_out(node):
            return
        if isinstance(node, ast.stmt | ast.expr) and node.lineno == node.end_lineno:
            yield from self._mutate(node)
        for name, value in ast.iter_fields(node):
            if name in {"annotation", "returns", "decorator_list"} or (type(node), name) in _LEFT_OUT:
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from self.find(child)

    def _mutate(self, node: ast.stmt | ast.expr) -> Iterator[Mutant]:
        match node:
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARISONS:
                yield self._between(left, right, f" {_COMPARISONS[type(op)]} ")
            case ast.BoolOp(op=op, values=[first, *_, last]) if len(node.values) == 2:
                yield self._between(first, last, " or " if isinstance(op, ast.And) else " and ")
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
                yield self._between(left, right, f" {_OPERATORS[type(op)]} ")
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                yield self._replace(node, self._text(operand))
            case ast.Constant(value=bool() as value):
                yield self._replace(node, str(not value))
            case ast.Constant(value=int() as number):
                yield self._replace(node, str(number + 1))
            case ast.Name(id=name) if name in _NAMES:
                yield self._replace(node, _NAMES[name])
            case ast.Return(value=ast.expr() as value) if not (isinstance(value, ast.Constant) and value.value is None):
                yield self._replace(node, "return None")
            case ast.Expr(value=ast.Call() | ast.Await()) if not self._text(node).startswith(_SILENT):
                yield self._replace(node, "pass")
            case ast.AugAssign() | ast.Continue() | ast.Break():
                yield self._replace(node, "pass")

    def _text(self, node: ast.AST) -> str:
        return ast.get_source_segment(self._source, node) or ""

    def _between(self, left: ast.expr, right: ast.expr, text: str) -> Mutant:
        """Return the edit of what stands between two operands; parentheses make it one that does not compile."""
        return Mutant(left.lineno, left.end_col_offset or 0, right.col_offset, text)

    def _replace(self, node: ast.stmt | ast.expr, text: str) -> Mutant:
        return Mutant(node.lineno, node.col_offset, node.end_col_offset or 0, text)


def _is_left_out(node: ast.AST) -> bool:
    match node:
        case ast.If(test=ast.Name(id="TYPE_CHECKING")) | ast.Import() | ast.ImportFrom() | ast.JoinedStr():
            return True
        case ast.Expr(value=ast.Constant()):
            return True
    return False
