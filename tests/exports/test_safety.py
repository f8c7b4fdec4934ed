"""What a service, or somebody at the folder, may try: addresses, names, links, refusals, sizes."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from pipeline.emulator import Emulator, Quirks
from pipeline.errors import ContractBroken, LakeBusy, SettingsError, StorageError
from pipeline.exports.folder import held
from pipeline.exports.jobs import new_job
from tests.exports.exporting import (
    SEED,
    Manner,
    Wish,
    an_hour_later,
    check_folder,
    check_orders,
    listed,
    quick_client,
    reported,
)
from tests.processes import ended, started

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("place", ["query", "header"])
async def test_another_host_sees_nothing_of_ours(tmp_path: Path, place: str) -> None:
    """Reports on another port are fetched, and no token, cookie or referrer arrives there."""
    quirks = Quirks(report_host="other-port", report_disposition="traversal", report_not_ready="html-200")
    async with Emulator(120, seed=SEED, quirks=quirks) as emulator:
        await listed(emulator, tmp_path / "lake")
        client = quick_client(emulator, token_in=place)
        await reported(emulator, tmp_path / "lake", tmp_path / "out", client=client)
        assert emulator.counts["download"] == 2
        assert (emulator.leaks, emulator.strays) == ([], [])
        assert len(check_folder(tmp_path / "out")) == 120


async def test_the_emulator_would_tell_of_a_leak() -> None:
    """The watch can fail: a referrer sent to the other port is noted."""
    async with Emulator(1, seed=SEED) as emulator:
        client = quick_client(emulator)
        async with client:
            assert client._outside is not None
            headers = {"Referer": "http://here"}
            async with client._outside.get(f"{emulator.other_url}/reports/x/y", headers=headers):
                pass
        assert emulator.leaks == ["referer"]


async def test_a_report_that_redirects_elsewhere_is_named_and_exits_6(tmp_path: Path) -> None:
    """Its files are named as failed, the rest is delivered, the other host is not asked; the next run heals it."""
    async with Emulator(150, seed=SEED) as emulator:
        await listed(emulator, tmp_path / "lake")
        emulator.script("redirect", path="/reports/")
        command = ("report", "--where", "TRUE", "--out", str(tmp_path / "out"))
        code, text, err = await ended(await started(emulator, tmp_path / "lake", *command))
        assert code == 6, err
        assert emulator.strays == []
        assert "redirected to another host" in text
        assert len(check_folder(tmp_path / "out")) in {50, 100}
        code, _, _ = await ended(await started(emulator, tmp_path / "lake", *command))
        assert (code, emulator.counts["report"]) == (0, 2)


async def test_an_order_that_is_redirected_stops_the_run(tmp_path: Path) -> None:
    """The order's body is sent nowhere else; the contract is broken."""
    async with Emulator(30, seed=SEED) as emulator:
        await listed(emulator, tmp_path / "lake")
        emulator.script("redirect-307", path="/api/v2/reports")
        with pytest.raises(ContractBroken, match="redirected"):
            await reported(emulator, tmp_path / "lake", tmp_path / "out")
        assert (emulator.strays, emulator.leaks) == ([], [])


async def test_nothing_foreign_is_overwritten_and_no_link_is_followed(tmp_path: Path) -> None:
    """A symlink or a file that waits under a PDF's name stops the run and stays as it is; moved away, all is well."""
    target = tmp_path / "elsewhere"
    target.write_bytes(b"precious")
    async with Emulator(30, seed=SEED, quirks=Quirks(report_ready_seconds=3600.0)) as emulator:
        await listed(emulator, tmp_path / "lake")
        await reported(emulator, tmp_path / "lake", tmp_path / "out", manner=Manner(wait=0))
        emulator.set_quirks(report_ready_seconds=0.0)
        an_hour_later(tmp_path / "lake")
        trap = tmp_path / "out" / "report-0001.pdf"
        for lay in (lambda: trap.symlink_to(target), lambda: trap.write_bytes(b"mine")):
            lay()
            with pytest.raises(StorageError, match="not ours"):
                await _unwrapped(reported(emulator, tmp_path / "lake", tmp_path / "out"))
            trap.unlink()
        assert target.read_bytes() == b"precious"
        await reported(emulator, tmp_path / "lake", tmp_path / "out")
        assert len(check_folder(tmp_path / "out")) == 30


async def test_a_folder_that_holds_something_else_is_refused(tmp_path: Path) -> None:
    """Neither a folder with somebody's files nor one within the lake is taken, and nothing is ordered."""
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter.txt").write_text("dear")
    async with Emulator(30, seed=SEED) as emulator:
        await listed(emulator, tmp_path / "lake")
        for out in (tmp_path / "full", tmp_path / "lake" / "out"):
            process = await started(emulator, tmp_path / "lake", "report", "--where", "TRUE", "--out", str(out))
            code, _, err = await ended(process)
            assert code == 2, err
        assert emulator.counts["report"] == 0
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["letter.txt"]


async def test_a_job_that_is_not_begun_leaves_nothing(tmp_path: Path) -> None:
    """A selection of no file leaves no folder; one that was there stays, empty; a job that was begun keeps its own."""
    (tmp_path / "there").mkdir()
    async with Emulator(30, seed=SEED) as emulator:
        await listed(emulator, tmp_path / "lake")
        for out in (tmp_path / "new", tmp_path / "there"):
            with pytest.raises(SettingsError, match="empty"):
                await reported(emulator, tmp_path / "lake", out, Wish("where", sql="FALSE"))
        assert not (tmp_path / "new").exists()
        assert list((tmp_path / "there").iterdir()) == []
        await reported(emulator, tmp_path / "lake", tmp_path / "there")
        with pytest.raises(SettingsError, match="another selection"):
            await reported(emulator, tmp_path / "lake", tmp_path / "there", Wish("where", sql="FALSE"))
        assert len(check_folder(tmp_path / "there")) == 30


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    """A file in place of the folder, or above it, is a mistake in the command, and stays as it is."""
    (tmp_path / "letter.txt").write_text("dear")
    for out in (tmp_path / "letter.txt", tmp_path / "letter.txt" / "below"):
        with pytest.raises(SettingsError, match="is a file"), held(out, new_job()):
            pass
    assert (tmp_path / "letter.txt").read_text() == "dear"


def test_a_folder_is_held_by_one_run(tmp_path: Path) -> None:
    """A second run in the same folder is told so at once."""
    with held(tmp_path / "out", new_job()), pytest.raises(LakeBusy), held(tmp_path / "out", new_job()):
        pass


def test_a_file_in_the_folder_goes_through_no_link(tmp_path: Path) -> None:
    """Writes replace a link itself, never what it leads to; reads do not follow one."""
    target = tmp_path / "elsewhere"
    target.write_bytes(b"precious")
    with held(tmp_path / "out", new_job()) as folder:
        (tmp_path / "out" / "manifest.json").symlink_to(target)
        assert folder.digest("manifest.json") is None
        folder.write("manifest.json", b"{}")
    assert target.read_bytes() == b"precious"
    assert (tmp_path / "out" / "manifest.json").read_bytes() == b"{}"
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / ".scanlake-job").symlink_to(target)
    with pytest.raises(StorageError), held(tmp_path / "linked", new_job()):
        pass
    assert target.read_bytes() == b"precious"


def test_what_a_killed_run_left_is_swept(tmp_path: Path) -> None:
    """Files written aside go with the next run; what is not ours stays."""
    with held(tmp_path / "out", new_job()) as folder:
        for name in (".report-0001.pdf.123.aside", ".keep.aside"):
            (tmp_path / "out" / name).write_bytes(b"x")
        folder.sweep()
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [".keep.aside", ".scanlake-job"]


@pytest.mark.parametrize("status", ["422", "404"])
async def test_the_file_that_spoils_a_batch_is_found_and_named(tmp_path: Path, status: str) -> None:
    """Two of 230 files are gone at the service: their batches are halved until they stand alone; all others arrive."""
    async with Emulator(230, seed=SEED, quirks=Quirks(report_unknown_ids=status)) as emulator:  # type: ignore[arg-type]
        await listed(emulator, tmp_path / "lake")
        gone = sorted(emulator.world.keys())[17:160:142]
        emulator.world.delete(gone)
        command = ("report", "--where", "TRUE", "--out", str(tmp_path / "out"))
        code, text, err = await ended(await started(emulator, tmp_path / "lake", *command))
        assert code == 4, err
        held_files = check_folder(tmp_path / "out")
        assert len(held_files) == 228
        assert not set(gone) & set(held_files)
        assert all(f"file {key}: refused: NO FILE FOUND: {key}" in text for key in gone)
        assert emulator.counts["report"] < 3 + 2 * 2 * 8
        assert check_orders(emulator, tmp_path / "out") == 0


async def test_settings_that_every_order_is_refused_for_stop_early(tmp_path: Path) -> None:
    """A wrong time zone is not taken for 300 spoilt files: the run stops, and the folder takes mended settings."""
    async with Emulator(300, seed=SEED) as emulator:
        await listed(emulator, tmp_path / "lake")
        with pytest.raises(SettingsError, match="INVALID TIMEZONE"):
            await reported(emulator, tmp_path / "lake", tmp_path / "out", timezone="Mars/Olympus")
        assert emulator.counts["report"] <= 20
        done = await reported(emulator, tmp_path / "lake", tmp_path / "out", timezone="Europe/Berlin")
        assert not done.standing.failed
        assert len(done.standing.pdfs) == 3


async def test_a_report_past_its_cap_is_named(tmp_path: Path) -> None:
    """A PDF that is larger than allowed is not kept, and its files are named."""
    async with Emulator(30, seed=SEED) as emulator:
        await listed(emulator, tmp_path / "lake")
        manner = Manner(wait=5, max_bytes=500)
        done = await reported(emulator, tmp_path / "lake", tmp_path / "out", manner=manner)
    assert len(done.standing.failed) == 30
    assert "more than 500 bytes" in str(done.standing.failed[0].reason)
    assert check_folder(tmp_path / "out") == {}


async def test_changed_terms_in_the_same_folder_are_refused(tmp_path: Path) -> None:
    """A job is frozen: another selection or setting in its folder is refused, naming what differs."""
    async with Emulator(30, seed=SEED) as emulator:
        await listed(emulator, tmp_path / "lake")
        await reported(emulator, tmp_path / "lake", tmp_path / "out")
        with pytest.raises(SettingsError, match="another selection"):
            await reported(emulator, tmp_path / "lake", tmp_path / "out", Wish("where", sql="NOT closed"))
        with pytest.raises(SettingsError, match="another locale and another template"):
            await reported(emulator, tmp_path / "lake", tmp_path / "out", template=3, locale="de-DE")
        await listed(emulator, tmp_path / "lake2")
        with pytest.raises(SettingsError, match="another lake"):
            await reported(emulator, tmp_path / "lake2", tmp_path / "out")


async def test_services_without_the_asynchronous_way(tmp_path: Path) -> None:
    """A report that is made while its order waits arrives too, whichever way it was asked for."""
    async with Emulator(120, seed=SEED, quirks=Quirks(report_async="ignored", report_seconds=0.1)) as emulator:
        await listed(emulator, tmp_path / "lake")
        for place, way in (("a", True), ("b", False)):
            out = tmp_path / place
            await reported(emulator, tmp_path / "lake", out, manner=Manner(wait=5, asynchronous=way))
            assert len(check_folder(out)) == 120
        assert emulator.counts["poll"] == 0


async def test_a_full_disk_is_told_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No space for a PDF ends the run with what to do, leaves nothing half written, and the next run goes on."""
    real = os.write

    def full(descriptor: int, data: bytes) -> int:
        if bytes(data[:4]) == b"%PDF":
            raise OSError(28, "No space left on device")
        return real(descriptor, data)

    async with Emulator(30, seed=SEED) as emulator:
        await listed(emulator, tmp_path / "lake")
        with monkeypatch.context() as patch:
            patch.setattr("pipeline.exports.folder.os.write", full)
            with pytest.raises(StorageError, match="No space"):
                await _unwrapped(reported(emulator, tmp_path / "lake", tmp_path / "out"))
        assert [path.name for path in (tmp_path / "out").iterdir()] == [".scanlake-job"]
        await reported(emulator, tmp_path / "lake", tmp_path / "out")
        assert emulator.counts["report"] == 1


async def test_the_token_is_nowhere(tmp_path: Path, canary: str) -> None:
    """After reports and shares that failed in every way, no output, log, ledger or folder holds the token."""
    streams = ""
    log = ("--log-file", str(tmp_path / "log.jsonl"), "-v")
    async with Emulator(120, seed=SEED, token=canary) as emulator:
        await listed(emulator, tmp_path / "lake")
        for faults in ({"shares": {"echo-token": 0.6}, "paths": "/api"}, {"outage": True}, {}):
            emulator.set_faults(**{"shares": {}, "outage": False, "retry_after_seconds": 0, **faults})
            reference = next(iter(emulator.world.by_reference))
            for command in (
                ("report", "--where", "TRUE", "--out", str(tmp_path / "out")),
                ("share", reference, "--new"),
            ):
                process = await started(emulator, tmp_path / "lake", *command, *log, SCANLAKE_ATTEMPTS="2")
                _, out, err = await ended(process)
                streams += out + err
        assert emulator.struck["echo-token"]
    assert len(check_folder(tmp_path / "out")) == 120
    assert canary not in streams


async def _unwrapped(work: object) -> object:
    """Await, and raise the first error of ours out of a task group's, as the command does."""
    try:
        return await work  # type: ignore[misc]
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None
