"""List item and detail become one document, and a submitted form in every spelling one form."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from pipeline.flatten.merge import merge
from tests.flatten.flatten_helpers import Object, drift, rows, take
from tests.rows import every

if TYPE_CHECKING:
    from tests.flatten.flatten_helpers import Object

_RUN: Final = {"id": 1, "workflow": {"id": 2}, "workflow_run_steps": [{}]}


@every(
    ("item", "detail", "merged"),
    [
        # The detail wins where both speak, with a null too; an absent key, or a side that is absent, does not speak.
        ({"id": 1, "closed": 0, "x": "x"}, {"id": 1, "closed": 1, "x": None}, {"id": 1, "closed": 1, "x": None}),
        ({"snap_count": 3, "form_submits": [1]}, {"locations": []}, None),
        *(({"id": 1}, None, {"id": 1}), (None, {"id": 1}, {"id": 1})),
        # A file that went from two uploads to none has none; a null in their place says nothing, at any depth.
        *((item, {"uploads": []}, {"uploads": []}) for item in ({"uploads": [{"id": 5}]}, {"uploads": None}, {})),
        ({"uploads": "junk"}, {"uploads": []}, {"uploads": []}),
        *(({"uploads": sent}, {"uploads": None}, {"uploads": sent}) for sent in ("junk", [{"id": 5}])),
        ({"workflow_runs": [_RUN]}, {"workflow_runs": [dict.fromkeys(_RUN) | {"id": 1}]}, {"workflow_runs": [_RUN]}),
        # Where the detail has no list, the list's collection stands and the detail's word is kept beside it.
        *(
            ({"uploads": [{"id": 5}]}, {"uploads": odd}, {"uploads": [{"id": 5}], "detail.uploads": odd})
            for odd in ("gone", 0, False, {"id": 5})
        ),
    ],
)
def test_which_side_speaks(item: Object, detail: Object, merged: Object | None) -> None:
    """The detail wins where both speak; what only one side has is kept, collections included."""
    assert merge(item, detail) == (item | detail if merged is None else merged)


@every(("ours", "theirs"), [(int, int), (int, str), (str, int)])
def test_geocoding_is_kept_from_the_list(ours: Any, theirs: Any) -> None:
    """What only the list gives of an upload stays, in any order, with ids as text too; an upload of its own is gone."""
    item = {"uploads": [{"id": ours(number), "geocoding": number} for number in (4, 5, 6)]}
    detail = {"uploads": [{"id": theirs(number), "comment": number} for number in (6, 5, 7)]}
    assert merge(item, detail)["uploads"] == [
        {"id": theirs(6), "geocoding": 6, "comment": 6},
        {"id": theirs(5), "geocoding": 5, "comment": 5},
        {"id": theirs(7), "comment": 7},
    ]


def test_a_field_scanned_several_times_meets_its_own() -> None:
    """Fields go by (field_id, snap_id) in order, never by their wrongly mapped id."""
    item = {"fields": [{"id": 1, "field_id": 7, "snap_id": None, "n": place} for place in range(3)]}
    detail = {"fields": [{"id": 9, "field_id": 7, "snap_id": None, "value": str(place)} for place in range(4)]}
    merged = [(field.get("n"), field["value"]) for field in merge(item, detail)["fields"]]
    assert merged == [(0, "0"), (1, "1"), (2, "2"), (None, "3")]


def test_runs_are_merged_down_to_their_steps() -> None:
    """What only the list says of a run's step, of its workflow or of a step's definition stays."""
    item = {"workflow_runs": [{"id": 1, "workflow": {"id": 2, "name": "n", "steps": [{"id": 3, "data": {}}]}}]}
    item["workflow_runs"][0]["workflow_run_steps"] = [{"id": 4, "note": "x"}]
    detail = {"workflow_runs": [{"id": 1, "workflow": {"id": 2, "steps": [{"id": 3, "type": "t"}]}}]}
    detail["workflow_runs"][0]["workflow_run_steps"] = [{"id": 4, "status": "done"}]
    (run,) = merge(item, detail)["workflow_runs"]
    assert run["workflow"] == {"id": 2, "name": "n", "steps": [{"id": 3, "data": {}, "type": "t"}]}
    assert run["workflow_run_steps"] == [{"id": 4, "note": "x", "status": "done"}]


def test_forms_are_merged_down_to_their_questions() -> None:
    """A detail that knows only a form's number leaves the list's questions and answers."""
    form = {"id": 3, "fields": [{"id": 1, "label": "Q"}], "answers": [{"id": 1, "value": "A"}]}
    item = {"form_submits": [{"id": "a", "form": form}]}
    merged = merge(item, {"form_submits": [{"id": "a", "form": {"id": 3, "title": "T"}}]})
    assert merged == {"form_submits": [{"id": "a", "form": {**form, "title": "T"}}]}


def test_things_without_a_name_do_not_break_the_merge() -> None:
    """Items that are no objects, or whose id is one, are passed through."""
    item = {"uploads": [None, {"id": [1], "a": 1}, {"b": 2}]}
    detail = {"uploads": [7, {"id": [1]}, {"c": 3}]}
    assert merge(item, detail)["uploads"] == [7, {"id": [1], "a": 1}, {"b": 2, "c": 3}]


@every("empty", [None, "", [], {}])
def test_what_an_include_brought_is_not_erased(empty: object) -> None:
    """Geocoding and forms, which a detail cannot be asked for, stay where the detail has nothing in their place."""
    item = {"uploads": [{"id": 5, "geocoding": {"n": 5}}], "form_submits": [{"id": "a"}]}
    assert merge(item, {"uploads": [{"id": 5, "geocoding": empty}], "form_submits": empty}) == item
    told = {"uploads": [{"id": 5, "geocoding": {"n": 6}}], "form_submits": [{"id": "b"}]}
    assert merge(item, told) == told


def test_texts_come_from_the_list_where_only_it_heeds_lang() -> None:
    """With `texts_from_list` the list's texts stand, unless they are empty; other values are the detail's."""
    item = {"uploads": [{"id": 5, "damage_type_desc": "Delle", "comment": "old"}, {"id": 6, "damage_type_desc": ""}]}
    dent, rip = {"id": 5, "damage_type_desc": "Dent", "comment": "new"}, {"id": 6, "damage_type_desc": "Rip"}
    detail = {"uploads": [dent, rip]}
    assert merge(item, detail) == detail
    assert merge(item, detail, texts_from_list=True)["uploads"] == [dent | {"damage_type_desc": "Delle"}, rip]


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
