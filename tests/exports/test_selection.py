"""What a person can say to select files, on a published lake."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from pipeline.emulator import Emulator
from pipeline.errors import SettingsError
from pipeline.exports.selection import Chosen, Wish, choose, in_words, references
from pipeline.published import published
from pipeline.settings import Settings
from tests.exports.exporting import SEED, listed

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


_HELD: Final = "SELECT file_id FROM held WHERE closed"


async def select(tmp_path: Path, *wishes: Wish) -> list[Sequence[Chosen] | str]:
    """What each wish selects of forty files, or what it is told."""
    async with Emulator(40, seed=SEED) as emulator:
        await listed(emulator, tmp_path / "lake")
    found: list[Sequence[Chosen] | str] = []
    for wish in wishes:
        with published(Settings(lake=tmp_path / "lake")) as lake:
            try:
                found.append(choose(lake, wish))
            except SettingsError as error:
                found.append(error.message)
    return found


async def test_every_way_to_say_it(tmp_path: Path) -> None:
    """A condition, a query in any spelling, ids: the same files come in the same order, each once."""
    plain, *others = await select(
        tmp_path,
        Wish("where", sql="closed -- the closed ones"),
        Wish("sql", sql="SELECT file_id FROM files WHERE closed;"),
        Wish("sql", sql="FROM files SELECT closed, file_id AS id WHERE closed"),
        Wish("sql", sql=f"WITH held AS (FROM files) {_HELD} UNION ALL {_HELD} ORDER BY random()"),
        Wish("sql", sql='SELECT CAST(file_id AS VARCHAR) AS "any ""name" FROM files WHERE closed -- no more'),
    )
    assert plain
    assert [other == plain or other for other in others] == [True] * 4
    ids = [each.file_id for each in plain if isinstance(each, Chosen)]
    assert ids == sorted(set(ids))  # type: ignore[type-var]


async def test_what_cannot_be_selected(tmp_path: Path) -> None:
    """Wrong SQL, no id among the columns, ids that are none, and nothing at all are told before anything is asked."""
    said = await select(
        tmp_path,
        Wish("where", sql="colour = 'red'"),
        Wish("where", sql="closed) UNION SELECT (1"),
        Wish("sql", sql="SELECT scan_code, closed FROM files"),
        Wish("sql", sql="SELECT scan_code AS file_id FROM files"),
        Wish("sql", sql="SELECT file_id FROM read_csv('/etc/passwd')"),
        Wish("where", sql="FALSE"),
        Wish("where", sql="TRUE", group_by="nothing"),
    )
    assert all(isinstance(each, str) for each in said)
    assert "colour" in said[0]
    assert "file_id or id" in said[2]
    assert "empty" in said[5]


async def test_what_is_not_there_comes_last_with_its_reason(tmp_path: Path) -> None:
    """Unknown ids and references are part of the selection, named; a reference means every file that bears it."""
    async with Emulator(80, seed=SEED) as emulator:
        await listed(emulator, tmp_path / "lake")
        shared, keys = next((each, keys) for each, keys in emulator.world.by_reference.items() if len(keys) > 1)
        with published(Settings(lake=tmp_path / "lake")) as lake:
            by_id = choose(lake, Wish("ids", ids=(5, keys[0], 5)))
        with published(Settings(lake=tmp_path / "lake")) as lake:
            by_reference = choose(lake, Wish("reference", references=(shared, "NOPE", shared)))
            assert set(references(lake, "TRUE")) == set(emulator.world.by_reference)
    assert [(each.file_id, each.reason) for each in by_id] == [(keys[0], None), (5, "not in the lake")]
    assert [each.file_id for each in by_reference] == [*sorted(keys), None]
    assert in_words(by_reference) == ["reference NOPE: no file of this reference in the lake"]


async def test_a_null_group_is_a_group(tmp_path: Path) -> None:
    """Files without a value of the grouping stay together, under a name of their own."""
    (found,) = await select(tmp_path, Wish("where", sql="TRUE", group_by="CASE WHEN closed THEN 'x' END"))
    groups = [each.group for each in found if isinstance(each, Chosen)]
    assert set(groups) == {"NULL", "x"}
    assert groups == sorted(groups)  # type: ignore[type-var]


@pytest.mark.parametrize("ids", [(), (7,)])
async def test_nothing_known_is_selected(tmp_path: Path, ids: tuple[int, ...]) -> None:
    """An empty list is refused; a list of unknown ids selects them as what cannot be ordered."""
    (found,) = await select(tmp_path, Wish("ids", ids=ids))
    assert isinstance(found, str) if not ids else all(each.reason for each in found if isinstance(each, Chosen))
