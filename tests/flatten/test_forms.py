"""Submitted forms, in every spelling."""

from __future__ import annotations

import json

from tests.flatten.flatten_helpers import Object, drift, rows, take
from tests.rows import every

QUESTIONS = [{"id": 1, "label": " Seal?"}, {"id": 2, "label": "Number"}]
ANSWERS = [{"id": 2, "value": "12"}, {"id": "1", "value": "yes"}]
_T: Object = {"form_id": 3, "title": "T"}
_INNER: Object = {"id": 3, "title": "T", "fields": QUESTIONS}
SPELLINGS: list[Object] = [
    _T | {"fields": [QUESTIONS[0] | {"value": "yes"}, QUESTIONS[1] | {"value": "12"}]},
    _T
    | {
        "form_id": "3",
        "fields": [{"id": 1, "name": " Seal?", "value": "yes"}, {"id": 2, "name": "Number", "value": "12"}],
    },
    _T | {"fields": QUESTIONS, "answers": ANSWERS},
    {"form": _INNER | {"answers": ANSWERS}},
    {"form": _INNER, "answers": ANSWERS},
    _T | {"fields": [question | {"value": None} for question in QUESTIONS], "answers": ANSWERS},
    {"form": {"id": 3, "title": "T"}, "fields": {"1": " Seal?", "2": "Number"}, "answers": {"1": "yes", "2": "12"}},
    _T
    | {
        "fields": {"1": {"label": " Seal?"}, "2": {"id": None, "label": "Number"}},
        "answers": {"0": {"id": 2, "value": "12"}, "1": {"id": 1, "value": "yes"}},
    },
    {"form_id": 3, "title": "", "fields": [], "form": {"title": "T", "fields": QUESTIONS, "answers": ANSWERS}},
]


def _submit(sent: Object) -> Object:
    return {"id": 17, "form_submits": [{"id": "a-1", **sent}]}


@every("sent", SPELLINGS)
def test_every_spelling_gives_the_same_rows(sent: Object) -> None:
    """One row a question with its label as sent and its value, and one row a form, whichever spelling came."""
    flat = take(_submit(sent))
    owner = {"file_id": 17, "form_submit_id": "a-1", "submit_position": 0, "form_id": 3}
    assert rows(flat, "form_submits") == [{"file_id": 17, "id": "a-1", "form_id": 3, "title": "T", "position": 0}]
    assert rows(flat, "form_answers") == [
        owner | {"question_id": "1", "label": " Seal?", "value": "yes", "position": 0},
        owner | {"question_id": "2", "label": "Number", "value": "12", "position": 1},
    ]
    assert not drift(flat)


def test_an_answer_without_its_question_is_a_row() -> None:
    """An answer to a question that the form no longer lists is kept, as is a question without an answer."""
    answers = rows(
        take(_submit({"fields": [{"id": 1, "label": "Q"}], "answers": [{"id": 9, "value": "x"}]})), "form_answers"
    )
    assert [(row["question_id"], row.get("label"), row.get("value")) for row in answers] == [
        ("1", "Q", None),
        ("9", None, "x"),
    ]


def test_two_answers_to_one_question_are_two_rows() -> None:
    """The first answer meets the question; the second is kept on its own."""
    sent = {"fields": [{"id": 1, "label": "Q"}], "answers": [{"id": 1, "value": "a"}, {"id": 1, "value": "b"}]}
    assert [row["value"] for row in rows(take(_submit(sent)), "form_answers")] == ["a", "b"]


def test_what_question_and_answer_say_differently_is_kept_twice() -> None:
    """Where question and answer disagree the question's word stands in the column, the answer's in extra."""
    question = {"id": 1, "label": "Q", "value": "a", "name": "other"}
    answer = {"id": 1, "label": "P", "value": "b", "at": "now"}
    (row,) = rows(take(_submit({"fields": [question], "answers": [answer]})), "form_answers")
    assert (row["label"], row["value"]) == ("Q", "a")
    assert row["extra"] == {"at": "now", "answer.label": "P", "answer.value": "b", "also_named": "other"}


def test_what_submission_and_form_say_differently_is_kept_twice() -> None:
    """Two numbers, titles or lists of questions are both kept: the submission's in its place, the form's in extra."""
    inner = {"id": 4, "title": "B", "fields": [{"id": 2}], "version": 7}
    flat = take(_submit({"form_id": 3, "title": "A", "fields": [{"id": 1}], "form": inner}))
    (row,) = rows(flat, "form_submits")
    assert (row["form_id"], row["title"]) == (3, "A")
    assert row["extra"] == {"form.id": 4, "form.title": "B", "form.fields": [{"id": 2}], "form.version": 7}
    assert drift(flat)["form_submits", "form.version", "unknown_key"] == 1
    assert drift(flat)["form_submits", "form.fields", "type_mismatch"] == 1


@every("odd", ["text", 7, ["a", 1], [None, {"id": 1, "label": "Q"}]])
def test_what_is_no_question_is_kept(odd: object) -> None:
    """Fields and answers in no known spelling go to extra."""
    (row,) = rows(take(_submit({"fields": odd, "answers": odd, "form": "x"})), "form_submits")
    strange = [entry for entry in odd if not isinstance(entry, dict)] if isinstance(odd, list) else odd
    assert row["extra"] == {"fields": strange, "answers": strange, "form": "x"}


def test_answers_are_kept_as_text() -> None:
    """Lines, dates and numbers stay as they came; a list or an object is readable text, with the JSON beside it."""
    nested = [["x", "y"], [], {"label": "Box", "id": 2}, {"a": 1, "b": [None, True]}, [{"name": "N"}, 2.50]]
    values = ["a\nb", "2024-01-01", 7, True, None, *nested]
    fields = [{"id": place, "label": "Q", "value": value} for place, value in enumerate(values)]
    flat = take(_submit({"fields": fields}))
    answers = rows(flat, "form_answers")
    texts = ["a\nb", "2024-01-01", "7", "true", None, "x, y", "", "Box", "a: 1, b: , true", "N, 2.5"]
    assert [row.get("value") for row in answers] == texts
    assert [json.loads(row["value_json"]) for row in answers if "value_json" in row] == nested
    assert not drift(flat)


def test_a_key_of_the_service_with_the_name_of_our_column_is_kept() -> None:
    """A `value_json` that the service sends is an unknown key, and takes nothing from the column of that name."""
    (row,) = rows(
        take(_submit({"fields": [{"id": 1, "label": "Q", "value": [1], "value_json": "theirs"}]})), "form_answers"
    )
    assert (row["value"], row["value_json"], row["extra"]) == ("1", "[1]", {"value_json'": "theirs"})


def test_submissions_without_an_id_are_told_apart() -> None:
    """The answers of two submissions without an id name the position of their submission."""
    flat = take({"form_submits": [{"fields": [{"id": 1, "label": "Q", "value": text}]} for text in ("a", "b")]})
    assert [(row["submit_position"], row["value"]) for row in rows(flat, "form_answers")] == [(0, "a"), (1, "b")]
