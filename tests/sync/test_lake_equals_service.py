"""The lake equals the service: table by table and value by value, for every answer the interface leaves open."""

from __future__ import annotations

import typing

import pytest

from pipeline.emulator import PROFILES, Emulator, Quirks, WorldPlan, make_quirks
from pipeline.errors import ProtocolError
from tests.soaking import SOAKING
from tests.sync.sync_harness import SEED, asked, check_equal, opened, synced

if typing.TYPE_CHECKING:
    from pathlib import Path

FILES = 60
NOT_OF_SYNC = ("report_", "bad_token_", "windows", "not_found", "token_location", "decimals")
INDEPENDENT = frozenset(
    "per_page times precision ids flags empties extra_keys dangling form_layout lang_texts image_urls gzip definitions"
    " identifiers answer_values escapes detail_wrap detail_keys detail_forms detail_geocoding".split()
)
"""Options that hide no other one's effect: the everyday suite takes one answer of each together."""


def _answers() -> list[dict[str, object]]:
    """Every option of the emulator with every value but the default, and some for the numeric ones."""
    found: list[dict[str, object]] = [
        {"page_cap": 7},
        {"late_commit_seconds": 1.0},
        {"date_skew_seconds": 90.0},
        {"date_skew_seconds": -90.0},
    ]
    together: list[dict[str, object]] = [{}, {}, {}]
    defaults = Quirks()
    for name, hint in typing.get_type_hints(Quirks).items():
        if not name.startswith(NOT_OF_SYNC):
            words = [word for word in typing.get_args(hint) if word != getattr(defaults, name)]
            if name in INDEPENDENT and not SOAKING:
                for group, word in zip(together, words, strict=False):
                    group[name] = word
                words = words[len(together) :]
            found += [{name: word} for word in words]
    return found + [group for group in together if group]


async def _check(lake: Path, quirks: Quirks, **settings: typing.Any) -> None:
    async with Emulator(FILES, seed=SEED, quirks=quirks) as emulator:
        summary = await synced(emulator, lake, **settings)
        assert summary.details_fetched == len(list(emulator.truth()))
        check_equal(lake, emulator)
    assert asked(lake, "SELECT count(*) FROM reject") == [(0,)]
    with opened(lake) as db:
        assert db.execute("SELECT count(*) FROM files WHERE NOT _has_detail").fetchone() == (0,)


@pytest.mark.parametrize("answers", _answers(), ids=lambda answers: " ".join(f"{k}={v}" for k, v in answers.items()))
async def test_every_open_answer(tmp_path: Path, answers: dict[str, object]) -> None:
    """Whatever the service answers where the interface is silent, the lake holds what the service holds."""
    await _check(tmp_path / "lake", make_quirks("seen", answers))


@pytest.mark.parametrize("profile", PROFILES)
async def test_every_profile(tmp_path: Path, profile: str) -> None:
    """Answers that come together in a profile are taken together too, also a token that only the header may have."""
    settings = {"token_location": "header"} if profile == "contrary" else {}
    await _check(tmp_path / "lake", make_quirks(profile), **settings)


async def test_windows_ignored(tmp_path: Path) -> None:
    """A service that ignores the update filters cannot be copied completely, and the run says so at once."""
    async with Emulator(400, seed=SEED, quirks=make_quirks("seen", {"windows": "ignored"})) as emulator:
        with pytest.raises(ProtocolError, match="updated_start"):
            await synced(emulator, tmp_path / "lake")
        assert emulator.counts["list"] < 40


@pytest.mark.parametrize("spread", ["even", "burst", "same-second"])
async def test_every_spread(tmp_path: Path, spread: typing.Literal["even", "burst", "same-second"]) -> None:
    """However the files lie in time, all of them arrive."""
    async with Emulator(plan=WorldPlan(files=260, seed=SEED, spread=spread)) as emulator:
        await synced(emulator, tmp_path / "lake")
        check_equal(tmp_path / "lake", emulator)
