"""The proof of a report: every file of a PDF is confirmed before its order and after its delivery."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pypdf
import pytest

from pipeline.emulator import Emulator, Quirks
from pipeline.errors import ScanlakeError
from tests.findings import folder_problems
from tests.processes import ran, started
from tests.reports.report_harness import (
    SEED,
    RunOptions,
    Selection,
    check_folder,
    quick_client,
    read_ids_of_pdf,
    read_manifest,
    run_report,
    sync_lists,
)
from tests.soaking import sample

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

DELETED_BEFORE: Final = "not in the service when it was to be ordered (HTTP 404)"
DELETED_AFTER: Final = "not in the service after its report was made (HTTP 404)"


class Script:
    """Calls functions before the nth request of an endpoint, and records the requests."""

    def __init__(self, emulator: Emulator, **actions: Callable[[], object]) -> None:
        self.actions = actions  # by endpoint and number, for example report_1
        self.counts: dict[str, int] = {}
        emulator.on_request = self._run_action

    def _run_action(self, endpoint: str) -> None:
        self.counts[endpoint] = self.counts.get(endpoint, 0) + 1
        action = self.actions.pop(f"{endpoint}_{self.counts[endpoint]}", None)
        if action is not None:
            action()


def reasons_in(out: Path) -> dict[int, str]:
    """Return the failed files of a folder with their reasons."""
    return {file["file_id"]: file["reason"] for file in read_manifest(out)["files"] if file["state"] == "failed"}


def check_certified(out: Path, selected: int) -> None:
    """Check that each file is mentioned, and each certified one is in its PDF and confirmed around it."""
    check_folder(out)
    manifest = read_manifest(out)
    assert len(manifest["files"]) == selected
    for file in manifest["files"]:
        if file["state"] == "delivered":
            assert file["file_id"] in read_ids_of_pdf(out / file["pdf"])
            assert file["confirmed_before_at"] <= file["ordered_at"] <= file["confirmed_after_at"]
            assert file["confirmed_after_at"] <= file["delivered_at"]
        else:
            assert file["reason"]
    assert folder_problems(out) == []


async def test_files_deleted_after_the_sync_are_not_certified(tmp_path: Path) -> None:
    """Three files deleted after the sync, in a service that leaves them out, are named; the rest is whole; exit 4."""
    async with Emulator(150, seed=SEED) as emulator:
        await sync_lists(emulator, tmp_path / "lake")
        deleted = emulator.world.keys()[10:150:60]
        emulator.world.delete(deleted)
        command = ("report", "--where", "TRUE", "--out", str(tmp_path / "out"))
        code, text, err = await ran(emulator, tmp_path / "lake", *command)
        assert code == 4, err
        assert reasons_in(tmp_path / "out") == dict.fromkeys(deleted, DELETED_BEFORE)
        assert all(f"file {key}: {DELETED_BEFORE}" in text for key in deleted)
        assert emulator.counts["report"] == 2
        check_certified(tmp_path / "out", 150)
        verified = await ran(emulator, tmp_path / "nowhere", "check", "--report", str(tmp_path / "out"))
        assert verified[0] == 0
        emulator.world.restore(deleted)
        assert (await ran(emulator, tmp_path / "lake", *command))[0] == 0
        assert len(check_folder(tmp_path / "out")) == 150


@pytest.mark.parametrize("files", [3, 600])
async def test_the_cheaper_way_of_confirmation_is_taken(tmp_path: Path, files: int) -> None:
    """Few files of a large service are confirmed by detail calls, many by walks through its list."""
    async with Emulator(600, seed=SEED) as emulator:
        await sync_lists(emulator, tmp_path / "lake")
        emulator.reset()
        selection = Selection("ids", ids=tuple(emulator.world.keys()[:files]))
        await run_report(emulator, tmp_path / "lake", tmp_path / "out", selection)
        assert (emulator.counts["list"], emulator.counts["detail"]) == ((0, 6) if files == 3 else (6, 0))
        check_certified(tmp_path / "out", files)
        assert read_manifest(tmp_path / "out")["pdfs"][0]["references_found"] == min(files, 100)


async def test_a_file_that_the_list_omits_is_requested_by_its_id(tmp_path: Path) -> None:
    """A list that loses files between its pages excludes none of them."""
    async with Emulator(800, seed=SEED, quirks=Quirks(order="shuffled")) as emulator:
        await sync_lists(emulator, tmp_path / "lake")
        emulator.reset()
        await run_report(emulator, tmp_path / "lake", tmp_path / "out")
        assert emulator.counts["detail"] > 100
        check_certified(tmp_path / "out", 800)
        assert reasons_in(tmp_path / "out") == {}


MOMENTS: Final = ("list_1", "list_2", "report_1", "poll_1", "poll_2", "list_3", "report_2", "list_5")


@pytest.mark.parametrize(
    ("render", "shows", "change"),
    sample(
        [
            (*way, change)
            for way in (("at-order", "id-and-reference"), ("when-ready", "reference"))
            for change in ("delete", "delete-and-restore", "restore-unchanged", "update")
        ],
        4,
    ),
)
async def test_no_file_is_certified_that_is_not_in_its_pdf(
    tmp_path: Path, render: Any, shows: Any, change: str
) -> None:
    """Files deleted, restored or changed before any call of a run are in their PDF, or named with the reason."""
    quirks = Quirks(report_render=render, report_shows=shows, report_ready_seconds=0.01, report_ready_polls=1)
    async with Emulator(260, seed=SEED, quirks=quirks) as emulator:
        await sync_lists(emulator, tmp_path / "lake")
        keys = emulator.world.keys()
        for number, moment in enumerate(MOMENTS):
            changed = keys[number * 30 : number * 30 + 3]
            out = tmp_path / f"out-{moment}"
            following = MOMENTS[number + 1] if number + 1 < len(MOMENTS) else "list_6"
            actions = plan_change(emulator, change, changed, moment, following)
            script = Script(emulator, **actions)
            await run_report(emulator, tmp_path / "lake", out)
            emulator.on_request = None
            manifest = read_manifest(out)
            assert len(manifest["files"]) == 260
            for file in manifest["files"]:
                assert file["reason"] or is_shown(out, file), (moment, file)
            assert folder_problems(out) == []
            if change == "delete" and not script.actions and moment != "list_5":
                assert set(changed) <= set(reasons_in(out)), moment
            emulator.world.restore(list(emulator.world.deleted))


def plan_change(
    emulator: Emulator, change: str, changed: list[int], moment: str, following: str
) -> dict[str, Callable[[], object]]:
    """Return what to do before which request."""
    world = emulator.world

    def restore() -> None:
        world.restore([key for key in changed if key in world.deleted], stamp=change == "delete-and-restore")

    if change == "update":
        return {moment: partial(world.update, changed)}
    actions: dict[str, Callable[[], object]] = {moment: partial(world.delete, changed)}
    return actions if change == "delete" else actions | {following: restore}


_texts: dict[Path, str] = {}


def is_shown(out: Path, file: dict[str, Any]) -> bool:
    """Return whether the PDF of a file shows its id or reference."""
    text = _read_text(out / file["pdf"])
    return f" {file['file_id']} " in text or f" {file['reference']} " in text


def _read_text(pdf: Path) -> str:
    if pdf not in _texts:
        _texts[pdf] = " ".join("\n".join(page.extract_text() for page in pypdf.PdfReader(pdf).pages).split())
    return _texts[pdf]


async def test_a_file_deleted_between_order_and_delivery_is_named(tmp_path: Path) -> None:
    """Its PDF is superseded and removed, the batch is ordered again without it."""
    async with Emulator(120, seed=SEED) as emulator:
        await sync_lists(emulator, tmp_path / "lake")
        deleted = emulator.world.keys()[5:7]
        Script(emulator, poll_1=lambda: emulator.world.delete(deleted))
        result = await run_report(emulator, tmp_path / "lake", tmp_path / "out")
    assert reasons_in(tmp_path / "out") == dict.fromkeys(deleted, DELETED_AFTER)
    check_certified(tmp_path / "out", 120)
    states = [order.state for order in result.manifest.orders]
    assert sorted(states) in (["delivered", "delivered", "superseded"], ["delivered"] * 2 + ["superseded"] * 2)


async def test_a_template_without_references(tmp_path: Path) -> None:
    """The two confirmations are the proof; the manifest says that the pages show no references."""
    async with Emulator(30, seed=SEED, quirks=Quirks(report_shows="nothing")) as emulator:
        await sync_lists(emulator, tmp_path / "lake")
        changed = emulator.world.keys()[4]
        Script(emulator, poll_1=lambda: emulator.world.update([changed]))
        result = await run_report(emulator, tmp_path / "lake", tmp_path / "out")
    manifest = read_manifest(tmp_path / "out")
    assert manifest["pdfs"][0]["pages"] == "references not shown on its pages"
    assert {file["on_pages"] for file in manifest["files"]} == {None}
    assert [order.state for order in result.manifest.orders] == ["superseded", "delivered"]
    assert "changed in the service" in str(result.manifest.orders[0].error)


async def test_a_run_killed_between_download_and_confirmation(tmp_path: Path) -> None:
    """After SIGKILL no file is certified; the next run confirms the saved PDF and orders nothing."""
    command = ("report", "--where", "TRUE", "--out", str(tmp_path / "out"), "--json")
    async with Emulator(30, seed=SEED) as emulator:
        await sync_lists(emulator, tmp_path / "lake")
        seen = asyncio.Event()

        def stall() -> None:
            seen.set()
            emulator.set_faults(latency_ms=60_000.0)

        Script(emulator, list_2=stall)
        process = await started(emulator, tmp_path / "lake", *command)
        await asyncio.wait_for(seen.wait(), 60)
        process.kill()
        await process.communicate()
        assert (tmp_path / "out" / "report-0001.pdf").exists()
        assert not (tmp_path / "out" / "manifest.json").exists()
        emulator.set_faults(latency_ms=0.0)
        deleted = emulator.world.keys()[0]
        code, text, err = await ran(emulator, tmp_path / "lake", *command)
        assert code == 0, err
        assert json.loads(text)["delivered"] == 30
        assert (emulator.counts["report"], emulator.counts["download"]) == (1, 1)
        assert deleted in check_folder(tmp_path / "out")
        check_certified(tmp_path / "out", 30)


async def test_a_service_that_does_not_confirm_certifies_nothing(tmp_path: Path) -> None:
    """An outage after the download ends the run without a delivered file; the next run confirms and goes on."""
    async with Emulator(30, seed=SEED) as emulator:
        await sync_lists(emulator, tmp_path / "lake")
        Script(emulator, list_2=lambda: emulator.set_faults(outage=True, retry_after_seconds=0))
        client = quick_client(emulator, max_attempts=2)
        with pytest.raises(ScanlakeError, match="HTTP 503"):
            await run_report(emulator, tmp_path / "lake", tmp_path / "out", client=client)
        assert not (tmp_path / "out" / "SHA256SUMS").exists()
        emulator.set_faults(outage=False)
        result = await run_report(emulator, tmp_path / "lake", tmp_path / "out")
        assert emulator.counts["report"] == 1
    assert not result.manifest.failed
    check_certified(tmp_path / "out", 30)


async def test_a_manifest_without_both_confirmations_is_refused(tmp_path: Path) -> None:
    """Verification names a delivered file that lacks a confirmation."""
    async with Emulator(30, seed=SEED) as emulator:
        await sync_lists(emulator, tmp_path / "lake")
        await run_report(emulator, tmp_path / "lake", tmp_path / "out", run_options=RunOptions(timeout_seconds=15))
    path = tmp_path / "out" / "manifest.json"
    manifest = read_manifest(tmp_path / "out")
    manifest["files"][3]["confirmed_after_at"] = None
    path.chmod(0o644)
    path.write_text(json.dumps(manifest))
    expected = f"file {manifest['files'][3]['file_id']} is delivered without both confirmations"
    assert any(expected in problem for problem in folder_problems(tmp_path / "out"))
