"""Submitted forms: three formats of one submission.

The question is `label` or `name`. The answer is in the question (`value`) or in a separate `answers` list, by id.
Both are keys of the submission or of its `form`. The form's number is `form_id` or `form.id`.
Lists of objects are usual; the parser also reads objects keyed by question id.
"""

from __future__ import annotations

from collections import defaultdict, deque
from typing import Final

from msgspec import Struct

from pipeline.flatten.rows import JsonObject, put_unique
from schemas.value_types import TEXT, encode_json

_FORM_KEYS: Final = frozenset({"id", "title", "fields", "answers"})
_VALUE_JSON: Final = "value_json"
_MAX_READABLE_DEPTH: Final = 10
_NAMING_KEYS: Final = ("label", "name", "title", "value", "text")  # of an object, the first text that names it


class Submission(Struct, frozen=True):
    """A submission in one format. `unexpected` has, by key, what no format explains."""

    header: JsonObject
    answers: tuple[JsonObject, ...]
    unexpected: JsonObject


def parse_submission(sent: JsonObject) -> Submission:
    """Convert a submission to one format; the conversion keeps every value."""
    form = sent.get("form")
    inner: JsonObject = form if isinstance(form, dict) else {}
    unexpected: JsonObject = {} if form is None or isinstance(form, dict) else {"form": form}
    header = dict(sent)
    for key, inner_key in (("form_id", "id"), ("title", "title")):
        header[key] = _pick_value(sent.get(key), inner, inner_key, unexpected)
    for key, value in inner.items():
        if key not in _FORM_KEYS:
            put_unique(header, f"form.{key}", value)
    questions = _to_entries("fields", _pick_value(sent.get("fields"), inner, "fields", unexpected), unexpected)
    answers = _to_entries("answers", _pick_value(sent.get("answers"), inner, "answers", unexpected), unexpected)
    return Submission(header, tuple(_match_answers(questions, answers)), unexpected)


def _pick_value(outer: object, inner: JsonObject, key: str, unexpected: JsonObject) -> object:
    """Return the submission's value, or else its form's. If both differ, `unexpected` keeps the form's value."""
    other = inner.get(key)
    if outer is None or (outer in ("", [], {}) and other is not None):
        return other
    if other not in (None, "", [], {}) and other != outer and str(other) != str(outer):
        put_unique(unexpected, f"form.{key}", other)
    return outer


def _to_entries(key: str, value: object, unexpected: JsonObject) -> list[JsonObject]:
    if value is None:
        return []
    if isinstance(value, dict):
        value_key = "label" if key == "fields" else "value"
        return [_add_id(number, entry, value_key) for number, entry in value.items()]
    if not isinstance(value, list):
        put_unique(unexpected, key, value)
        return []
    if others := [entry for entry in value if not isinstance(entry, dict)]:
        put_unique(unexpected, key, others)
        return [entry for entry in value if isinstance(entry, dict)]
    return value


def _add_id(number: str, entry: object, value_key: str) -> JsonObject:
    if not isinstance(entry, dict):
        return {"id": number, value_key: entry}
    return entry if entry.get("id") is not None else {**entry, "id": number}


def _match_answers(questions: list[JsonObject], answers: list[JsonObject]) -> list[JsonObject]:
    if not answers:
        return [_normalize_entry(question) for question in questions]
    if [str(question.get("id")) for question in questions] == [str(answer.get("id")) for answer in answers]:
        return [_normalize_entry(_merge_answer(*pair)) for pair in zip(questions, answers, strict=True)]
    answers_by_id: defaultdict[str, deque[JsonObject]] = defaultdict(deque)
    for answer in answers:
        answers_by_id[str(answer.get("id"))].append(answer)
    paired = []
    for question in questions:
        matching = answers_by_id.get(str(question.get("id")))
        paired.append(_normalize_entry(_merge_answer(question, matching.popleft()) if matching else question))
    # The form can drop a question after its answer was submitted; the answer stays.
    paired += [_normalize_entry(answer) for remaining in answers_by_id.values() for answer in remaining]
    return paired


def _merge_answer(question: JsonObject, answer: JsonObject) -> JsonObject:
    """Merge an answer into its question.

    If both differ, the question's value wins, and `answer.<key>` keeps the answer's value.
    """
    both = dict(question)
    for key, value in answer.items():
        if both.get(key) is None:
            both[key] = value
        elif key != "id" and value is not None and value != both[key]:
            put_unique(both, f"answer.{key}", value)
    return both


def _normalize_entry(sent: JsonObject) -> JsonObject:
    label, name, value = sent.get("label"), sent.get("name"), sent.get("value")
    is_nested = isinstance(value, list | dict)
    if label is not None and "name" not in sent and not is_nested and _VALUE_JSON not in sent:
        return {**sent, _VALUE_JSON: None}
    entry = {**sent, "label": name if label is None else label}
    entry.pop("name", None)
    if label is not None and name is not None and name != label:
        put_unique(entry, "also_named", name)
    if _VALUE_JSON in sent:  # a key of the service that has the name of our column
        put_unique(entry, f"{_VALUE_JSON}'", entry.pop(_VALUE_JSON))
    entry[_VALUE_JSON] = None
    if is_nested:
        entry["value"], entry[_VALUE_JSON] = _to_readable(value), value
    return entry


def _to_readable(value: object, depth: int = 0) -> str:
    """Return a list or an object as people read it: `Front, Rear`, or `length: 3, width: 2`."""
    if depth > _MAX_READABLE_DEPTH:
        return encode_json(value)
    if isinstance(value, list):
        return ", ".join(_to_readable(item, depth + 1) for item in value)
    if isinstance(value, dict):
        for key in _NAMING_KEYS:
            if type(value.get(key)) is str:  # not the number of a JSON document
                return str(value[key])
        return ", ".join(f"{key}: {_to_readable(item, depth + 1)}" for key, item in value.items())
    return "" if value is None else str(TEXT.convert(value))
