"""The judges: exact, or refused; never rounded, never guessed; and the models that use them."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import ValidationError

from schemas import wire
from schemas.json_decode import JsonNumber, decode_json
from schemas.value_types import (
    BOOLEAN,
    COUNT,
    ID,
    INSTANT,
    JSON,
    NUMBER,
    TEXT,
    TypeMismatchError,
    ValueType,
    encode_json,
    escape_surrogates,
)
from tests.rows import every

_NO_ID: list[Any] = [2**63, 2**64, 10**30, "9223372036854775808", -(2**63) - 1, "007", "+1", "-0", "1.0", " 1"]
_NO_ID += ["1e3", "\u0663", "0x10", JsonNumber("1.0"), True, "NaN", [], {}, [1], 1.0]
_NO_FLAG: list[Any] = ["true", "yes", 2, -1, JsonNumber("1.0"), [], "01"]
_NO_TEXT: list[Any] = [[], {}, ["a"], 1.5]
_NO_NUMBER: list[Any] = ["NaN", "Infinity", "1e999", JsonNumber("1e999"), 10**400, True, "1_0", "0x1", "1,5", []]
_NO_INSTANT: list[Any] = ["soon", "2023-02-30", True, {}, JsonNumber("1.5")]

_FRACTIONS = st.decimals(allow_nan=False, allow_infinity=False).map(lambda number: JsonNumber(f"{number:e}"))
_VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | _FRACTIONS | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
_ANY_TEXT = st.text(st.sampled_from("\ud800\udfff\\ud8fa0é"), max_size=8) | st.text()


@every(
    ("kind", "sent", "expected"),
    [
        *((ID, number, number) for number in (2**53 + 1, 2**63 - 1, -(2**63))),
        *((ID, str(number), number) for number in (2**53 + 1, 0)),
        *((kind, "", None) for kind in (ID, BOOLEAN, NUMBER, INSTANT)),
        *((kind, None, None) for kind in (ID, JSON)),
        (COUNT, 17, 17),
        *((BOOLEAN, sent, True) for sent in (1, "1", True)),
        (BOOLEAN, 0, False),
        *(
            (TEXT, text, text)
            for text in ("", "007", "a\x00b", "\ufeffbom", "e\u0301", "\u00e9", "👩\u200d🚀", "\u202egnp")
        ),
        *((TEXT, JsonNumber(digits), digits) for digits in ("0.1234567890123456789", "-0.0")),
        *((TEXT, True, "true"), (TEXT, 10**30, "1" + "0" * 30), (TEXT, "\ud800", "\\ud800")),
        *((NUMBER, "51.5", 51.5), (NUMBER, JsonNumber("-0.0"), -0.0), (NUMBER, 7, 7.0), (NUMBER, "1e-99999", 0.0)),
        (INSTANT, "2023-12-11", 1_702_252_800_000_000),
        (JSON, {"a": [JsonNumber("1.10"), 2**64]}, '{"a":[1.10,18446744073709551616]}'),
        # A lone surrogate at any depth, in key or value, is escaped in the way DuckDB can read.
        (JSON, {"\ud800": ["\udfff", {"k": "\ud800"}]}, '{"\\\\ud800":["\\\\udfff",{"k":"\\\\ud800"}]}'),
        (JSON, int("9" * 4300), "9" * 4300),
    ],
)
def test_what_fits_is_taken_exactly(kind: ValueType, sent: object, expected: object) -> None:
    """A value that fits its kind is taken with every digit and every character it came with."""
    judged = kind.convert(sent)
    assert judged == expected
    assert type(judged) is type(expected)


@every(
    ("kind", "sent"),
    [
        *((ID, sent) for sent in _NO_ID),
        *((BOOLEAN, sent) for sent in _NO_FLAG),
        *((TEXT, sent) for sent in _NO_TEXT),
        *((NUMBER, sent) for sent in _NO_NUMBER),
        *((INSTANT, sent) for sent in _NO_INSTANT),
    ],
)
def test_what_does_not_fit_is_refused(kind: ValueType, sent: object) -> None:
    """A value that does not fit is refused, never rounded or coerced, and the refusal does not show it."""
    with pytest.raises(TypeMismatchError) as refused:
        kind.convert(sent)
    assert not isinstance(sent, str) or len(sent) < 3 or sent not in str(refused.value)


@given(st.sampled_from([ID, COUNT, BOOLEAN, TEXT, NUMBER, INSTANT, JSON]), _VALUES)
def test_a_judge_gives_a_value_or_a_misfit(kind: ValueType, value: object) -> None:
    """Whatever stands in a document, a judge answers with a value of its kind or with `Misfit`."""
    types: dict[str, type | tuple[type, ...]] = {"flag": bool, "text": str, "json": str, "number": float}
    try:
        judged = kind.convert(value)
    except TypeMismatchError:
        return
    assert judged is None or isinstance(judged, types.get(kind.name, int))


@given(_VALUES)
def test_spelled_json_says_the_same(value: object) -> None:
    """JSON that we spell reads back as the same value, digit for digit."""
    assert json.loads(encode_json(value), parse_float=JsonNumber) == value


@given(_ANY_TEXT)
@example("\\ud800\ud800")
def test_escaped_text_is_fit_for_utf8_and_reversible(text: str) -> None:
    """Text with lone surrogates becomes UTF-8 and can be turned back; all other text stays as it is."""
    escaped = escape_surrogates(text)
    escaped.encode()
    if escaped == text:
        return
    turned = re.sub(r"\\(\\|u(....))", lambda found: chr(int(found[2], 16)) if found[2] else "\\", escaped)
    assert turned == text


@example({"\ud800": 1, "\\ud800": 2})
@given(st.dictionaries(_ANY_TEXT, st.integers(), max_size=6))
def test_no_two_keys_become_one(value: dict[str, int]) -> None:
    """Keys with lone surrogates stay apart from keys that look like their escape."""
    assert sorted(json.loads(encode_json(value)).values()) == sorted(value.values())


DOCUMENT = b"""{
  "id": "9007199254740993", "closed": 1, "updated_at": "2023-12-11T15:02:51+00:00", "scan_code": 7, "new_key": [1],
  "uploads": [{"id": 5, "latitude": "51.5", "longitude": "", "has_damage": 0, "geocoding": {"summary": {"n": 1.10}}}],
  "form_submits": null,
  "workflow_runs": [{"id": 8, "completed_at": null, "workflow": {"id": 3, "steps": null},
                     "workflow_run_steps": [{"id": 9, "entity_ids": [5, 6]}]}]
}"""


def test_a_document_becomes_typed_values() -> None:
    """A file is had as typed values: ids exact, flags as booleans, moments as microseconds, collections as models."""
    file = wire.File.model_validate(decode_json(DOCUMENT))
    assert (file.id, file.closed, file.scan_code) == (2**53 + 1, True, "7")
    assert file.updated_at == 1_702_306_971_000_000
    (upload,) = file.uploads
    assert (upload.latitude, upload.longitude, upload.has_damage) == (51.5, None, False)
    assert upload.geocoding == '{"summary":{"n":1.10}}'
    (run,) = file.workflow_runs
    assert run.workflow is not None
    assert (run.completed_at, run.workflow.id, run.workflow_run_steps[0].entity_ids) == (None, 3, [5, 6])
    assert [*file.form_submits, *file.fields, *run.workflow.steps] == [], "null and absent collections are empty"
    assert file.model_extra == {"new_key": [1]}, "unknown keys are kept"


@every("given", [{"id": "s3cr3t"}, {"id": JsonNumber("1.5")}, {"uploads": ["s3cr3t"]}, {"closed": {}}])
def test_a_misfit_is_refused_without_being_shown(given: dict[str, Any]) -> None:
    """A value that does not fit its kind is an error of validation that does not show it."""
    with pytest.raises(ValidationError) as refused:
        wire.File.model_validate(given)
    assert "s3cr3t" not in str(refused.value)


def test_models_do_not_change() -> None:
    """A document that was read stays as it is."""
    with pytest.raises(ValidationError, match="frozen"):
        wire.File(id=1).id = 2
