"""Merge of list item and detail into one document.

The detail's value wins if both have the key, even if the value is null or an empty list.
A null instead of a collection or an object counts as an absent key.
The same rule applies to nested objects at every known depth.
The merge therefore keeps what only the list has (geocoding on uploads), and drops items that the detail lacks.
If the detail has another type than a collection, the list's collection wins; `detail.<key>` keeps the detail's value.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pipeline.flatten.extra import JsonObject, put_unique

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class MergeRule:
    """Merge rule of an object: its identifying keys and its nested objects."""

    key: tuple[str, ...] = ("id",)
    lists: Mapping[str, MergeRule] = field(default_factory=dict)
    objects: Mapping[str, MergeRule] = field(default_factory=dict)
    keyed: bool = False  # the collection can be an object with entries by key instead of a list


_PLAIN: Final = MergeRule()
_ENTRIES: Final = {"fields": MergeRule(keyed=True), "answers": MergeRule(keyed=True)}
_FILE: Final = MergeRule(
    lists={
        "uploads": _PLAIN,
        "form_submits": MergeRule(lists=_ENTRIES, objects={"form": MergeRule(lists=_ENTRIES)}),
        # The field's `id` is deprecated, and the service maps it wrongly (2.4).
        "fields": MergeRule(key=("field_id", "snap_id")),
        "locations": _PLAIN,
        "workflow_runs": MergeRule(
            lists={"workflow_run_steps": _PLAIN}, objects={"workflow": MergeRule(lists={"steps": _PLAIN})}
        ),
    }
)

_NOT_AN_OBJECT: Final = object()


def merge(list_item: JsonObject | None, detail: JsonObject | None) -> JsonObject:
    """Return the file's document, merged from list item and detail."""
    if list_item is None or detail is None:
        return detail or list_item or {}
    return _merge_objects(list_item, detail, _FILE)


def _merge_objects(listed: JsonObject, detailed: JsonObject, rule: MergeRule) -> JsonObject:
    if not rule.lists:
        return {**listed, **detailed}
    if listed == detailed:
        return detailed
    merged = {**listed, **detailed}
    for key, nested_rule in rule.lists.items():
        list_value, detail_value = listed.get(key), detailed.get(key)
        if isinstance(list_value, list) and isinstance(detail_value, list):
            merged[key] = _merge_lists(list_value, detail_value, nested_rule)
        elif _has_type_mismatch(list_value, detail_value, (list, dict) if nested_rule.keyed else list):
            _put_both(merged, key, list_value, detail_value)
    for key, nested_rule in rule.objects.items():
        list_value, detail_value = listed.get(key), detailed.get(key)
        if isinstance(list_value, dict) and isinstance(detail_value, dict):
            merged[key] = _merge_objects(list_value, detail_value, nested_rule)
        elif _has_type_mismatch(list_value, detail_value, dict):
            _put_both(merged, key, list_value, detail_value)
    return merged


def _has_type_mismatch(list_value: object, detail_value: object, expected: type | tuple[type, ...]) -> bool:
    return detail_value is None or (isinstance(list_value, expected) and not isinstance(detail_value, expected))


def _put_both(merged: JsonObject, key: str, list_value: object, detail_value: object) -> None:
    if list_value is not None:
        merged[key] = list_value
    if detail_value is not None:
        put_unique(merged, f"detail.{key}", detail_value)


def _merge_lists(listed: list[Any], detailed: list[Any], rule: MergeRule) -> list[Any]:
    if not listed or not detailed or listed == detailed:
        return detailed
    list_keys, detail_keys = _get_item_keys(listed, rule.key), _get_item_keys(detailed, rule.key)
    if list_keys == detail_keys and _NOT_AN_OBJECT not in list_keys:  # the usual case: both have one order
        return [_merge_objects(*values, rule) for values in zip(listed, detailed, strict=True)]
    listed_by_key: defaultdict[str, deque[JsonObject]] = defaultdict(deque)
    for key, list_value in zip(list_keys, listed, strict=True):
        if key is not _NOT_AN_OBJECT:
            listed_by_key[_to_match_key(key)].append(list_value)
    merged = []
    for key, detail_value in zip(detail_keys, detailed, strict=True):
        matches = None if key is _NOT_AN_OBJECT else listed_by_key.get(_to_match_key(key))
        # Items with equal keys match in order: a field can be scanned more than once.
        merged.append(_merge_objects(matches.popleft(), detail_value, rule) if matches else detail_value)
    return merged


def _get_item_keys(items: list[Any], names: tuple[str, ...]) -> list[Any]:
    """Return the identifying key of every item; `_NOT_AN_OBJECT` for other types."""
    if len(names) == 1:
        (only,) = names
        return [item.get(only) if isinstance(item, dict) else _NOT_AN_OBJECT for item in items]
    return [tuple(map(item.get, names)) if isinstance(item, dict) else _NOT_AN_OBJECT for item in items]


def _to_match_key(key: object) -> str:
    # One side can send an id as text, the other as a number.
    return "\n".join(map(str, key)) if isinstance(key, tuple) else str(key)
