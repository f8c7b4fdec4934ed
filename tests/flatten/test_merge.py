"""List item and detail become one document."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pipeline.flatten.merge import merge
from tests.rows import every

if TYPE_CHECKING:
    from tests.flatten.flatten_helpers import Object


def test_the_detail_wins_where_both_speak() -> None:
    """Where both speak the detail wins, with a null too."""
    assert merge({"id": 1, "closed": 0, "comment": "x"}, {"id": 1, "closed": 1, "comment": None}) == {
        "id": 1,
        "closed": 1,
        "comment": None,
    }


def test_an_absent_key_does_not_speak() -> None:
    """What only one side has is kept, the list's own keys and whole collections included."""
    item = {"id": 1, "snap_count": 3, "form_submits": [{"id": "a"}]}
    assert merge(item, {"id": 1, "locations": []}) == {**item, "locations": []}


@every("item", [{"uploads": [{"id": 5}]}, {"uploads": None}, {"uploads": "junk"}, {}])
def test_an_empty_list_speaks(item: Object) -> None:
    """A file that went from two uploads to none has none."""
    assert merge(item, {"uploads": []}) == {"uploads": []}


def test_a_null_collection_says_nothing() -> None:
    """A null in the place of a collection or an object leaves what the list has, at any depth."""
    item = {"uploads": [{"id": 5}], "workflow_runs": [{"id": 1, "workflow": {"id": 2}, "workflow_run_steps": [{}]}]}
    silent = {"uploads": None, "workflow_runs": [{"id": 1, "workflow": None, "workflow_run_steps": None}]}
    assert merge(item, silent) == item
    assert merge({"uploads": "junk"}, {"uploads": None}) == {"uploads": "junk"}


def test_geocoding_is_kept_from_the_list() -> None:
    """What only the list gives of an upload stays, whatever the order of the two lists."""
    item = {"uploads": [{"id": 5, "geocoding": {"n": 5}}, {"id": 6, "geocoding": {"n": 6}}]}
    detail = {"uploads": [{"id": 6, "comment": "six"}, {"id": 5, "comment": "five"}]}
    assert merge(item, detail)["uploads"] == [
        {"id": 6, "geocoding": {"n": 6}, "comment": "six"},
        {"id": 5, "geocoding": {"n": 5}, "comment": "five"},
    ]


@every(("ours", "theirs"), [("5", 5), (5, "5")])
def test_ids_may_be_text_on_one_side(ours: Any, theirs: Any) -> None:
    """Ids that are text on one side and numbers on the other name the same thing."""
    merged = merge({"uploads": [{"id": ours, "geocoding": 1}]}, {"uploads": [{"id": theirs}, {"id": 6}]})
    assert merged["uploads"] == [{"id": theirs, "geocoding": 1}, {"id": 6}]


def test_what_the_detail_no_longer_has_is_gone() -> None:
    """An upload that only the list shows was removed in between."""
    merged = merge({"uploads": [{"id": 4, "geocoding": 4}, {"id": 5, "geocoding": 5}]}, {"uploads": [{"id": 5}]})
    assert merged["uploads"] == [{"id": 5, "geocoding": 5}]


def test_a_field_scanned_several_times_meets_its_own() -> None:
    """Fields go by (field_id, snap_id) in order, never by their wrongly mapped id."""
    item = {"fields": [{"id": 1, "field_id": 7, "snap_id": None, "n": place} for place in range(3)]}
    detail = {"fields": [{"id": 9, "field_id": 7, "snap_id": None, "value": str(place)} for place in range(4)]}
    assert [(field.get("n"), field["value"]) for field in merge(item, detail)["fields"]] == [
        (0, "0"),
        (1, "1"),
        (2, "2"),
        (None, "3"),
    ]


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


@every("odd", ["gone", 0, False, {"id": 5}])
def test_something_else_than_a_collection_takes_no_rows_away(odd: object) -> None:
    """Where the detail has no list, the list's collection stands and the detail's word is kept beside it."""
    assert merge({"uploads": [{"id": 5}]}, {"uploads": odd}) == {"uploads": [{"id": 5}], "detail.uploads": odd}


def test_one_side_alone_is_the_document() -> None:
    """Without a detail the list item is the document, and the other way round."""
    assert merge({"id": 1}, None) == {"id": 1}
    assert merge(None, {"id": 1}) == {"id": 1}


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
    detail = {
        "uploads": [{"id": 5, "damage_type_desc": "Dent", "comment": "new"}, {"id": 6, "damage_type_desc": "Rip"}]
    }
    assert merge(item, detail) == detail
    told = [
        (upload["damage_type_desc"], upload.get("comment"))
        for upload in merge(item, detail, texts_from_list=True)["uploads"]
    ]
    assert told == [("Delle", "new"), ("Rip", None)]
