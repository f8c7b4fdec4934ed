"""Workflow definitions: kept once by what they say."""

from __future__ import annotations

from typing import Any

from pipeline.flatten.flatten import content_hash
from tests.flatten.flatten_helpers import Object, rows, take
from tests.rows import every

STEP = {"id": 31, "workflow_id": 3, "order": 1, "description": "Seal", "allow_skip": True}
WORKFLOW: Object = {"id": 3, "name": "Inbound", "force": 1, "updated_at": "2024-01-01T00:00:00Z", "steps": [STEP]}


def _runs(*definitions: Any) -> Object:
    return {"id": 17, "workflow_runs": [{"id": place, "workflow": each} for place, each in enumerate(definitions)]}


@every(
    "same",
    [
        WORKFLOW | {"updated_at": "2024-01-01T01:00:00.000000+01:00"},
        WORKFLOW | {"id": "3", "force": True},
        WORKFLOW | {"language": None, "info_url": None},
        WORKFLOW | {"steps": [STEP | {"order": "1", "allow_skip": 1}]},
        dict(reversed(WORKFLOW.items())),
    ],
)
def test_one_content_is_one_definition(same: Object) -> None:
    """A definition is kept once, whatever the spelling of its times, ids and flags and the order of its keys."""
    assert content_hash(same) == content_hash(WORKFLOW)
    flat = take(_runs(WORKFLOW, same, WORKFLOW))
    assert [row["id"] for row in rows(flat, "workflow_definitions")] == [3]
    assert [row["id"] for row in rows(flat, "workflow_definition_steps")] == [31]
    assert flat.definitions == {content_hash(WORKFLOW)}


@every(
    "changes",
    [
        *({"name": "Outbound"}, {"unheard_of": 1}, {"force": "perhaps"}),
        *({"steps": steps} for steps in ([], [STEP, STEP | {"id": 32}], [STEP | {"unheard_of": 1}])),
        *({"steps": steps} for steps in ([STEP | {"description": "Seals"}], {"0": STEP}, "none")),
    ],
)
def test_another_content_is_another_definition(changes: Object) -> None:
    """Whatever differs, a removed step or an unknown key included, is another definition."""
    flat = take(_runs(WORKFLOW, WORKFLOW | changes))
    assert len(flat.definitions) == len(rows(flat, "workflow_definitions")) == 2


def test_steps_that_are_no_list_tell_definitions_apart() -> None:
    """Two definitions that differ only in what stands in the place of their steps are both kept."""
    odd = [{"0": STEP}, "none", "some", ["some"]]
    flat = take(_runs(*(WORKFLOW | {"steps": steps} for steps in odd), WORKFLOW | {"steps": []}))
    extras = [row.get("extra") for row in rows(flat, "workflow_definitions")]
    assert extras == [*({"steps": steps} for steps in odd), None]


def test_steps_know_their_definition() -> None:
    """A step that does not name its workflow gets the number of the one it stands in, and its hash."""
    flat = take(_runs({"id": 3, "steps": [{"id": 31}, "odd", {"id": 32, "workflow_id": 4}]}))
    assert [(row["id"], row["workflow_id"], row["position"]) for row in rows(flat, "workflow_definition_steps")] == [
        (31, 3, 0),
        (32, 4, 2),
    ]
    assert rows(flat, "workflow_definitions") == [{"id": 3, "extra": {"steps": ["odd"]}}]
    for name in ("workflow_definitions", "workflow_definition_steps"):
        assert set(flat.tables[name]["_definition_hash"].to_pylist()) == flat.definitions


def test_a_run_names_its_definition() -> None:
    """Each run has the hash of its definition; one that the lake holds is not written again; without one it is NULL."""
    other = WORKFLOW | {"name": "Outbound"}
    flat = take(_runs(WORKFLOW, other, None, {}, WORKFLOW), known={content_hash(WORKFLOW)})
    hashes = [content_hash(WORKFLOW), content_hash(other), None, None, content_hash(WORKFLOW)]
    assert flat.tables["workflow_runs"]["_definition_hash"].to_pylist() == hashes
    assert flat.definitions == {content_hash(other)}
    assert "workflow_definitions" not in take(_runs(WORKFLOW), known={content_hash(WORKFLOW)}).tables


@every("odd", ["text", 7, [], [WORKFLOW]])
def test_what_is_no_definition_is_kept_with_the_run(odd: object) -> None:
    """A workflow that is no object goes to the run's extra."""
    flat = take(_runs(odd))
    assert rows(flat, "workflow_runs")[0]["extra"] == {"workflow": odd}
    assert not flat.definitions
