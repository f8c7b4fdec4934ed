"""Merge of list item and detail into one document, value by value as `schemas.tables` declares it (`MergeRule`).

What only one side has always stays. Where both have the key the detail wins, also with null or an empty list: it is
the full information, and an item that it lacks was removed. Two kinds of values are exceptions:
- the detail cannot be asked for what an include adds (geocoding, forms): its null or empty value erases nothing;
- where only the list heeds `lang`, the list's text wins.
A null instead of a collection or an object counts as an absent key. If the detail has another type than a collection,
the list's collection wins; `detail.<key>` keeps the detail's value.
"""

from __future__ import annotations

from collections import defaultdict, deque
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct, field

from pipeline.flatten.rows import JsonObject, put_unique
from schemas import tables
from schemas.tables import MergeRule

if TYPE_CHECKING:
    from collections.abc import Mapping


class ObjectShape(Struct, frozen=True):
    """Shape of an object for the merge: its identifying keys, its nested objects, who speaks for its values.

    `filled` and `by_lang` are the keys with these merge rules; `merge` is the rule of the collection itself.
    """

    key: tuple[str, ...] = ("id",)
    lists: Mapping[str, ObjectShape] = field(default_factory=dict)
    objects: Mapping[str, ObjectShape] = field(default_factory=dict)
    keyed: bool = False  # the collection can be an object with entries by key instead of a list
    filled: tuple[str, ...] = ()
    by_lang: tuple[str, ...] = ()
    merge: MergeRule = MergeRule.DETAIL


def _shape_of(
    table: tables.Table,
    *,
    lists: Mapping[str, ObjectShape] | None = None,
    objects: Mapping[str, ObjectShape] | None = None,
    key: tuple[str, ...] = ("id",),
) -> ObjectShape:
    by_rule = {rule: tuple(column.wire_key for column in table.from_wire if column.merge is rule) for rule in MergeRule}
    filled, by_lang = by_rule[MergeRule.FILLED], by_rule[MergeRule.BY_LANG]
    return ObjectShape(key, lists or {}, objects or {}, filled=filled, by_lang=by_lang, merge=table.merge)


_ENTRIES: Final = {"fields": ObjectShape(keyed=True), "answers": ObjectShape(keyed=True)}
_WORKFLOW: Final = _shape_of(tables.WORKFLOW_DEFINITIONS, lists={"steps": _shape_of(tables.WORKFLOW_DEFINITION_STEPS)})
_FILE: Final = _shape_of(
    tables.FILES,
    lists={
        **{table.name: _shape_of(table) for table in tables.TABLES if table.parent == "files" and table.from_wire},
        "form_submits": _shape_of(tables.FORM_SUBMITS, lists=_ENTRIES, objects={"form": ObjectShape(lists=_ENTRIES)}),
        # The field's `id` is deprecated, and the service maps it wrongly (2.4).
        "fields": _shape_of(tables.FIELDS, key=("field_id", "snap_id")),
        "workflow_runs": _shape_of(
            tables.WORKFLOW_RUNS,
            lists={"workflow_run_steps": _shape_of(tables.WORKFLOW_RUN_STEPS)},
            objects={"workflow": _WORKFLOW},
        ),
    },
)
_EMPTY: Final[tuple[object, ...]] = (None, "", [], {})
_NOT_AN_OBJECT: Final = object()


def merge(list_item: JsonObject | None, detail: JsonObject | None, *, texts_from_list: bool = False) -> JsonObject:
    """Return the file's document, merged from list item and detail. `texts_from_list`: only the list heeds `lang`."""
    if list_item is None or detail is None:
        return detail or list_item or {}
    return _Merge(texts_from_list).merge_objects(list_item, detail, _FILE)


class _Merge:
    """Merge of one document."""

    def __init__(self, texts_from_list: bool) -> None:  # noqa: FBT001 - the only option of a private class
        self._texts_from_list = texts_from_list

    def merge_objects(self, listed: JsonObject, detailed: JsonObject, shape: ObjectShape) -> JsonObject:
        if shape.lists and listed == detailed:
            return detailed
        merged = {**listed, **detailed}
        if shape.filled or shape.by_lang:
            self._keep_list_values(merged, listed, shape)
        if shape.lists:
            self._merge_nested(merged, listed, detailed, shape)
        return merged

    def _keep_list_values(self, merged: JsonObject, listed: JsonObject, shape: ObjectShape) -> None:
        for key in shape.filled:
            if merged.get(key) in _EMPTY and listed.get(key) not in _EMPTY:
                merged[key] = listed[key]
        if self._texts_from_list:
            for key in shape.by_lang:
                if listed.get(key) not in _EMPTY:
                    merged[key] = listed[key]

    def _merge_nested(self, merged: JsonObject, listed: JsonObject, detailed: JsonObject, shape: ObjectShape) -> None:
        for key, nested in shape.lists.items():
            self._merge_collection(merged, key, listed.get(key), detailed.get(key), nested)
        for key, nested in shape.objects.items():
            list_value, detail_value = listed.get(key), detailed.get(key)
            if isinstance(list_value, dict) and isinstance(detail_value, dict):
                merged[key] = self.merge_objects(list_value, detail_value, nested)
            elif _has_type_mismatch(list_value, detail_value, dict):
                _put_both(merged, key, list_value, detail_value)

    def _merge_collection(
        self, merged: JsonObject, key: str, list_value: object, detail_value: object, shape: ObjectShape
    ) -> None:
        if shape.merge is MergeRule.FILLED and detail_value in _EMPTY and isinstance(list_value, list):
            merged[key] = list_value
        elif isinstance(list_value, list) and isinstance(detail_value, list):
            merged[key] = self._merge_lists(list_value, detail_value, shape)
        elif _has_type_mismatch(list_value, detail_value, (list, dict) if shape.keyed else list):
            _put_both(merged, key, list_value, detail_value)

    def _merge_lists(self, listed: list[Any], detailed: list[Any], shape: ObjectShape) -> list[Any]:
        if not listed or not detailed or listed == detailed:
            return detailed
        list_keys, detail_keys = _get_item_keys(listed, shape.key), _get_item_keys(detailed, shape.key)
        if list_keys == detail_keys and _NOT_AN_OBJECT not in list_keys:  # the usual case: both have one order
            return [
                self.merge_objects(list_value, detail_value, shape)
                for list_value, detail_value in zip(listed, detailed, strict=True)
            ]
        listed_by_key: defaultdict[str, deque[JsonObject]] = defaultdict(deque)
        for key, list_value in zip(list_keys, listed, strict=True):
            if key is not _NOT_AN_OBJECT:
                listed_by_key[_to_match_key(key)].append(list_value)
        merged = []
        for key, detail_value in zip(detail_keys, detailed, strict=True):
            matches = None if key is _NOT_AN_OBJECT else listed_by_key.get(_to_match_key(key))
            # Items with equal keys match in order: a field can be scanned more than once.
            merged.append(self.merge_objects(matches.popleft(), detail_value, shape) if matches else detail_value)
        return merged


def _has_type_mismatch(list_value: object, detail_value: object, expected: type | tuple[type, ...]) -> bool:
    return detail_value is None or (isinstance(list_value, expected) and not isinstance(detail_value, expected))


def _put_both(merged: JsonObject, key: str, list_value: object, detail_value: object) -> None:
    if list_value is not None:
        merged[key] = list_value
    if detail_value is not None:
        put_unique(merged, f"detail.{key}", detail_value)


def _get_item_keys(items: list[Any], names: tuple[str, ...]) -> list[Any]:
    """Return the identifying key of every item; `_NOT_AN_OBJECT` for other types."""
    if len(names) == 1:
        (only,) = names
        return [item.get(only) if isinstance(item, dict) else _NOT_AN_OBJECT for item in items]
    return [tuple(map(item.get, names)) if isinstance(item, dict) else _NOT_AN_OBJECT for item in items]


def _to_match_key(key: object) -> str:
    # One side can send an id as text, the other as a number.
    return "\n".join(map(str, key)) if isinstance(key, tuple) else str(key)
