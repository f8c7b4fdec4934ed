"""A run refuses another account's files, and no files of its own account, however these have changed."""

from __future__ import annotations

import json
from itertools import product
from typing import TYPE_CHECKING, Any, Final

import pytest

from pipeline.client.errors import RetriesExhaustedError
from pipeline.emulator import Emulator, make_quirks
from pipeline.errors import AuthenticationError, ProtocolError, SettingsError
from pipeline.lake.catalog.documents import FileIdentity
from pipeline.lake.lake import Lake
from pipeline.sync import service_checks
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
ACCEPTED: Final = VerifyMode(accept_deletions=True)
VERSIONS: Final = "SELECT count(DISTINCT run_id), count(*), sum(deleted) FROM file_version"
_NOON: Final = 1_772_366_400_000_000  # 2026-03-01T12:00:00Z


@every(
    ("reference", "created_at", "uploads", "is_same"),
    [
        ("R1", "", [], True),
        ("R1", "2026-03-01T13:00:00Z", [], True),
        ("R1", "2026-03-01T13:00:00Z", [{"id": 9}, {"id": 7}], True),
        ("R1", "2026-03-01T13:00:00Z", [{"id": 9}], False),
        ("R2", "2026-03-01T12:00:00Z", [{"id": 9}], False),
        ("R2", "2026-03-01T13:00:00Z", [{"id": 7}], False),
        ("R2", "", [], False),
        ("R2", "2026-03-01T12:00:00Z", [], True),
        ("R2", "2026-03-01T12:00:01Z", [], False),
        ("R2", None, [{"id": 9}, {"id": 7}], True),
        ("R2", None, [{"id": 9}, {"id": "8"}, {"id": {}}, None], False),
        ("R2", None, {"id": 7}, False),
    ],
)
def test_reference_creation_or_an_upload_prove_a_file(
    reference: str,
    created_at: str | None,
    uploads: Any,
    is_same: bool,  # noqa: FBT001
) -> None:
    """A file is the lake's by its reference, its creation or one of its uploads, unless the two others differ."""
    document = json.dumps({"scan_code": reference, "created_at": created_at, "uploads": uploads}).encode()
    stored = FileIdentity("R1", _NOON, frozenset({7}))
    assert service_checks._is_same_file(stored, document) is is_same
    assert not any(service_checks._is_same_file(stored, raw) for raw in (b"[]", b'{"scan_code": "R1"'))
    assert not service_checks._is_same_file(FileIdentity(None, None), document)
    assert not service_checks._is_same_file(None, document)


@pytest.mark.parametrize(
    ("profile", "files", "fetch_details"),
    sample(product(("seen", "instances"), (1, 2, FILES), ("changed", "never")), 4),
)
async def test_another_account_is_refused(lake: Path, profile: str, files: int, fetch_details: str) -> None:
    """With the token of another account, whose files have the same ids or others, nothing is mixed or removed."""
    quirks = make_quirks(profile)
    async with Emulator(files, seed=SEED, quirks=quirks) as emulator:
        await synced(emulator, lake, fetch_details=fetch_details)
    async with Emulator(FILES, seed=SEED + 1, port=emulator.port, quirks=quirks) as other:
        other.world.update(other.world.pick_random(2))
        for attempt in (synced, verified):
            with pytest.raises(SettingsError, match=r"none of \d+ files? .* or every file was changed") as refused:
                await attempt(other, lake, fetch_details=fetch_details)
            assert "verify --dry-run" in refused.value.hint
        assert other.counts["detail"] <= 40
    assert asked(lake, VERSIONS) == [(1, files, 0)]


async def test_another_tenant_is_refused(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where ids and update times coincide, the tenant of the uploads shows another account; nothing is stored.

    An account with a second tenant goes on, and --accept-deletions accepts another one. An outage shows none.
    """
    new: list[int] = []

    def move(answer: lies.Answer) -> None:
        for upload in answer.body.get("uploads", ()):
            upload["tenant_id"] = 7

    monkeypatch.setitem(lies.DETAILS, "other", move)

    def fail(answer: lies.Answer) -> None:
        move(answer) if answer.body["id"] in new else answer.say({"status": "went wrong"}, 500)

    monkeypatch.setitem(lies.DETAILS, "failing", fail)
    monkeypatch.setitem(lies.DETAILS, "second", lambda answer: move(answer) if answer.body.get("id") in new else None)
    async with LyingEmulator(FILES, seed=SEED) as emulator:
        world = emulator.world
        await synced(emulator, lake)
        new += world.update(world.pick_random(2))
        emulator.lies = [Lie("detail: failing")]
        with pytest.raises(RetriesExhaustedError, match="went wrong"):
            await synced(emulator, lake, max_attempts=1)
        new.clear()
        world.edit(world.keys()[0], "clear")  # without an upload it has no tenant
        gone = world.delete(world.pick_random(2))
        emulator.lies = [Lie("detail: other")]
        for attempt in (synced, verified, synced):
            with pytest.raises(SettingsError, match=r"tenant 7.* another account"):
                await attempt(emulator, lake)
            world.update(world.pick_random(2))
        assert asked(lake, VERSIONS) == [(1, FILES, 0)]
        emulator.lies = [Lie("detail: second")]
        new += world.create(2)
        world.clock.advance(3)
        await synced(emulator, lake)
        world.update(new)
        asked_before = emulator.counts["detail"]
        await synced(emulator, lake)
        assert emulator.counts["detail"] == asked_before + 2, "both tenants are known now"
        assert (await verified(emulator, lake)).deleted == len(gone)
        with tampered(lake) as ledger:
            ledger.execute("UPDATE lake_property SET value = '[1]' WHERE name = 'tenants'")
        await verified(emulator, lake, ACCEPTED)
        world.update(new)
        await synced(emulator, lake)


async def test_few_files_with_uploads_show_another_tenant(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where 57 of 60 files have no uploads, the details that a sync is about to store show another account."""

    def change_tenant(answer: lies.Answer) -> None:
        for upload in answer.body.get("uploads", ()):
            upload["tenant_id"] = 7

    monkeypatch.setitem(lies.DETAILS, "other", change_tenant)
    async with LyingEmulator(FILES, seed=SEED) as emulator:
        keys = sorted(emulator.world.keys())
        for key in keys[:57]:
            emulator.world.edit(key, "clear")
        await synced(emulator, lake)
        emulator.lies = [Lie("detail: other")]
        emulator.world.update(keys[57:])
        with pytest.raises(SettingsError, match=r"tenant 7, and none of tenant \d+"):
            await synced(emulator, lake)
    assert asked(lake, VERSIONS) == [(1, FILES, 0)]


async def test_deleted_files_are_not_another_account(lake: Path) -> None:
    """A sync goes on when the oldest, the newest or exactly the sampled files of the lake were deleted."""
    async with LyingEmulator(FILES, seed=SEED) as emulator:
        await synced(emulator, lake)
        world, keys = emulator.world, sorted(emulator.world.keys())
        with Lake(lake, doing="test") as held:
            few, many = ([version.file_id for version in held.ledger.sample_files(count)] for count in (3, 20))
        assert few == keys[10::20], "evenly spread"
        for gone in (keys[:40], keys[-40:], sorted({*few, *many})):
            world.delete(gone)
            world.update(world.keys())
            await synced(emulator, lake)
            world.restore(gone, stamp=True)
            await synced(emulator, lake)


async def test_another_spelling_of_a_time_is_not_another_account(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files whose `created_at` is spelled otherwise or shifted are known by their references."""
    spelling = list(CREATED)[:1]

    def respell(answer: lies.Answer) -> None:
        for item in answer.body.get("data", [answer.body]):
            item["created_at"] = CREATED[spelling[0]](item["created_at"])

    monkeypatch.setitem(lies.LISTS, "created", respell)
    monkeypatch.setitem(lies.DETAILS, "created", respell)
    async with LyingEmulator(10, seed=SEED) as emulator:
        await synced(emulator, lake)
        for spelling[0] in CREATED:
            emulator.world.update(emulator.world.keys())
            emulator.lies = [Lie("list: created"), Lie("detail: created")]
            assert (await synced(emulator, lake)).details_fetched == 10, spelling


async def test_new_files_first_are_not_another_account(lake: Path) -> None:
    """If the first page has new files only, the lake's files are found by their ids: one call."""
    async with Emulator(10, seed=SEED, quirks=make_quirks("seen", {"order": "updated-desc"})) as emulator:
        await synced(emulator, lake)
        emulator.world.create(60)
        await synced(emulator, lake)
        check_equal(lake, emulator, history=True)
        assert emulator.counts["detail"] == 10 + 60 + 1


@pytest.mark.parametrize("fetch_details", ["changed", "never"])
async def test_an_outage_is_not_another_account(
    lake: Path, fetch_details: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the lake's files cannot be looked for, the run fails with that and stores nothing: an outage shows nothing.

    One file that is found among a few failing calls, by its id or by its reference, is enough.
    """
    failed, failures = 0, 0

    def fail(answer: lies.Answer) -> None:
        nonlocal failed
        found = answer.body.get("data", [answer.body])
        if failed < failures and len(found) == 1 and found[0]["id"] in old:
            failed += 1
            answer.say({"status": "went wrong"}, 500)

    monkeypatch.setitem(lies.DETAILS, "fail", fail)
    monkeypatch.setitem(lies.LISTS, "fail", fail)
    quirks = make_quirks("seen", {"order": "updated-desc"})
    options: dict[str, Any] = {"fetch_details": fetch_details, "max_attempts": 1}
    async with LyingEmulator(FILES, seed=SEED, quirks=quirks) as emulator:
        await synced(emulator, lake, **options)
        old = set(emulator.world.keys())
        emulator.world.create(60)
        emulator.lies = [Lie("detail: fail"), Lie("list: fail")]
        failures = 9
        with pytest.raises(RetriesExhaustedError, match="went wrong"):
            await synced(emulator, lake, **options)
        assert (failed, asked(lake, VERSIONS)) == (3, [(1, FILES, 0)])
        failed, failures = 0, 2
        await synced(emulator, lake, **options)
        assert (failed, count_files(lake)) == (2, FILES + 60)


async def test_everything_has_changed(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After all files were replaced, the named commands show and accept that, and syncs go on.

    A token that may list and must not read files by id is a refused token, not another account.
    """
    monkeypatch.setitem(lies.DETAILS, "forbidden", lambda answer: answer.say({"status": "Forbidden"}, 403))
    async with LyingEmulator(FILES, seed=SEED) as emulator:
        await synced(emulator, lake)
        old = list(emulator.world.keys())
        emulator.world.create(FILES)
        emulator.lies = [Lie("detail: forbidden")]
        with pytest.raises(AuthenticationError, match="403"):
            await synced(emulator, lake)
        emulator.lies = []
        emulator.world.delete(old)
        with pytest.raises(SettingsError, match="none of 20 files"):
            await synced(emulator, lake)
        seen = await verified(emulator, lake, VerifyMode(check_only=True, accept_deletions=True))
        assert (seen.deleted, seen.consistent) == (FILES, False)
        await verified(emulator, lake, ACCEPTED)
        await synced(emulator, lake)
        check_equal(lake, emulator)


async def test_sync_and_verify_refuse_the_same_losses(tmp_path: Path) -> None:
    """Sync and verify end at the same losses: all files, or more than 50 that are more than 5 %."""
    refusals = {}
    for files, lost in ((1, 1), (2, 2), (2, 1), (60, 51), (60, 50)):
        lake = tmp_path / f"{lost} of {files}"
        async with Emulator(files, seed=SEED) as emulator:
            await synced(emulator, lake)
            emulator.world.delete(sorted(emulator.world.keys())[:lost])
            for attempt in (synced, verified):
                try:
                    await attempt(emulator, lake)
                except ProtocolError:
                    refusals[files, lost, attempt] = count_files(lake)
            await verified(emulator, lake, ACCEPTED)
            await synced(emulator, lake)
            assert count_files(lake) == files - lost
    assert refusals == {
        (*case, attempt): case[0] for case in ((1, 1), (2, 2), (60, 51)) for attempt in (synced, verified)
    }
