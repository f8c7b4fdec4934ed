"""Submitted forms: three spellings of one thing.

The question is `label` or `name`; the answer stands in the question (`value`) or in a separate `answers`
list matched by id; both stand on the submission or under its `form`. The form's number is `form_id` or
`form.id`. Lists of objects are usual, objects keyed by question id are read too.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass
from typing import Any

Object = dict[str, Any]


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
        if header.get(key) is None:
            header[key] = inner.get(inner_key)
    strange |= {f"form.{key}": value for key, value in inner.items() if key not in {"id", "title", "fields", "answers"}}
    questions = _entries("fields", _either(sent, inner, "fields"), strange)
    answers = _entries("answers", _either(sent, inner, "answers"), strange)
    return Submission(header, tuple(_pair(questions, answers)), strange)


def _either(sent: Object, inner: Object, key: str) -> object:
    value = sent.get(key)
    return inner.get(key) if value is None else value


def _entries(key: str, value: object, strange: Object) -> list[Object]:
    if value is None:
        return []
    if isinstance(value, dict):
        word = "label" if key == "fields" else "value"
        return [
            {"id": number, **entry} if isinstance(entry, dict) else {"id": number, word: entry}
            for number, entry in value.items()
        ]
    if not isinstance(value, list):
        strange[key] = value
        return []
    odd = [entry for entry in value if not isinstance(entry, dict)]
    if odd:
        strange[key] = odd
    return [entry for entry in value if isinstance(entry, dict)]


def _pair(questions: list[Object], answers: list[Object]) -> list[Object]:
    waiting: defaultdict[str, deque[Object]] = defaultdict(deque)
    for answer in answers:
        waiting[str(answer.get("id"))].append(answer)
    paired = []
    for question in questions:
        given = waiting.get(str(question.get("id")))
        answer = given.popleft() if given else {}
        paired.append(_question(answer | question if "value" in question else question | answer))
    # An answer to a question that the form no longer lists is an answer all the same.
    paired += [_question(answer) for given in waiting.values() for answer in given]
    return paired


def _question(entry: Object) -> Object:
    asked = dict(entry)
    name = asked.pop("name", None)
    if asked.get("label") is None:
        asked["label"] = name
    elif name is not None and name != asked["label"]:
        asked["also_named"] = name
    if isinstance(asked["label"], str):
        asked["label"] = asked["label"].strip()
    return asked
