"""The lake equals the service: table by table and value by value, for every answer the interface leaves open."""

from __future__ import annotations

import typing

import pytest

from pipeline.emulator import PROFILES, Emulator, Quirks, WorldPlan, quirks_of
from pipeline.errors import ContractBroken
from tests.oracle import differences
from tests.sync.running import SEED, opened, synced

if typing.TYPE_CHECKING:
    from pathlib import Path

FILES = 90
NOT_OF_SYNC = ("report_", "bad_token_", "windows", "gone", "token_place")


def _answers() -> list[tuple[str, object]]:
    """Every option of the emulator with every value but the default, and some for the numeric ones."""
    found: list[tuple[str, object]] = [
        ("page_cap", 7),
        ("late_commit_seconds", 0.0),
        ("date_skew_seconds", 90.0),
        ("date_skew_seconds", -90.0),
    ]
    defaults = Quirks()
    for name, hint in typing.get_type_hints(Quirks).items():
        if not name.startswith(NOT_OF_SYNC):
            words = [word for word in typing.get_args(hint) if word != getattr(defaults, name)]
            found += [(name, word) for word in words]
    return found


async def _check(lake: Path, quirks: Quirks, **settings: typing.Any) -> None:
    async with Emulator(FILES, seed=SEED, quirks=quirks) as emulator:
        summary = await synced(emulator, lake, **settings)
        truth = list(emulator.truth())
    assert summary.files_expanded == len(truth)
    with opened(lake) as db:
        assert differences(db, truth) == []
        assert db.execute("SELECT count(*) FROM files WHERE NOT _expanded").fetchone() == (0,)
        assert db.execute("SELECT count(*) FROM meta.rejects").fetchone() == (0,)


@pytest.mark.parametrize(("name", "answer"), _answers(), ids=str)
async def test_every_open_answer(tmp_path: Path, name: str, answer: object) -> None:
    """Whatever the service answers where the interface is silent, the lake holds what the service holds."""
    await _check(tmp_path / "lake", quirks_of("seen", {name: answer}))


@pytest.mark.parametrize("profile", [name for name in PROFILES if name != "contrary"])
async def test_every_profile(tmp_path: Path, profile: str) -> None:
    """Answers that come together in a profile are taken together too."""
    await _check(tmp_path / "lake", quirks_of(profile))


@pytest.mark.parametrize("profile", ["contrary"])
async def test_token_in_the_header(tmp_path: Path, profile: str) -> None:
    """A service that takes the token only as a header is synced with token_in = "header"."""
    await _check(tmp_path / "lake", quirks_of(profile), token_in="header")


async def test_windows_ignored(tmp_path: Path) -> None:
    """A service that ignores the update filters cannot be copied completely, and the run says so at once."""
    async with Emulator(400, seed=SEED, quirks=quirks_of("seen", {"windows": "ignored"})) as emulator:
        with pytest.raises(ContractBroken, match="updated_start"):
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
