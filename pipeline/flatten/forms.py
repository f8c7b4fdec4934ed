"""Submitted forms: three spellings of one thing.

The question is `label` or `name`; the answer stands in the question (`value`) or in a separate `answers`
list matched by id; both stand on the submission or under its `form`. The form's number is `form_id` or
`form.id`. Lists of objects are usual, objects keyed by question id are read too.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass
from typing import Final

from pipeline.flatten.keeping import Object, keep

_OF_FORM: Final = frozenset({"id", "title", "fields", "answers"})


@dataclass(frozen=True, slots=True)
class Submission:
    """A submission in one spelling. `strange` holds what fits none of the spellings, by key."""

    header: Object
    answers: tuple[Object, ...]
    strange: Object


def read_submission(sent: Object) -> Submission:
    """Bring a submission into one spelling; nothing is dropped."""
    form = sent.get("form")
    inner: Object = form if isinstance(form, dict) else {}
    strange: Object = {} if form is None or isinstance(form, dict) else {"form": form}
    header = dict(sent)
    for key, inner_key in (("form_id", "id"), ("title", "title")):
        header[key] = _first(sent.get(key), inner, inner_key, strange)
    for key, value in inner.items():
        if key not in _OF_FORM:
            keep(header, f"form.{key}", value)
    questions = _entries("fields", _first(sent.get("fields"), inner, "fields", strange), strange)
    answers = _entries("answers", _first(sent.get("answers"), inner, "answers", strange), strange)
    return Submission(header, tuple(_pair(questions, answers)), strange)


def _first(outer: object, inner: Object, key: str, strange: Object) -> object:
    """What stands on the submission or, failing that, under its form. Two that differ are both kept."""
    other = inner.get(key)
    if outer is None or (outer in ("", [], {}) and other is not None):
        return other
    if other not in (None, "", [], {}) and other != outer and str(other) != str(outer):
        keep(strange, f"form.{key}", other)
    return outer


def _entries(key: str, value: object, strange: Object) -> list[Object]:
    if value is None:
        return []
    if isinstance(value, dict):
        word = "label" if key == "fields" else "value"
        return [_keyed(number, entry, word) for number, entry in value.items()]
    if not isinstance(value, list):
        keep(strange, key, value)
        return []
    if odd := [entry for entry in value if not isinstance(entry, dict)]:
        keep(strange, key, odd)
        return [entry for entry in value if isinstance(entry, dict)]
    return value


def _keyed(number: str, entry: object, word: str) -> Object:
    if not isinstance(entry, dict):
        return {"id": number, word: entry}
    return entry if entry.get("id") is not None else {**entry, "id": number}


def _pair(questions: list[Object], answers: list[Object]) -> list[Object]:
    if not answers:
        return [_entry(question) for question in questions]
    waiting: defaultdict[str, deque[Object]] = defaultdict(deque)
    for answer in answers:
        waiting[str(answer.get("id"))].append(answer)
    paired = []
    for question in questions:
        given = waiting.get(str(question.get("id")))
        paired.append(_entry(_answered(question, given.popleft()) if given else question))
    # An answer to a question that the form no longer lists is an answer all the same.
    paired += [_entry(answer) for given in waiting.values() for answer in given]
    return paired


def _answered(question: Object, answer: Object) -> Object:
    """Both in one; where they differ the question's word counts and the answer's is kept beside it."""
    both = dict(question)
    for key, value in answer.items():
        if both.get(key) is None:
            both[key] = value
        elif key != "id" and value is not None and value != both[key]:
            keep(both, f"answer.{key}", value)
    return both


def _entry(sent: Object) -> Object:
    label, name = sent.get("label"), sent.get("name")
    asked = name if label is None else label
    if isinstance(asked, str):
        asked = asked.strip()
    if asked is label and "name" not in sent:
        return sent
    entry = {**sent, "label": asked}
    entry.pop("name", None)
    if label is not None and name is not None and name != label:
        keep(entry, "also_named", name)
    return entry
