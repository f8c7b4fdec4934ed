"""Hostile services and folders: URLs, names, links, rejections, sizes."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from pipeline.atomic_files import temp_name
from pipeline.emulator import Emulator, Quirks
from pipeline.errors import LakeLockedError, ProtocolError, SettingsError, StorageError
from pipeline.reports.folder import open_job_folder
from schemas.timestamps import new_run_id
from tests.constants import set_run_constants
from tests.processes import ended, ran, started
from tests.reports.report_harness import (
    SEED,
    RunOptions,
    Selection,
    age_orders_by_an_hour,
    check_folder,
    check_orders,
    quick_client,
    run_report,
    sync_lists,
)

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("token_location", ["query", "header"])
async def test_another_host_gets_no_secret(tmp_path: Path, token_location: str) -> None:
    """Reports on another port are downloaded, and no token, cookie or referrer is sent there."""
    quirks = Quirks(report_host="other-port", report_disposition="traversal", report_not_ready="html-200")
    async with Emulator(120, seed=SEED, quirks=quirks) as emulator:
        await sync_lists(emulator, tmp_path / "lake")
        client = quick_client(emulator, token_location=token_location)
        await run_report(emulator, tmp_path / "lake", tmp_path / "out", client=client)
        assert emulator.counts["download"] == 2
        assert (emulator.leaks, emulator.strays) == ([], [])
        assert len(check_folder(tmp_path / "out")) == 120


async def test_the_emulator_records_leaks() -> None:
    """The check for leaks can fail: the emulator records a referrer on the other port."""
    async with Emulator(1, seed=SEED) as emulator:
        client = quick_client(emulator)
        async with client:
            assert client._downloader.session is not None
            headers = {"Referer": "http://here"}
            async with client._downloader.session.get(f"{emulator.other_url}/reports/x/y", headers=headers):
                pass
        assert emulator.leaks == ["referer"]


async def test_a_report_that_redirects_elsewhere_is_named_and_exits_6(tmp_path: Path) -> None:
    """Its files fail, all others are delivered, the other host gets no request; the next run delivers all."""
    async with Emulator(150, seed=SEED) as emulator:
        await sync_lists(emulator, tmp_path / "lake")
        emulator.script("redirect", path="/reports/")
        command = ("report", "--where", "TRUE", "--out", str(tmp_path / "out"))
        code, text, err = await ran(emulator, tmp_path / "lake", *command)
        assert code == 6, err
        assert emulator.strays == []
        assert "redirected to another host" in text
        assert len(check_folder(tmp_path / "out")) in {50, 100}
        code, _, _ = await ran(emulator, tmp_path / "lake", *command)
        assert (code, emulator.counts["report"]) == (0, 2)


async def test_a_redirected_order_stops_the_run(tmp_path: Path) -> None:
    """The order's body is not sent to another address: a redirect is a protocol error."""
    async with Emulator(30, seed=SEED) as emulator:
        await sync_lists(emulator, tmp_path / "lake")
        emulator.script("redirect-307", path="/api/v2/reports")
        with pytest.raises(ProtocolError, match="redirected"):
            await run_report(emulator, tmp_path / "lake", tmp_path / "out")
        assert (emulator.strays, emulator.leaks) == ([], [])


async def test_unknown_files_are_not_overwritten_and_links_not_followed(tmp_path: Path) -> None:
    """A symlink or file with a PDF's name stops the run and is unchanged; the run works after it is moved away."""
    target = tmp_path / "elsewhere"
    target.write_bytes(b"precious")
    async with Emulator(30, seed=SEED, quirks=Quirks(report_ready_seconds=3600.0)) as emulator:
        await sync_lists(emulator, tmp_path / "lake")
        await run_report(emulator, tmp_path / "lake", tmp_path / "out", run_options=RunOptions(timeout_seconds=0))
        emulator.set_quirks(report_ready_seconds=0.0)
        age_orders_by_an_hour(tmp_path / "lake")
        trap = tmp_path / "out" / "report-0001.pdf"
        for create in (lambda: trap.symlink_to(target), lambda: trap.write_bytes(b"mine")):
            create()
            with pytest.raises(StorageError, match="not a file of this job"):
                await _raise_first(run_report(emulator, tmp_path / "lake", tmp_path / "out"))
            trap.unlink()
        assert target.read_bytes() == b"precious"
        await run_report(emulator, tmp_path / "lake", tmp_path / "out")
        assert len(check_folder(tmp_path / "out")) == 30


async def test_a_folder_with_other_files_is_refused(tmp_path: Path) -> None:
    """A folder with other files and a folder in the lake are refused, and nothing is ordered."""
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter.txt").write_text("dear")
    async with Emulator(30, seed=SEED) as emulator:
        await sync_lists(emulator, tmp_path / "lake")
        for out in (tmp_path / "full", tmp_path / "lake" / "out"):
            process = await started(emulator, tmp_path / "lake", "report", "--where", "TRUE", "--out", str(out))
            code, _, err = await ended(process)
            assert code == 2, err
        assert emulator.counts["report"] == 0
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["letter.txt"]


async def test_a_job_that_cannot_begin_leaves_nothing(tmp_path: Path) -> None:
    """An empty selection leaves no new folder and an existing folder empty; an existing job keeps its folder."""
    (tmp_path / "existing").mkdir()
    async with Emulator(30, seed=SEED) as emulator:
        await sync_lists(emulator, tmp_path / "lake")
        for out in (tmp_path / "new", tmp_path / "existing"):
            with pytest.raises(SettingsError, match="empty"):
                await run_report(emulator, tmp_path / "lake", out, Selection("where", sql="FALSE"))
        assert not (tmp_path / "new").exists()
        assert list((tmp_path / "existing").iterdir()) == []
        await run_report(emulator, tmp_path / "lake", tmp_path / "existing")
        with pytest.raises(SettingsError, match="another selection"):
            await run_report(emulator, tmp_path / "lake", tmp_path / "existing", Selection("where", sql="FALSE"))
        assert len(check_folder(tmp_path / "existing")) == 30


def test_a_file_is_not_a_folder(tmp_path: Path) -> None:
    """A file in place of the folder, or above it, is a usage error and is unchanged."""
    (tmp_path / "letter.txt").write_text("dear")
    for out in (tmp_path / "letter.txt", tmp_path / "letter.txt" / "below"):
        with pytest.raises(SettingsError, match="is a file"), open_job_folder(out, new_run_id()):
            pass
    assert (tmp_path / "letter.txt").read_text() == "dear"


def test_a_folder_is_locked_by_one_run(tmp_path: Path) -> None:
    """A second run in the same folder fails immediately."""
    with (
        open_job_folder(tmp_path / "out", new_run_id()),
        pytest.raises(LakeLockedError),
        open_job_folder(tmp_path / "out", new_run_id()),
    ):
        pass


def test_reads_and_writes_follow_no_link(tmp_path: Path) -> None:
    """A write replaces the link, not its target; a read does not follow it. A folder is no file."""
    target = tmp_path / "elsewhere"
    target.write_bytes(b"precious")
    with open_job_folder(tmp_path / "out", new_run_id()) as folder:
        (tmp_path / "out" / "report-0001.pdf").mkdir()
        assert folder.digest("report-0001.pdf") is None
        (tmp_path / "out" / "manifest.json").symlink_to(target)
        assert folder.digest("manifest.json") is None
        folder.write("manifest.json", b"{}")
    assert target.read_bytes() == b"precious"
    assert (tmp_path / "out" / "manifest.json").read_bytes() == b"{}"
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / ".scanlake-job").symlink_to(target)
    with pytest.raises(StorageError), open_job_folder(tmp_path / "linked", new_run_id()):
        pass
    assert target.read_bytes() == b"precious"


def test_temporary_files_of_killed_runs_are_removed(tmp_path: Path) -> None:
    """The next run removes temporary files of scanlake, and no other file."""
    with open_job_folder(tmp_path / "out", new_run_id()) as folder:
        for name in (temp_name("report-0001.pdf"), ".keep.tmp"):
            (tmp_path / "out" / name).write_bytes(b"x")
        folder.remove_temp_files()
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [".keep.tmp", ".scanlake-job"]


@pytest.mark.parametrize("status", ["422", "404"])
async def test_the_file_that_causes_a_rejection_is_found(tmp_path: Path, status: str) -> None:
    """Two of 230 files are deleted just before an order: it is split to single files; all others are delivered."""
    async with Emulator(230, seed=SEED, quirks=Quirks(report_unknown_ids=status)) as emulator:  # type: ignore[arg-type]
        await sync_lists(emulator, tmp_path / "lake")
        deleted = sorted(emulator.world.keys())[17:160:142]

        def delete_before_order(endpoint: str) -> None:
            if endpoint == "report" and deleted[0] in emulator.world.records:
                emulator.world.delete(deleted)

        emulator.on_request = delete_before_order
        command = ("report", "--where", "TRUE", "--out", str(tmp_path / "out"))
        code, text, err = await ran(emulator, tmp_path / "lake", *command)
        assert code == 4, err
        delivered = check_folder(tmp_path / "out")
        assert len(delivered) == 228
        assert not set(deleted) & set(delivered)
        assert all(f"file {key}: " in text for key in deleted)
        assert f"file {deleted[0]}: rejected: NO FILE FOUND: {deleted[0]}" in text
        assert emulator.counts["report"] < 3 + 2 * 2 * 8
        assert check_orders(emulator, tmp_path / "out") == 0


async def test_options_that_the_service_rejects_stop_the_run(tmp_path: Path) -> None:
    """A wrong time zone does not fail 300 files: the run stops, and the folder accepts other options."""
    async with Emulator(300, seed=SEED) as emulator:
        await sync_lists(emulator, tmp_path / "lake")
        with pytest.raises(SettingsError, match="INVALID TIMEZONE"):
            await run_report(emulator, tmp_path / "lake", tmp_path / "out", timezone="Mars/Olympus")
        assert emulator.counts["report"] <= 20
        result = await run_report(emulator, tmp_path / "lake", tmp_path / "out", timezone="Europe/Berlin")
        assert not result.manifest.failed
        assert len(result.manifest.pdfs) == 3


async def test_a_pdf_above_the_size_limit_fails(tmp_path: Path) -> None:
    """A PDF above --max-mb is not saved, and its files fail."""
    async with Emulator(30, seed=SEED) as emulator:
        await sync_lists(emulator, tmp_path / "lake")
        run_options = RunOptions(timeout_seconds=5, max_pdf_bytes=500)
        result = await run_report(emulator, tmp_path / "lake", tmp_path / "out", run_options=run_options)
    assert len(result.manifest.failed) == 30
    assert "more than 500 bytes" in str(result.manifest.failed[0].reason)
    assert check_folder(tmp_path / "out") == {}


async def test_changed_options_in_the_same_folder_are_refused(tmp_path: Path) -> None:
    """Another selection or option in a job's folder is refused, and the difference is named."""
    async with Emulator(30, seed=SEED) as emulator:
        await sync_lists(emulator, tmp_path / "lake")
        await run_report(emulator, tmp_path / "lake", tmp_path / "out")
        with pytest.raises(SettingsError, match="another selection"):
            await run_report(emulator, tmp_path / "lake", tmp_path / "out", Selection("where", sql="NOT closed"))
        with pytest.raises(SettingsError, match="another locale and another template"):
            await run_report(emulator, tmp_path / "lake", tmp_path / "out", template=3, locale="de-DE")
        await sync_lists(emulator, tmp_path / "lake2")
        with pytest.raises(SettingsError, match="another lake"):
            await run_report(emulator, tmp_path / "lake2", tmp_path / "out")


async def test_a_full_disk_is_a_storage_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk stops the run without a partial file; the next run resumes."""
    real = os.write

    def full(descriptor: int, data: bytes) -> int:
        if bytes(data[:4]) == b"%PDF":
            raise OSError(28, "No space left on device")
        return real(descriptor, data)

    async with Emulator(30, seed=SEED) as emulator:
        await sync_lists(emulator, tmp_path / "lake")
        with monkeypatch.context() as patch:
            patch.setattr("pipeline.reports.folder.os.write", full)
            with pytest.raises(StorageError, match="No space"):
                await _raise_first(run_report(emulator, tmp_path / "lake", tmp_path / "out"))
        assert [path.name for path in (tmp_path / "out").iterdir()] == [".scanlake-job"]
        await run_report(emulator, tmp_path / "lake", tmp_path / "out")
        assert emulator.counts["report"] == 1


async def test_the_token_is_in_no_output(tmp_path: Path, canary: str) -> None:
    """After failed reports and shares no output, log, ledger or folder has the token."""
    streams = ""
    log = ("--log-file", str(tmp_path / "log.jsonl"), "-v")
    async with Emulator(120, seed=SEED, token=canary) as emulator:
        await sync_lists(emulator, tmp_path / "lake")
        for faults in ({"probabilities": {"echo-token": 0.6}, "paths": "/api"}, {"outage": True}, {}):
            emulator.set_faults(**{"probabilities": {}, "outage": False, "retry_after_seconds": 0, **faults})
            reference = next(iter(emulator.world.by_reference))
            for command in (
                ("report", "--where", "TRUE", "--out", str(tmp_path / "out")),
                ("share", reference, "--force-new"),
            ):
                process = await started(
                    emulator, tmp_path / "lake", *command, *log, **set_run_constants(max_attempts=2)
                )
                _, out, err = await ended(process)
                streams += out + err
        assert emulator.injected_faults["echo-token"]
    assert len(check_folder(tmp_path / "out")) == 120
    assert canary not in streams


async def _raise_first(work: object) -> object:
    """Await, and raise the first error of an exception group, as the command does."""
    try:
        return await work  # type: ignore[misc]
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None
