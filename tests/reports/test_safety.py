"""Hostile services and folders: URLs, names, links, rejections, sizes."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from pipeline.errors import ExitCode, LakeLockedError, ProtocolError, SettingsError, StorageError
from pipeline.lake.lake import Lake
from pipeline.lake.storage.atomic_files import temp_name
from pipeline.reports.folder import open_job_folder
from schemas.timestamps import new_run_id
from tests.reports.report_harness import (
    FILES,
    ONE_HOUR_AGO,
    Selection,
    change_orders,
    check_folder,
    check_orders,
    open_scene,
    quick_client,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.processes import Answer
    from tests.reports.report_harness import Scene


@pytest.mark.virtual_time
@pytest.mark.parametrize("token_location", ["query", "header"])
async def test_another_host_gets_no_secret(scene: Scene, token_location: str) -> None:
    """Reports on another port are downloaded, and no token, cookie or referrer is sent there."""
    emulator = scene.emulator
    emulator.set_quirks(report_host="other-port", report_disposition="traversal", report_not_ready="html-200")
    await scene.deliver(client=quick_client(emulator, token_location=token_location))
    assert emulator.counts["download"] == 3
    assert (emulator.leaks, emulator.strays) == ([], [])
    names = [path.name for path in scene.out.glob("*.pdf")]
    assert sorted(names) == [f"report-000{number}.pdf" for number in (1, 2, 3)], "a name is the service's"


async def test_a_report_that_redirects_elsewhere_is_named_and_exits_6(scene: Scene) -> None:
    """Its files fail, all others are delivered, the other host gets no request; the next run delivers all.

    A redirect of an order is an error of the protocol: the order's body is not sent to another address.
    """
    scene.emulator.script("redirect-307", path="/api/v2/reports")
    with pytest.raises(ProtocolError, match="redirected"):
        await scene.run()
    assert (scene.emulator.strays, scene.emulator.leaks) == ([], [])
    scene.emulator.script("redirect", path="/reports/")
    answer = await scene.report()
    assert answer.code == ExitCode.PROTOCOL, answer.err
    assert scene.emulator.strays == []
    assert "redirected to another host" in answer.out
    assert len(check_folder(scene.out)) in {15, 20}
    await scene.deliver()
    assert scene.emulator.counts["report"] == 1 + 3


@pytest.mark.virtual_time
async def test_unknown_files_are_not_overwritten_and_links_not_followed(scene: Scene, tmp_path: Path) -> None:
    """A symlink or file with a PDF's name stops the run and is unchanged; the run works after it is moved away."""
    target = tmp_path / "elsewhere"
    target.write_bytes(b"precious")
    scene.emulator.set_quirks(report_ready_seconds=3600.0)
    await scene.run(timeout_seconds=0.0)
    scene.emulator.set_quirks(report_ready_seconds=0.0)
    change_orders(scene.lake, ONE_HOUR_AGO)
    trap = scene.out / "report-0001.pdf"
    for create in (lambda: trap.symlink_to(target), lambda: trap.write_bytes(b"mine")):
        create()
        with pytest.RaisesGroup(pytest.RaisesExc(StorageError, match="not a file of this job")):
            await scene.run()
        trap.unlink()
    assert target.read_bytes() == b"precious"
    await scene.deliver()


async def test_a_job_that_cannot_begin_leaves_nothing(scene: Scene, tmp_path: Path) -> None:
    """A folder with other files, one in the lake, a missing key and an empty selection are refused before an order.

    No new folder is left, and an existing folder is as it was.
    """
    for name in ("full", "existing"):
        (tmp_path / name).mkdir()
    (tmp_path / "full" / "letter.txt").write_text("dear")
    for out, says in ((tmp_path / "full", "not empty and belongs to no job"), (scene.lake / "out", "is in the lake")):
        answer = await scene.command("report", "--where", "TRUE", "--out", str(out))
        assert (answer.code, says in answer.err) == (ExitCode.USAGE, True), answer.err
    for command, says in (
        ("report --where TRUE", "--out is required."),
        ("report --where TRUE --out new --sign nokey", "no such key"),
        ("share", "No files are selected."),
        ("share --where FALSE", "No reference is selected."),
    ):
        answer = await scene.command(*command.split())
        assert (answer.code, says in answer.err) == (ExitCode.USAGE, True), answer.err
    for out in (tmp_path / "new", tmp_path / "existing"):
        with pytest.raises(SettingsError, match="empty"):
            await scene.run(Selection("where", sql="FALSE"), out=out)
    assert scene.emulator.requests == 0
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["letter.txt"]
    assert not (tmp_path / "new").exists()
    assert list((tmp_path / "existing").iterdir()) == []


def test_a_folder_is_ours_alone(tmp_path: Path) -> None:
    """A file in place of the folder or above it is refused, and so is a second run in the same folder.

    Reads and writes follow no link, and a folder is no file. Temporary files of killed runs are removed, no others.
    """
    target = tmp_path / "elsewhere"
    target.write_bytes(b"precious")
    for out in (target, target / "below"):
        with pytest.raises(SettingsError, match="is a file"), open_job_folder(out, new_run_id()):
            pass
    of_others = tmp_path / "others" / ".scanlake-job"
    of_others.parent.mkdir()
    of_others.write_text("mine")
    with pytest.raises(SettingsError, match="not belong to a job"), open_job_folder(of_others.parent, new_run_id()):
        pass
    assert of_others.read_text() == "mine"
    out = tmp_path / "out"
    with open_job_folder(out, new_run_id()) as folder:
        with pytest.raises(LakeLockedError), open_job_folder(out, new_run_id()):
            pass
        for name in (temp_name("report-0001.pdf"), ".keep.tmp"):
            (out / name).write_bytes(b"x")
        folder.remove_temp_files()
        assert sorted(path.name for path in out.iterdir()) == [".keep.tmp", ".scanlake-job"]
        (out / "report-0001.pdf").mkdir()
        assert folder.hash_file("report-0001.pdf") is None
        (out / "manifest.json").symlink_to(target)
        assert folder.hash_file("manifest.json") is None
        with pytest.raises(StorageError, match="not a file of this job"):
            folder.write("manifest.json", b"{}")
    assert (out / "manifest.json").is_symlink()
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / ".scanlake-job").symlink_to(target)
    with pytest.raises(StorageError), open_job_folder(tmp_path / "linked", new_run_id()):
        pass
    assert target.read_bytes() == b"precious"


async def test_a_job_needs_no_lock_of_the_lake(scene: Scene) -> None:
    """While another run holds the lake a job is delivered; the publish of that run has its rows."""
    with Lake(scene.lake, doing="sync"):
        answer = await scene.report()
    assert (answer.code, answer.err.count("publish.skipped")) == (ExitCode.OK, 1), answer.err
    assert len(check_folder(scene.out)) == FILES


@pytest.mark.parametrize("status", ["422", "404"])
async def test_the_file_that_causes_a_rejection_is_found(scene: Scene, status: str) -> None:
    """Two of 25 files are deleted just before an order: it is split to single files; all others are delivered."""
    emulator, deleted = scene.emulator, scene.keys[1:15:12]
    emulator.set_quirks(report_unknown_ids=status)

    def delete_before_order(endpoint: str) -> None:
        if endpoint == "report" and deleted[0] in emulator.world.records:
            emulator.world.delete(deleted)

    emulator.on_request = delete_before_order
    answer = await scene.report()
    assert answer.code == ExitCode.REJECTS, answer.err
    assert set(scene.keys) == set(check_folder(scene.out))
    assert all(f"file {key}: " in answer.out for key in deleted)
    assert f"file {deleted[0]}: rejected: NO FILE FOUND: {deleted[0]}" in answer.out
    assert emulator.counts["report"] <= 3 + 2 * 2 * 4
    assert check_orders(emulator, scene.out) == 0


@pytest.mark.virtual_time
async def test_options_that_the_service_rejects_stop_the_run(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong time zone does not fail all files: the run stops, and the folder accepts other options.

    PDFs above the limit are not saved, and their files fail.
    """
    with pytest.raises(SettingsError, match="INVALID TIMEZONE"):
        await scene.run(timezone="Mars/Olympus")
    assert scene.emulator.counts["report"] == 20
    with monkeypatch.context() as patch:
        patch.setattr("pipeline.reports.ordering._MAX_PDF_BYTES", 500)
        result = await scene.run(timezone="Europe/Berlin")
    assert len(result.manifest.failed) == FILES
    assert "more than 500 bytes" in str(result.manifest.failed[0].reason)
    assert check_folder(scene.out) == {}
    assert len((await scene.deliver(timezone="Europe/Berlin")).manifest.pdfs) == 3


async def test_changed_options_in_the_same_folder_are_refused(
    scene: Scene, tmp_path: Path, listed_lake: Path, main: Callable[..., Answer]
) -> None:
    """Another selection, option or lake in a job's folder is refused, and the difference is named."""
    await scene.run()
    for sql in ("NOT closed", "FALSE"):
        with pytest.raises(SettingsError, match="another selection"):
            await scene.run(Selection("where", sql=sql))
    with pytest.raises(SettingsError, match="another locale and another template"):
        await scene.run(template=3, locale="de-DE")
    async with open_scene(listed_lake, tmp_path / "other", main) as other:
        with pytest.raises(SettingsError, match="another lake"):
            await other.run(out=scene.out)
    assert len(check_folder(scene.out)) == FILES


@pytest.mark.virtual_time
async def test_a_full_disk_is_a_storage_error(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk stops the run without a partial file; the next run resumes."""
    real = os.write

    def full(descriptor: int, data: bytes) -> int:
        if bytes(data[:4]) == b"%PDF":
            raise OSError(28, "No space left on device")
        return real(descriptor, data)

    chosen = Selection("ids", ids=tuple(scene.keys[:10]))
    with monkeypatch.context() as patch:
        patch.setattr("pipeline.reports.folder.os.write", full)
        with pytest.RaisesGroup(pytest.RaisesExc(StorageError, match="No space")):
            await scene.run(chosen)
    assert [path.name for path in scene.out.iterdir()] == [".scanlake-job"]
    await scene.deliver(chosen)
    assert scene.emulator.counts["report"] == 1


async def test_the_token_is_in_no_output(
    tmp_path: Path, canary: str, listed_lake: Path, main: Callable[..., Answer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After failed reports and shares no output, log, ledger or folder has the token."""
    monkeypatch.setattr("pipeline.client.client.MAX_ATTEMPTS", 2)
    log = ("--log-file", str(tmp_path / "log.jsonl"), "-v")
    streams = ""
    async with open_scene(listed_lake, tmp_path, main, token=canary) as scene:
        reference = next(iter(scene.emulator.world.by_reference))
        faults: dict[str, Any]
        for faults in ({"probabilities": {"echo-token": 0.6}, "paths": "/api"}, {"outage": True}, {}):
            scene.emulator.set_faults(**{"probabilities": {}, "outage": False, "retry_after_seconds": 0, **faults})
            for answer in (await scene.report(*log), await scene.command("share", reference, "--force-new", *log)):
                streams += answer.out + answer.err
        assert scene.emulator.injected_faults["echo-token"]
    assert "report.ordered" in (tmp_path / "log.jsonl").read_text()
    assert len(check_folder(scene.out)) == FILES
    assert canary not in streams
