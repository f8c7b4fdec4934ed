"""The result of a command as the one JSON object of `--json`: the only encoder of results.

A result is a frozen struct. Instants are `datetime` values in UTC and become ISO-8601 text with `Z`.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from pathlib import PurePath
from typing import Any

from msgspec import Struct


def encode_result(result: object, exit_code: int) -> str:
    """Return the JSON object of a result: `ok`, `exit_code` and the fields of the result, one line of ASCII.

    Raises `TypeError` for a value that has no JSON form.
    """
    return json.dumps({"ok": exit_code == 0, "exit_code": int(exit_code)} | to_json_value(result))


def to_json_value(value: Any) -> Any:
    """Return the value as JSON's types: structs and mappings become objects, instants text with `Z`."""
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, datetime | PurePath):
        return format_json_instant(value) if isinstance(value, datetime) else str(value)
    if isinstance(value, Struct):
        return {name: to_json_value(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, Mapping):
        return {str(key): to_json_value(item) for key, item in value.items()}
    if isinstance(value, Collection):
        return [to_json_value(item) for item in value]
    raise TypeError(f"{type(value).__name__} has no JSON form.")


def format_json_instant(moment: datetime) -> str:
    """Return ISO-8601 with `Z`, with a fraction only if there is one; a naive instant counts as UTC."""
    aware = moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
    return aware.isoformat().replace("+00:00", "Z")
