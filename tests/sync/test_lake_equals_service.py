"""The lake equals the service: table by table and value by value, for every answer the interface leaves open."""

from __future__ import annotations

import typing
from itertools import zip_longest

import pytest

from pipeline.emulator import PROFILES, Emulator, Quirks, WorldPlan, make_quirks
from tests.soaking import SOAKING
from tests.sync.sync_harness import SEED, asked, check_equal, opened, synced, verified

if typing.TYPE_CHECKING:
    from pathlib import Path

FILES = 60
OTHERS = ("report_", "bad_token_", "windows", "not_found", "token_location", "decimals", "lang_texts", "instances")
"""Options that a sync does not meet, or only with others; other tests have them."""
NUMBERS: dict[str, list[object]] = {
    "page_cap": [7],
    "late_commit_seconds": [1.0],
    "date_skew_seconds": [90.0, -90.0],
}
SPREADS: dict[str, typing.Any] = {"plain": "burst", "sparse": "even", "instances": "same-second"}


def _answers() -> list[dict[str, object]]:
    """Every option of the emulator with every value but the default: the nth values of all options together."""
    alone, defaults = [], Quirks()
    for name, hint in typing.get_type_hints(Quirks).items():
        if not name.startswith(OTHERS):
            words = NUMBERS.get(name) or [word for word in typing.get_args(hint) if word != getattr(defaults, name)]
            alone.append([(name, word) for word in words])
    if SOAKING:
        return [dict([pair]) for pairs in alone for pair in pairs]
    return [dict(filter(None, pairs)) for pairs in zip_longest(*alone)]


async def _check(lake: Path, plan: WorldPlan, quirks: Quirks, **settings: typing.Any) -> None:
    async with Emulator(plan=plan, quirks=quirks) as emulator:
        summary = await synced(emulator, lake, **settings)
        assert summary.details_fetched == len(list(emulator.truth()))
        check_equal(lake, emulator)
        assert asked(lake, "SELECT count(*) FROM reject") == [(0,)]
        with opened(lake) as db:
            assert db.execute("SELECT count(*) FROM files WHERE NOT _has_detail").fetchone() == (0,)
        emulator.world.delete(emulator.world.pick_random(5))
        proof = await verified(emulator, lake, **settings)
        assert (proof.deleted, proof.consistent) == (5, True)
        check_equal(lake, emulator, history=True)


@pytest.mark.parametrize("answers", _answers(), ids=lambda answers: " ".join(map(str, answers.values()))[:60])
async def test_every_open_answer(lake: Path, answers: dict[str, object]) -> None:
    """Whatever the service answers where the interface is silent, the lake holds what the service holds."""
    await _check(lake, WorldPlan(files=FILES, seed=SEED), make_quirks("seen", answers))


@pytest.mark.parametrize("profile", PROFILES)
async def test_every_profile(lake: Path, profile: str) -> None:
    """Answers that come together in a profile are taken together too, however the files lie in time.

    A verify finds deletions under each of them, also with a token that only the header may have.
    """
    settings = {"token_location": "header"} if profile == "contrary" else {}
    plan = WorldPlan(files=FILES, seed=SEED, spread=SPREADS.get(profile, "natural"))
    await _check(lake, plan, make_quirks(profile), **settings)
