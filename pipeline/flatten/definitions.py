"""Workflow definitions: embedded in every run, kept once by what they say."""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b
from typing import Any

from schemas import kinds, tables
from schemas.documents import read_json

Object = dict[str, Any]


def content_hash(workflow: Object) -> str:
    """A hash of what the definition says, the same for every spelling of its times and numbers."""
    return _hash_of_spelling(kinds.spell_json(workflow))


@lru_cache(maxsize=4096)
def _hash_of_spelling(spelled: str) -> str:
    workflow = read_json(spelled.encode())
    steps = workflow.get("steps")
    said = [_judged(workflow, tables.WORKFLOWS)]
    said += [_judged(step, tables.WORKFLOW_STEPS) for step in (steps if isinstance(steps, list) else [])]
    return blake2b(repr(said).encode("utf-8", "backslashreplace"), digest_size=16).hexdigest()


def _judged(source: object, table: tables.Table) -> object:
    if not isinstance(source, dict):
        return source
    said = {key: value for key, value in source.items() if key not in table.known_keys}
    for column in table.from_wire:
        value = source.get(column.wire_key)
        try:
            said[column.wire_key] = column.kind.judge(value)
        except kinds.Misfit:
            said[column.wire_key] = value
    return sorted(said.items())
