"""Workflow definitions: embedded in every run, kept once by what they say."""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING

from schemas import kinds, tables

if TYPE_CHECKING:
    from pipeline.flatten.keeping import Object


def content_hash(workflow: Object) -> str:
    """A hash of what the definition says, the same for every spelling of its times and numbers."""
    steps = workflow.get("steps") or []
    said = [_judged(workflow, tables.WORKFLOWS)]
    said += [_judged(step, tables.WORKFLOW_STEPS) for step in (steps if isinstance(steps, list) else [steps])]
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
