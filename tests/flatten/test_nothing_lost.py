"""Nothing is lost and nothing invented: the heart of the flattening.

Documents are drawn at random around the shapes that are known, with every scalar in them different from all
others, so that each can be looked for: it stands in a column (as its judge reads it), or in the `extra` of some
row, or is one of the few things that are left out on purpose.
"""

from __future__ import annotations

import json
import random
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from pipeline.flatten.flatten import FlattenResult, flatten
from schemas import tables, value_types
from schemas.json_decode import JsonNumber
from schemas.timestamps import format_instant
from schemas.value_types import TypeMismatchError, escape_surrogates
from tests.flatten.flatten_helpers import Object, version

if TYPE_CHECKING:
    from collections.abc import Iterator

LEFT_OUT: Final = frozenset({"donotuse"})
"""Keys of a custom field that clients must not use."""

_DEEPER: Final = ("uploads", "locations", "workflow_runs", "workflow_run_steps", "steps")
_SAYING_NOTHING: Final = (None, "", True, False, 0, 1)
_PREFIXES: Final = re.compile(r"^((form|answer|detail)\.)*")
_JUNK_KEYS: Final = (*"x extra file_id also_named detail.uploads form.id answer.value \ud800 é".split(), "")
_ENDS: Final = (".50", "e22", "e999")
_FORM_KEYS: Final = ("id", "title", "fields", "answers", "x", "label")
_EXACTLY: Final[dict[str, Any]] = {"parse_float": JsonNumber}
_ENTRY_KEYS: Final = ("id", "label", "name", "value", "x", "also_named", "answer.value")


@dataclass
class Grower:
    """Grows a document. Every scalar in it is another one."""

    dice: random.Random
    number: int = 100

    def _choose(self, *options: Any) -> Any:
        return self.dice.choice(options)

    def leaf(self) -> Any:
        """A scalar that was not there before."""
        self.number += 1
        number = self.number
        texts = (f"{number}", f"text {number}", f"-{number}.25", f"00{number}", f"NaN {number}")
        odd = (f"\ud800{number}\\", f"é\x00{number}")
        times = (format_instant(number * 1_000_000_000), f"2024-01-01 00:00:00.{number:06}")
        numbers = (number, 2**64 + number, 10**30 + number)
        return self._choose(*texts, *odd, *times, *numbers, *(JsonNumber(f"{number}{end}") for end in _ENDS))

    def junk(self, depth: int = 2) -> Any:
        """Any JSON value."""
        kind = self._choose("leaf", "leaf", "list", "object", "plain") if depth else "leaf"
        if kind == "leaf":
            return self.leaf()
        if kind == "list":
            return [self.junk(depth - 1) for _ in range(self._choose(0, 1, 2))]
        if kind == "object":
            return {key: self.junk(depth - 1) for key in self._keys(_JUNK_KEYS)}
        return self._choose(*_SAYING_NOTHING)

    def _keys(self, keys: tuple[str, ...]) -> list[str]:
        return self.dice.sample(keys, self.dice.randrange(min(7, len(keys) + 1)))

    def object(self, known: tuple[str, ...], inner: dict[str, Any] | None = None) -> Any:
        """An object with some known and some unknown keys; rarely something else in its place."""
        if self._choose(*range(12)) == 0:
            return self.junk()
        grown: Object = {}
        for key in [*self._keys(known), *self._keys(_JUNK_KEYS)[:1], *(inner or {})]:
            if key in (inner or {}):
                grown[key] = (inner or {})[key]()
            else:
                grown[key] = self.junk(self._choose(0, 0, 0, 2))
        return grown

    def many(self, one: Any) -> Any:
        """A collection; sometimes keyed, sometimes no collection at all."""
        kind = self._choose("list", "list", "list", "list", "keyed", "junk", "null")
        items = [one() for _ in range(self._choose(0, 1, 1, 2, 3))] if kind in {"list", "keyed"} else []
        if kind == "keyed":
            return {str(1_000_000 + place): item for place, item in enumerate(items)}
        return items if kind == "list" else None if kind == "null" else self.junk()

    def _model(self, table: tables.Table, **inner: Any) -> Any:
        return self.object(tuple(column.wire_key for column in table.from_wire), inner)

    def _form_parts(self) -> dict[str, Any]:
        return {key: lambda: self.many(lambda: self.object(_ENTRY_KEYS)) for key in ("fields", "answers")}

    def _form(self) -> Any:
        parts = self._form_parts()
        form: dict[str, Any] = {"form": lambda: self.object(_FORM_KEYS, self._form_parts())}
        return self._model(tables.FORM_SUBMITS, **self._choose({}, parts, form, parts | form))

    def _step(self) -> Any:
        return self._model(tables.WORKFLOW_RUN_STEPS, entity_ids=lambda: self.many(self.leaf))

    def _workflow(self) -> Any:
        return self._model(
            tables.WORKFLOW_DEFINITIONS, steps=lambda: self.many(lambda: self._model(tables.WORKFLOW_DEFINITION_STEPS))
        )

    def _run(self) -> Any:
        steps = {"workflow_run_steps": lambda: self.many(self._step)}
        return self._model(tables.WORKFLOW_RUNS, workflow=self._workflow, **steps)

    def file(self) -> Object:
        """A file with all its collections."""
        collections = {
            "uploads": lambda: self._model(tables.UPLOADS),
            "form_submits": self._form,
            "fields": lambda: self.object(("donotuse", *(column.wire_key for column in tables.FIELDS.from_wire))),
            "locations": lambda: self._model(tables.LOCATIONS),
            "workflow_runs": self._run,
        }
        grown = {key: self.many(one) for key, one in collections.items() if self._choose(*range(3))}
        for key in self._keys((*_JUNK_KEYS, *(column.wire_key for column in tables.FILES.from_wire))):
            grown[key] = self.junk()
        return grown


def _stored(flat: FlattenResult) -> set[Any]:
    """Every scalar that the rows hold, those within JSON included."""
    found: set[Any] = set()
    for name, table in flat.tables.items():
        for column in tables.BY_NAME[name].columns:
            values = _values(table, column)
            if column.kind is value_types.JSON:
                values = [leaf for text in filter(None, values) for leaf in _walk(json.loads(text, **_EXACTLY))]
            found.update(values)
    return found


def _values(table: pa.Table, column: tables.Column) -> list[Any]:
    """The values of a column, instants as numbers."""
    values = table[column.name]
    found: list[Any] = (values.cast(pa.int64()) if column.kind is value_types.INSTANT else values).to_pylist()
    return found


def _walk(value: Any, *, keys: bool = False, without: frozenset[str] = frozenset()) -> Iterator[Any]:
    """Every scalar of a document, but those of some keys; with `keys` every key instead, as it is stored."""
    if isinstance(value, dict):
        yield from map(escape_surrogates, value) if keys else ()
        value = [inner for key, inner in value.items() if key not in without]
    if isinstance(value, list):
        for inner in value:
            yield from _walk(inner, keys=keys, without=without)
    elif not keys:
        yield value


def _leaves(value: Any) -> list[Any]:
    """Every scalar of a document but those that say nothing by themselves (null, blank, true, 0) or are left out."""
    return [leaf for leaf in _walk(value, without=LEFT_OUT) if leaf not in _SAYING_NOTHING]


def _readings(leaf: Any) -> set[Any]:
    """Every form in which a scalar may stand: as sent, or as a judge reads it."""
    forms = {leaf, escape_surrogates(leaf) if isinstance(leaf, str) else leaf}
    for kind in (value_types.ID, value_types.INSTANT, value_types.NUMBER, value_types.TEXT):
        try:
            forms.add(kind.convert(leaf))
        except TypeMismatchError:
            continue
    return forms


def _check_all_kept(sent: Object, *, detail: Object | None, item: Object | None) -> FlattenResult:
    """Flatten a file, and check that each scalar of what was sent stands in a column, as read, or in extra."""
    flat = flatten([version(detail, item)], run_id="run", seq=1)
    stored = _stored(flat)
    assert [leaf for leaf in _leaves(sent) if not _readings(leaf) & stored] == []
    return flat


@given(st.integers(0, 2**64), st.booleans())
def test_every_scalar_of_a_document_is_kept(seed: int, from_list: bool) -> None:  # noqa: FBT001 - drawn
    """Each scalar of a random document stands in a column, as its judge reads it, or in extra."""
    document = Grower(random.Random(seed)).file()
    flat = _check_all_kept(document, detail=None if from_list else document, item=document if from_list else None)
    assert not flat.rejects
    assert all(table.schema.equals(tables.BY_NAME[name].arrow) for name, table in flat.tables.items())


@given(st.integers(0, 2**64), st.booleans())
def test_nothing_is_stored_that_was_not_sent(seed: int, from_list: bool) -> None:  # noqa: FBT001 - drawn
    """A value in a column of the service is a reading of a sent one; extra has each one once, under a sent key."""
    document = Grower(random.Random(seed)).file()
    keys = set(_walk(document, keys=True))
    sent = keys.union(*map(_readings, (*_SAYING_NOTHING, *keys, *_leaves(document))))
    known = {"also_named", *(_PREFIXES.sub("", key) for key in keys)}
    flat = flatten([version(None, document) if from_list else version(document)], run_id="run", seq=1)
    for name, table in flat.tables.items():
        columns = [column for column in tables.BY_NAME[name].from_wire if column.kind is not value_types.JSON]
        for column in columns:
            is_readable = (name, column.name) == ("form_answers", "value")  # a list or an object, as people read it
            assert is_readable or set(_values(table, column)) <= sent, (name, column.name)
        for text in filter(None, table["extra"].to_pylist() if "extra" in table.schema.names else ()):
            extra = json.loads(text, **_EXACTLY)
            unknown = {_PREFIXES.sub("", key).rstrip("'") for key in extra} - known
            assert unknown <= {column.wire_key for column in tables.BY_NAME[name].from_wire}
            found = [str(leaf) for leaf in _leaves(extra)]
            assert len(found) == len(set(found))


@given(st.integers(0, 2**64))
def test_every_scalar_of_the_detail_is_kept_beside_the_list(seed: int) -> None:
    """Whatever the list item says, each scalar of the detail is kept."""
    dice = random.Random(seed)
    listed, detail = Grower(dice, 100_000).file(), Grower(dice).file()
    _check_all_kept(detail, detail=detail, item=listed)


@given(st.integers(0, 2**64))
def test_every_scalar_that_only_the_list_has_is_kept(seed: int) -> None:
    """Where the detail leaves keys out, at any known depth, each scalar of the list item is kept."""
    dice = random.Random(seed)
    listed = Grower(dice).file()
    _check_all_kept(listed, detail=_thinned(listed, dice), item=listed)


def _thinned(value: Object, dice: random.Random) -> Object:
    """The same with some keys left out of the objects that the merge knows; never the ids it goes by."""
    thin: Object = {}
    for key, inner in value.items():
        if key == "workflow" and isinstance(inner, dict):
            thin[key] = _thinned(inner, dice)
        elif key in _DEEPER and isinstance(inner, list):
            thin[key] = [_thinned(item, dice) if isinstance(item, dict) else item for item in inner]
        elif key in {"id", "field_id", "snap_id"} or dice.random() < 0.5:
            thin[key] = inner
    return thin
