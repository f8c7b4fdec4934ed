"""A run refuses another account's files, and no files of its own account, however these have changed."""

from __future__ import annotations

import json
from itertools import product
from typing import TYPE_CHECKING, Any, Final

import pytest

from pipeline.emulator import Emulator, make_quirks
from pipeline.errors import AuthenticationError, ProtocolError, SettingsError
from pipeline.lake.lake import Lake
from pipeline.lake.lookups import FileIdentity
from pipeline.sync import account_check
from pipeline.sync.verify import VerifyMode
from tests.rows import every
from tests.soaking import sample
from tests.stateful import lies
from tests.stateful.lies import Lie, LyingEmulator
from tests.sync.sync_harness import SEED, asked, check_equal, count_files, synced, tampered, verified

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

FILES: Final = 60
CREATED: Final[dict[str, Callable[[str], Any]]] = {
    "null": lambda _: None,
    "in seconds since 1970": lambda _: 1_700_000_000,
    "an hour later": lambda text: text[:11] + f"{(int(text[11:13]) + 1) % 24:02}" + text[13:],
    "in local words": lambda text: f"{text[8:10]}.{text[5:7]}.{text[:4]}",
}


_NOON: Final = 1_772_366_400_000_000  # 2026-03-01T12:00:00Z


@every(
    ("document", "is_same"),
    [
        ({"scan_code": "R1"}, True),
        ({"scan_code": "R1", "created_at": "2026-03-01T13:00:00Z"}, True),
        ({"scan_code": "R1", "created_at": "2026-03-01T13:00:00Z", "uploads": [{"id": 9}, {"id": 7}]}, True),
        ({"scan_code": "R1", "created_at": "2026-03-01T13:00:00Z", "uploads": [{"id": 9}]}, False),
        ({"scan_code": "R2", "created_at": "2026-03-01T12:00:00Z", "uploads": [{"id": 9}]}, False),
        ({"scan_code": "R2", "created_at": "2026-03-01T13:00:00Z", "uploads": [{"id": 7}]}, False),
        ({"scan_code": "R2"}, False),
        ({"scan_code": "R2", "created_at": "2026-03-01T12:00:00Z"}, True),
        ({"scan_code": "R2", "created_at": "2026-03-01T12:00:01Z"}, False),
        ({"scan_code": "R2", "created_at": None, "uploads": [{"id": 9}, {"id": 7}]}, True),
        ({"scan_code": "R2", "created_at": None, "uploads": [{"id": 9}, {"id": "8"}, {"id": {}}, None]}, False),
        ({"scan_code": "R2", "uploads": []}, False),
        ({"scan_code": "R2", "uploads": {"id": 7}}, False),
        ([], False),
    ],
)
def test_reference_creation_or_an_upload_prove_a_file(document: object, is_same: bool) -> None:  # noqa: FBT001
    """A file is the lake's by its reference, its creation or one of its uploads, unless the two others differ."""
    stored = FileIdentity("R1", _NOON, frozenset({7}))
    assert account_check._is_same_file(stored, json.dumps(document).encode()) is is_same
    nothing = FileIdentity(None, None)
    assert not account_check._is_same_file(nothing, json.dumps(document).encode())
    assert not account_check._is_same_file(None, json.dumps(document).encode())


@pytest.mark.parametrize(
    ("profile", "files", "fetch_details"),
    sample(product(("seen", "instances"), (1, 2, FILES), ("changed", "never")), 5),
)
async def test_another_account_is_refused(tmp_path: Path, profile: str, files: int, fetch_details: str) -> None:
    """With the token of another account, whose files have the same ids or others, nothing is mixed or removed."""
    quirks = make_quirks(profile)
    async with Emulator(files, seed=SEED, quirks=quirks) as emulator:
        await synced(emulator, tmp_path / "lake", fetch_details=fetch_details)
    async with Emulator(FILES, seed=SEED + 1, port=emulator.port, quirks=quirks) as other:
        other.world.update(other.world.pick_random(2))
        for attempt in (synced, verified):
            with pytest.raises(SettingsError, match=r"none of \d+ files? .* or every file was changed") as refused:
                await attempt(other, tmp_path / "lake", fetch_details=fetch_details)
            assert "verify --dry-run" in refused.value.hint
        assert other.counts["detail"] <= 40
    assert asked(tmp_path / "lake", "SELECT count(DISTINCT run_id), count(*) FROM file_version") == [(1, files)]


async def test_another_tenant_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where ids and update times coincide, the tenant of the uploads shows another account; nothing is stored.

    An account with a second tenant goes on, and --accept-deletions accepts another one.
    """
    new: list[int] = []

    def move(answer: lies.Answer) -> None:
        for upload in answer.body.get("uploads", ()):
            upload["tenant_id"] = 7

    monkeypatch.setitem(lies.DETAILS, "other", move)
    monkeypatch.setitem(lies.DETAILS, "second", lambda answer: move(answer) if answer.body.get("id") in new else None)
    versions = "SELECT count(DISTINCT run_id), count(*), sum(deleted) FROM file_version"
    async with LyingEmulator(FILES, seed=SEED) as emulator:
        lake, world = tmp_path / "lake", emulator.world
        await synced(emulator, lake)
        world.edit(world.keys()[0], "clear")  # without an upload it has no tenant
        gone = world.delete(world.pick_random(2))
        emulator.lies = [Lie("detail: other")]
        for attempt in (synced, verified, synced):
            with pytest.raises(SettingsError, match=r"tenant 7.* another account"):
                await attempt(emulator, lake)
            world.update(world.pick_random(2))
        assert asked(lake, versions) == [(1, FILES, 0)]
        emulator.lies = [Lie("detail: second")]
        new += world.create(2)
        await synced(emulator, lake)
        world.update(new)
        asked_before = emulator.counts["detail"]
        await synced(emulator, lake)
        assert emulator.counts["detail"] == asked_before + 2, "both tenants are known now"
        assert (await verified(emulator, lake)).deleted == len(gone)
        with tampered(lake) as ledger:
            ledger.execute("UPDATE lake_property SET value = '[1]' WHERE name = 'tenants'")
        world.update(new)
        with pytest.raises(SettingsError, match="another account"):
            await synced(emulator, lake)
        await verified(emulator, lake, VerifyMode(accept_deletions=True))
        world.update(new)
        await synced(emulator, lake)


@pytest.mark.parametrize("gone", ["the first", "the last", "the sampled"])
async def test_deleted_files_are_not_another_account(tmp_path: Path, gone: str) -> None:
    """A sync goes on when the oldest, the newest or exactly the sampled files of the lake were deleted."""
    async with LyingEmulator(FILES, seed=SEED) as emulator:
        await synced(emulator, tmp_path / "lake")
        keys = sorted(emulator.world.keys())
        with Lake(tmp_path / "lake", doing="test") as held:
            few, many = ([version.file_id for version in held.ledger.sample_files(count)] for count in (3, 20))
        assert few == keys[10::20], "evenly spread"
        emulator.world.delete({"the first": keys[:40], "the last": keys[-40:]}.get(gone, {*few, *many}))
        emulator.world.update(emulator.world.keys())
        await synced(emulator, tmp_path / "lake")


@pytest.mark.parametrize("name", CREATED)
async def test_another_spelling_of_a_time_is_not_another_account(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files whose `created_at` is spelled otherwise or shifted are known by their references."""

    def respell(answer: lies.Answer) -> None:
        for item in answer.body.get("data", [answer.body]):
            item["created_at"] = CREATED[name](item["created_at"])

    monkeypatch.setitem(lies.LISTS, "created", respell)
    monkeypatch.setitem(lies.DETAILS, "created", respell)
    async with LyingEmulator(FILES, seed=SEED) as emulator:
        await synced(emulator, tmp_path / "lake")
        emulator.world.update(emulator.world.keys())
        emulator.lies = [Lie("list: created"), Lie("detail: created")]
        await synced(emulator, tmp_path / "lake")


async def test_new_files_first_are_not_another_account(tmp_path: Path) -> None:
    """If the first page has new files only, the lake's files are found by their ids: one call."""
    async with Emulator(FILES, seed=SEED, quirks=make_quirks("seen", {"order": "updated-desc"})) as emulator:
        await synced(emulator, tmp_path / "lake")
        emulator.world.create(60)
        await synced(emulator, tmp_path / "lake")
        check_equal(tmp_path / "lake", emulator, history=True)
        assert emulator.counts["detail"] == FILES + 60 + 1


async def test_everything_has_changed(tmp_path: Path) -> None:
    """After all files were replaced, the named commands show and accept that, and syncs go on."""
    lake = tmp_path / "lake"
    async with Emulator(FILES, seed=SEED) as emulator:
        await synced(emulator, lake)
        old = list(emulator.world.keys())
        emulator.world.create(FILES)
        emulator.world.delete(old)
        with pytest.raises(SettingsError, match="none of 20 files"):
            await synced(emulator, lake)
        seen = await verified(emulator, lake, VerifyMode(check_only=True, accept_deletions=True))
        assert (seen.deleted, seen.consistent) == (FILES, False)
        await verified(emulator, lake, VerifyMode(accept_deletions=True))
        await synced(emulator, lake)
        check_equal(lake, emulator)


@pytest.mark.parametrize(
    ("files", "lost", "is_refused"), [(1, 1, True), (2, 2, True), (2, 1, False), (60, 51, True), (60, 50, False)]
)
async def test_sync_and_verify_refuse_the_same_losses(tmp_path: Path, files: int, lost: int, is_refused: bool) -> None:  # noqa: FBT001
    """Sync and verify end at the same losses: all files, or more than 50 that are more than 5 %."""
    async with Emulator(files, seed=SEED) as emulator:
        await synced(emulator, tmp_path / "lake")
        emulator.world.delete(sorted(emulator.world.keys())[:lost])
        for attempt in (synced, verified):
            if is_refused:
                with pytest.raises(ProtocolError, match="file"):
                    await attempt(emulator, tmp_path / "lake")
            else:
                await attempt(emulator, tmp_path / "lake")
        await verified(emulator, tmp_path / "lake", VerifyMode(accept_deletions=True))
        await synced(emulator, tmp_path / "lake")
    assert count_files(tmp_path / "lake") == files - lost


async def test_a_token_without_details_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A token that may list and must not read files by id is a refused token, not another account."""
    monkeypatch.setitem(lies.DETAILS, "forbidden", lambda answer: answer.say({"status": "Forbidden"}, 403))
    async with LyingEmulator(FILES, seed=SEED) as emulator:
        await synced(emulator, tmp_path / "lake")
        emulator.world.create(FILES)
        emulator.lies = [Lie("detail: forbidden")]
        with pytest.raises(AuthenticationError, match="403"):
            await synced(emulator, tmp_path / "lake")
