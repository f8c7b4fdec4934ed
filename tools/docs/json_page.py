"""docs/json.md: the object that each command prints with `--json`, from the type that the command declares."""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Final, Literal, Union, get_args, get_origin, get_type_hints

from msgspec import Struct

from pipeline.cli import app as cli

if TYPE_CHECKING:
    from collections.abc import Iterator

_WORDS: Final = {
    str: "text", int: "integer", float: "number", bool: "`true` or `false`", datetime: "instant", Path: "path",
    Any: "any value", object: "any value", NoneType: "`null`",
}  # fmt: skip

_NAMES: Final = {"datetime": datetime, "Mapping": Mapping, "Sequence": Sequence, "Path": Path}
"""Names that modules import for type checking only."""


def format_json_page() -> str:
    """Return a section for each command with a table of keys and types."""
    lines = []
    for name in cli.COMMANDS:
        result_type = getattr(importlib.import_module(cli.COMMANDS[name].module), "RESULT", None)
        if result_type is None:
            continue
        lines += ["", f"## {name}", ""]
        for number, variant in enumerate(_variants(result_type)):
            lines += ["", f"Or: {_first_line(variant)}", ""] if number else [_first_line(variant), ""]
            lines += ["| key | type |", "|---|---|", *(f"| `{key}` | {kind} |" for key, kind in _rows(variant, ""))]
    return "\n".join(lines) + "\n"


def list_keys(result_type: Any) -> dict[str, str]:
    """Return the keys of a result with their types, `*` for the names in an object and `[]` for a list's items."""
    return dict(row for variant in _variants(result_type) for row in _rows(variant, ""))


def _variants(result_type: Any) -> Sequence[Any]:
    return get_args(result_type) if get_origin(result_type) in {UnionType, Union} else (result_type,)


def _first_line(result_type: Any) -> str:
    """Return what the docstring says first, in the words of JSON."""
    return re.sub(r"\bNone\b", "`null`", (result_type.__doc__ or "").strip().splitlines()[0])


def _rows(kind: Any, prefix: str) -> Iterator[tuple[str, str]]:
    """Yield key and type of each field of a struct, and of the structs in it."""
    hints = get_type_hints(kind, localns=_NAMES)
    for name in kind.__struct_fields__:
        key = f"{prefix}{name}"
        yield key, _describe(hints[name])
        for path, inner in _inner_types(hints[name]):
            yield from _rows(inner, f"{key}{path}.")


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Struct)


def _inner_types(kind: Any) -> Iterator[tuple[str, Any]]:
    origin, arguments = get_origin(kind), get_args(kind)
    if _is_struct(kind):
        yield "", kind
    elif origin in {UnionType, Union}:
        for argument in arguments:
            yield from _inner_types(argument)
    elif isinstance(origin, type) and issubclass(origin, Mapping):
        yield from ((f".*{path}", inner) for path, inner in _inner_types(arguments[1]))
    elif arguments and origin is not Literal:
        yield from ((f"[]{path}", inner) for path, inner in _inner_types(arguments[0]))


def _describe(kind: Any) -> str:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in {Literal, UnionType, Union}:
        return " or ".join(f"`{part}`" if origin is Literal else _describe(part) for part in arguments)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return f"object: {_describe(arguments[1])} by name"
    if arguments:
        return f"list of: {_describe(arguments[0])}"
    if not isinstance(kind, type) or _is_struct(kind):
        return "object" if _is_struct(kind) else _WORDS.get(kind, "any value")
    return next((_WORDS[base] for base in kind.__mro__ if base in _WORDS), "any value")
