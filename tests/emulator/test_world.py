"""The world: the same from the same seed, and every way it changes."""

import json
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.emulator import EDIT_KINDS, Emulator, Quirks, World, WorldPlan, timestamps
from pipeline.emulator.world import change_one
from tests.rows import every

NOW = "2026-06-01T12:00:00Z"


def _truth(**options: object) -> list[dict[str, object]]:
    return list(Emulator(plan=WorldPlan(files=80, seed=5, now=NOW), **options).truth())  # type: ignore[arg-type]


def test_one_seed_is_one_world() -> None:
    """The same plan and clock give the same files byte for byte, another seed others."""
    assert json.dumps(_truth()) == json.dumps(_truth())
    other = list(Emulator(plan=WorldPlan(files=80, seed=6, now=NOW)).truth())
    assert json.dumps(other) != json.dumps(_truth())


@every("spread", ["natural", "even", "burst", "same-second"])
def test_every_spread_has_all_files_in_its_days(spread: str) -> None:
    """Each distribution gives exactly the files asked for, none from the future."""
    world = World(WorldPlan(files=2000, seed=1, spread=spread, now=NOW), Quirks())  # type: ignore[arg-type]
    moments = [stamp for stamp, _ in world.index]
    assert len(moments) == len(world.records) == 2000
    assert max(moments) < world.clock.now()
    if spread == "same-second":
        assert Counter(Counter(moments).values())[60] == 33
    if spread == "burst":
        width = 1095 * timestamps.DAY // 50
        assert max(sum(low <= one < low + width for one in moments[::10]) for low in moments[::50]) > 150


@given(kinds=st.lists(st.sampled_from(EDIT_KINDS), max_size=12), seed=st.integers(0, 50))
@settings(max_examples=60, deadline=None)
def test_edits_keep_documents_whole_and_ids_unique(kinds: list[str], seed: int) -> None:
    """After any edits list and detail still show the same children, each with an id of its own."""
    emulator = Emulator(files=3, seed=seed)
    key = emulator.world.keys()[seed % 3]
    for kind in kinds:
        emulator.world.edit(key, kind)  # type: ignore[arg-type]
    shown = next(one for one in emulator.truth() if one["key"] == key)
    uploads = [upload["id"] for upload in shown["detail"]["uploads"]]
    assert len(set(uploads)) == len(uploads)
    assert uploads == [upload["id"] for upload in shown["item"]["uploads"]]
    runs = [run["id"] for run in shown["detail"]["workflow_runs"]]
    assert len(set(runs)) == len(runs)
    if kinds and kinds[-1] == "clear":
        assert uploads == []


@given(seed=st.integers(0, 1000))
@settings(max_examples=25, deadline=None)
def test_the_index_always_shows_exactly_the_files_there_are(seed: int) -> None:
    """However the world churns, lists and records name the same files with the same stamps."""
    world = World(WorldPlan(files=30, seed=seed), Quirks(precision="micros"))
    rng = random.Random(seed)
    for _ in range(120):
        change_one(world, rng)
    assert world.index == sorted((record.updated, key) for key, record in world.records.items())
    assert sorted(key for keys in world.by_reference.values() for key in keys) == sorted(world.records)


def test_changes_stamp_and_show_what_they_did() -> None:
    """Create, update, close, reopen, delete and restore do what they are called."""
    emulator = Emulator(plan=WorldPlan(files=10, seed=2, now=NOW))
    world = emulator.world
    (key,) = world.create(scan_code="MINE")
    assert world.by_reference["MINE"] == [key]
    world.clock.advance(5)
    before = world.records[key].updated
    world.edit(key, "add-upload")
    assert world.records[key].updated == before + 5 * timestamps.SECOND
    (reopened,) = world.reopen([key])
    assert (world.records[key].closed, world.records[reopened].scan_code) == (1, "MINE")
    world.delete([key])
    assert world.find(key) is None
    world.restore([key], stamp=False)
    assert world.records[key].updated == before + 5 * timestamps.SECOND
    with pytest.raises(KeyError):
        world.delete([1])
    moment = timestamps.parse_timestamp("2026-01-01T00:00:00Z")
    world.touch(world.pick_random(8), moment)
    assert len(world.list_window(moment, moment)) == 8


def test_an_upload_that_was_referenced_early_arrives() -> None:
    """An id in entity_ids that no upload has yet gets its upload by the edit arrive."""
    emulator = Emulator(files=300, seed=4)
    for one in list(emulator.truth()):
        known = {upload["id"] for upload in one["detail"]["uploads"]}
        steps = [step for run in one["detail"]["workflow_runs"] for step in run["workflow_run_steps"]]
        missing = {item for step in steps for item in step["entity_ids"]} - known
        if missing:
            emulator.world.edit(one["key"], "arrive")
            record = emulator.world.records[one["key"]]
            assert missing <= {upload["id"] for upload in emulator.documents.build_detail(record)["uploads"]}
            return
    pytest.fail("no dangling reference among 300 files")


@every("text", ["2026-1-1", "tomorrow", "", "2026-01-01T24:00:00Z", "2026-01-01T10:00:60Z", "2026-13-01"])
def test_what_is_no_moment_is_refused(text: str) -> None:
    """Texts that name no moment raise ValueError."""
    with pytest.raises(ValueError, match=r".+"):
        timestamps.parse_timestamp(text)
