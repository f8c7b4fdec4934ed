"""One document from the pair of list item and detail.

Where both speak the detail wins. A key that is absent does not speak, an empty list does; so does a null,
but for a collection, where it says nothing. Within the collections the same holds object by object: what
only the list gives (geocoding on uploads) stays, and what the detail no longer has is gone.
"""

from __future__ import annotations

from collections import defaultdict, deque
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

Object = dict[str, Any]


def _by_id(item: Object) -> object:
    return item.get("id")


def _by_natural_key(item: Object) -> object:
    # The field's own id is deprecated and wrongly mapped.
    return (item.get("field_id"), item.get("snap_id"))


COLLECTIONS: Final[dict[str, Callable[[Object], object]]] = {
    "uploads": _by_id,
    "form_submits": _by_id,
    "fields": _by_natural_key,
    "locations": _by_id,
    "workflow_runs": _by_id,
}


def merge(list_item: Object | None, detail: Object | None) -> Object:
    """The file as both together say it is."""
    if list_item is None or detail is None:
        return detail or list_item or {}
    merged = {**list_item, **detail}
    for key, identity in COLLECTIONS.items():
        ours, theirs = list_item.get(key), detail.get(key)
        if theirs is None and ours is not None:
            merged[key] = ours
        elif isinstance(ours, list) and isinstance(theirs, list) and ours and theirs:
            merged[key] = _merge_collection(ours, theirs, identity)
    return merged


def _merge_collection(ours: list[Any], theirs: list[Any], identity: Callable[[Object], object]) -> list[Any]:
    known: defaultdict[object, deque[Object]] = defaultdict(deque)
    for item in ours:
        if isinstance(item, dict):
            known[_hashable(identity(item))].append(item)
    merged = []
    for item in theirs:
        twins = known.get(_hashable(identity(item))) if isinstance(item, dict) else None
        # The first of several with one key meets the first: a field can be scanned more than once.
        merged.append({**twins.popleft(), **item} if twins else item)
    return merged


def _hashable(key: object) -> object:
    # Ids may come as text on one side and as numbers on the other.
    if isinstance(key, tuple):
        return tuple(map(_hashable, key))
    return key if key is None else str(key)
