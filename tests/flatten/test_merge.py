"""List item and detail become one document."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pipeline.flatten.merge import merge
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
