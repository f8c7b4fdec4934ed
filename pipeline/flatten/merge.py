"""One document from the pair of list item and detail.

Where both speak the detail wins. A key that is absent does not speak, an empty list does; so does a null, but
where a collection or an object belongs it says nothing. The same holds object by object, at every depth that
we know: what only the list gives (geocoding on uploads) stays, and what the detail no longer has is gone.
Where the detail has something else in the place of a collection, the list's stands, and the detail's word is
kept under `detail.<key>`.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pipeline.flatten.keeping import Object, keep

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Shape:
    """How an object is merged: what tells it from its neighbours, and which of its keys hold objects again."""

    key: tuple[str, ...] = ("id",)
    lists: Mapping[str, Shape] = field(default_factory=dict)
    objects: Mapping[str, Shape] = field(default_factory=dict)
    keyed: bool = False  # its collection may also be an object: entries by key instead of a list


_PLAIN: Final = Shape()
_ENTRIES: Final = {"fields": Shape(keyed=True), "answers": Shape(keyed=True)}
_FILE: Final = Shape(
    lists={
        "uploads": _PLAIN,
        "form_submits": Shape(lists=_ENTRIES, objects={"form": Shape(lists=_ENTRIES)}),
        # The field's own id is deprecated and wrongly mapped.
        "fields": Shape(key=("field_id", "snap_id")),
        "locations": _PLAIN,
        "workflow_runs": Shape(
            lists={"workflow_run_steps": _PLAIN}, objects={"workflow": Shape(lists={"steps": _PLAIN})}
        ),
    }
)

_NO_OBJECT: Final = object()


def merge(list_item: Object | None, detail: Object | None) -> Object:
    """The file as both together say it is."""
    if list_item is None or detail is None:
        return detail or list_item or {}
    return _merge_objects(list_item, detail, _FILE)


def _merge_objects(ours: Object, theirs: Object, shape: Shape) -> Object:
    if not shape.lists:
        return {**ours, **theirs}
    if ours == theirs:
        return theirs
    merged = {**ours, **theirs}
    for key, inner in shape.lists.items():
        held, said = ours.get(key), theirs.get(key)
        if isinstance(held, list) and isinstance(said, list):
            merged[key] = _merge_lists(held, said, inner)
        elif _says_nothing(held, said, (list, dict) if inner.keyed else list):
            _set_aside(merged, key, held, said)
    for key, inner in shape.objects.items():
        held, said = ours.get(key), theirs.get(key)
        if isinstance(held, dict) and isinstance(said, dict):
            merged[key] = _merge_objects(held, said, inner)
        elif _says_nothing(held, said, dict):
            _set_aside(merged, key, held, said)
    return merged


def _says_nothing(held: object, said: object, wanted: type | tuple[type, ...]) -> bool:
    return said is None or (isinstance(held, wanted) and not isinstance(said, wanted))


def _set_aside(merged: Object, key: str, held: object, said: object) -> None:
    if held is not None:
        merged[key] = held
    if said is not None:
        keep(merged, f"detail.{key}", said)


def _merge_lists(ours: list[Any], theirs: list[Any], shape: Shape) -> list[Any]:
    if not ours or not theirs or ours == theirs:
        return theirs
    names, wanted = _names(ours, shape.key), _names(theirs, shape.key)
    if names == wanted and _NO_OBJECT not in names:  # the usual case: both in one order
        return [_merge_objects(held, said, shape) for held, said in zip(ours, theirs, strict=True)]
    known: defaultdict[str, deque[Object]] = defaultdict(deque)
    for name, held in zip(names, ours, strict=True):
        if name is not _NO_OBJECT:
            known[_comparable(name)].append(held)
    merged = []
    for name, said in zip(wanted, theirs, strict=True):
        twins = None if name is _NO_OBJECT else known.get(_comparable(name))
        # The first of several with one name meets the first: a field can be scanned more than once.
        merged.append(_merge_objects(twins.popleft(), said, shape) if twins else said)
    return merged


def _names(items: list[Any], key: tuple[str, ...]) -> list[Any]:
    """What tells the items apart; `_NO_OBJECT` for those that are none."""
    if len(key) == 1:
        (only,) = key
        return [item.get(only) if isinstance(item, dict) else _NO_OBJECT for item in items]
    return [tuple(map(item.get, key)) if isinstance(item, dict) else _NO_OBJECT for item in items]


def _comparable(name: object) -> str:
    # Ids may come as text on one side and as numbers on the other.
    return "\n".join(map(str, name)) if isinstance(name, tuple) else str(name)
