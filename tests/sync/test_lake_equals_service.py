"""The lake equals the service: table by table and value by value, for every answer the interface leaves open."""

from __future__ import annotations

import os
import typing

import pytest

from pipeline.emulator import PROFILES, Emulator, Quirks, WorldPlan, make_quirks
from pipeline.errors import ProtocolError
from tests.oracle import differences
from tests.sync.sync_harness import SEED, opened, synced

if typing.TYPE_CHECKING:
    from pathlib import Path

FILES = 90
NOT_OF_SYNC = ("report_", "bad_token_", "windows", "not_found", "token_location", "decimals")
INDEPENDENT = frozenset(
    "per_page times precision ids flags empties extra_keys dangling form_layout lang_texts image_urls gzip".split()
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
            if name in INDEPENDENT and "SOAK_EXAMPLES" not in os.environ:
                for group, word in zip(together, words, strict=False):
                    group[name] = word
                words = words[len(together) :]
            found += [{name: word} for word in words]
    return found + [group for group in together if group]


async def _check(lake: Path, quirks: Quirks, **settings: typing.Any) -> None:
    async with Emulator(FILES, seed=SEED, quirks=quirks) as emulator:
        summary = await synced(emulator, lake, **settings)
        truth = list(emulator.truth())
    assert summary.details_fetched == len(truth)
    with opened(lake) as db:
        assert differences(db, truth) == []
        assert db.execute("SELECT count(*) FROM files WHERE NOT _has_detail").fetchone() == (0,)
        assert db.execute("SELECT count(*) FROM meta.rejects").fetchone() == (0,)


@pytest.mark.parametrize("answers", _answers(), ids=lambda answers: " ".join(f"{k}={v}" for k, v in answers.items()))
async def test_every_open_answer(tmp_path: Path, answers: dict[str, object]) -> None:
    """Whatever the service answers where the interface is silent, the lake holds what the service holds."""
    await _check(tmp_path / "lake", make_quirks("seen", answers))


@pytest.mark.parametrize("profile", [name for name in PROFILES if name != "contrary"])
async def test_every_profile(tmp_path: Path, profile: str) -> None:
    """Answers that come together in a profile are taken together too."""
    await _check(tmp_path / "lake", make_quirks(profile))


@pytest.mark.parametrize("profile", ["contrary"])
async def test_token_in_the_header(tmp_path: Path, profile: str) -> None:
    """A service that takes the token only as a header is synced with token_location = "header"."""
    await _check(tmp_path / "lake", make_quirks(profile), token_location="header")


async def test_windows_ignored(tmp_path: Path) -> None:
    """A service that ignores the update filters cannot be copied completely, and the run says so at once."""
    async with Emulator(400, seed=SEED, quirks=make_quirks("seen", {"windows": "ignored"})) as emulator:
        with pytest.raises(ProtocolError, match="updated_start"):
            await synced(emulator, tmp_path / "lake")
        assert emulator.counts["list"] < 40


@pytest.mark.parametrize("spread", ["even", "burst", "same-second"])
async def test_every_spread(tmp_path: Path, spread: typing.Literal["even", "burst", "same-second"]) -> None:
    """However the files lie in time, all of them arrive."""
    async with Emulator(plan=WorldPlan(files=700, seed=SEED, spread=spread)) as emulator:
        await synced(emulator, tmp_path / "lake")
        truth = list(emulator.truth())
    with opened(tmp_path / "lake") as db:
        assert differences(db, truth) == []


async def test_lang_is_sent_and_heeded(tmp_path: Path) -> None:
    """With a lang set, list and detail are asked in it and the lake holds its texts."""
    async with Emulator(FILES, seed=SEED) as emulator:
        await synced(emulator, tmp_path / "plain")
        await synced(emulator, tmp_path / "german", lang="de")
    texts = "SELECT DISTINCT damage_type_desc FROM uploads WHERE damage_type_desc <> '' ORDER BY 1"
    with opened(tmp_path / "plain") as plain, opened(tmp_path / "german") as german:
        assert plain.execute(texts).fetchall() != german.execute(texts).fetchall()
