"""The proof of a report: every file of a PDF is confirmed before its order and after its delivery."""

from __future__ import annotations

import asyncio
import csv
import json
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final
from unittest.mock import Mock

import pypdf
import pytest

from pipeline.client.client import Client
from pipeline.client.protocol import NotFound
from pipeline.emulator import Emulator
from pipeline.errors import ExitCode, ProtocolError, ScanlakeError
from pipeline.lake.ledger.request_log import FileConfirmation
from pipeline.reports.confirmation import FileConfirmer
from tests.findings import folder_problems
from tests.reports.report_harness import (
    FILES,
    Script,
    Selection,
    change_orders,
    check_folder,
    check_orders,
    edit_file,
    quick_client,
    read_ids_of_pdf,
    read_manifest,
    set_batch_size,
)
from tests.soaking import SOAKING, sample

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.reports.report_harness import Scene

DELETED_BEFORE: Final = "not in the service before its order (HTTP 404)"
DELETED_AFTER: Final = "not in the service after its report was made (HTTP 404)"


def reasons_in(out: Path) -> dict[int, str]:
    """Return the failed files of a folder with their reasons."""
    return {file["file_id"]: file["reason"] for file in read_manifest(out)["files"] if file["state"] == "failed"}


def check_certified(out: Path, selected: int = FILES) -> None:
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


@pytest.mark.virtual_time
async def test_the_cheaper_way_of_confirmation_is_taken(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few files of a large service are confirmed by detail calls, many by walks through its list of three pages.

    A list that loses files between its pages excludes none of them: they are requested by their ids.
    """
    emulator = scene.emulator
    monkeypatch.setattr("pipeline.reports.confirmation.MAX_LIMIT", 10)
    for files, calls in ((3, (0, 6)), (FILES, (6, 0))):
        emulator.reset()
        out = tmp_path / f"out-{files}"
        await scene.run(Selection("ids", ids=tuple(scene.keys[:files])), out=out)
        assert (emulator.counts["list"], emulator.counts["detail"]) == calls
        check_certified(out, files)
        assert read_manifest(out)["pdfs"][0]["references_found"] == min(files, 10)
    monkeypatch.setattr("pipeline.reports.confirmation.MAX_LIMIT", 5)
    emulator.set_quirks(order="shuffled")
    await scene.run()
    assert emulator.counts["detail"] > 5
    check_certified(scene.out)
    assert reasons_in(scene.out) == {}


REASONS: Final = {"list_1": {DELETED_BEFORE}, "list_2": {DELETED_BEFORE, DELETED_AFTER}}
MOMENTS: Final = ("list_1", "list_2", "report_1", "poll_1", "poll_2", "list_3", "report_2", "list_5")


@pytest.mark.virtual_time
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
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, render: Any, shows: Any, change: str
) -> None:
    """Files deleted, restored or changed before any call of a run are in their PDF, or named with the reason.

    The others are delivered, and the next run delivers those that the service has again. Outside a soak each way of
    rendering has half of the moments.
    """
    monkeypatch.setattr("pipeline.reports.confirmation.MAX_LIMIT", 15)  # two pages of the list
    emulator, keys = scene.emulator, scene.keys
    emulator.set_quirks(report_render=render, report_shows=shows, report_ready_seconds=0.01, report_ready_polls=1)
    skipped = int((render == "when-ready") == (change != "delete"))
    for number, moment in enumerate(MOMENTS):
        if not SOAKING and number % 2 == skipped:
            continue
        changed = keys[number * 3 : number * 3 + 3]
        out = tmp_path / f"out-{moment}"
        following = MOMENTS[number + 1] if number + 1 < len(MOMENTS) else "list_6"
        script = Script(emulator, **plan_change(emulator, change, changed, moment, following))
        await scene.run(out=out)
        emulator.on_request = None
        manifest = read_manifest(out)
        assert len(manifest["files"]) == FILES
        for file in manifest["files"]:
            assert file["reason"] or is_shown(out, file), (moment, file)
        assert folder_problems(out) == []
        assert moment not in script.actions or moment == "list_5", "nothing was changed"
        reasons = reasons_in(out)
        if change == "delete" and not script.actions and moment != "list_5":
            assert set(reasons) == set(changed), moment
            assert set(reasons.values()) <= REASONS.get(moment, {DELETED_AFTER}), moment
        emulator.world.restore(list(emulator.world.deleted))
        if reasons:  # the service has these files again
            assert not (await scene.run(out=out)).manifest.failed, moment


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


def is_shown(out: Path, file: dict[str, Any]) -> bool:
    """Return whether the PDF of a file shows its id or reference."""
    text = _read_text(out / file["pdf"])
    return f" {file['file_id']} " in text or f" {file['reference']} " in text


@cache
def _read_text(pdf: Path) -> str:
    return " ".join("\n".join(page.extract_text() for page in pypdf.PdfReader(pdf).pages).split())


async def test_files_that_changed_since_their_selection_are_named(scene: Scene) -> None:
    """A file that is newer in the service than in the lake's selection is delivered and named, with exit 4.

    It may not meet the condition any more. That holds at each confirmation, and for a finished job.
    """
    early, late = scene.keys[3], scene.keys[15]
    scene.emulator.world.update([early])
    Script(scene.emulator, poll_1=lambda: scene.emulator.world.update([late]))
    answer = await scene.report("--json")
    assert (answer.code, [file["file_id"] for file in answer.json["changed"]]) == (ExitCode.REJECTS, [early, late])
    manifest, requests = read_manifest(scene.out), scene.emulator.requests
    changed = [file for file in manifest["files"] if file["changed_since_selection"]]
    assert [(file["file_id"], file["state"]) for file in changed] == [(early, "delivered"), (late, "delivered")]
    assert manifest["counts"]["changed_since_selection"] == 2
    rows = list(csv.DictReader((scene.out / "manifest.csv").read_text().splitlines()))
    assert [row["reason"] for row in rows if row["reason"]] == [file["reason"] for file in changed]
    assert changed[0]["reason"].startswith("changed since selection: updated ")
    page = (scene.out / "index.html").read_text()
    assert "<strong>2 changed since selection</strong>" in page
    assert changed[1]["reason"] in page
    again = await scene.report()
    assert (again.code, scene.emulator.requests) == (ExitCode.REJECTS, requests)
    assert f"file {late}: changed since selection: updated " in again.out
    check_certified(scene.out)


@pytest.mark.virtual_time
async def test_a_template_without_references(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """The two confirmations are the proof; manifest and page say that no references were found."""
    set_batch_size(monkeypatch, FILES)
    scene.emulator.set_quirks(report_shows="nothing")
    Script(scene.emulator, poll_1=lambda: scene.emulator.world.update([scene.keys[4]]))
    result = await scene.run()
    manifest = read_manifest(scene.out)
    assert manifest["pdfs"][0]["pages"] == "no references found"
    assert "</strong>. 1 of 1 PDF was read, no references found in 1.</p>" in (scene.out / "index.html").read_text()
    assert {file["on_pages"] for file in manifest["files"]} == {None}
    assert [order.state for order in result.manifest.orders] == ["replaced", "delivered"]
    assert "changed in the service" in str(result.manifest.orders[0].error)


@pytest.mark.virtual_time
@pytest.mark.parametrize("ready_seconds", [0.0, 100.0])
async def test_a_pdf_without_references_is_no_proof_beside_one_with_them(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, ready_seconds: float
) -> None:
    """A PDF without references is ordered again when one shows them, with it or later: the template does."""
    if ready_seconds:
        monkeypatch.setattr("pipeline.reports.certification._EVERY_SECONDS", 0.0)
    emulator = scene.emulator
    emulator.set_quirks(report_shows="nothing")
    shows = partial(emulator.set_quirks, report_shows="id-and-reference", report_ready_seconds=ready_seconds)
    Script(emulator, report_2=shows)
    await scene.run(Selection("ids", ids=tuple(scene.keys[:20])))
    states = sorted((order["name"][:11], order["state"]) for order in read_manifest(scene.out)["orders"])
    again = [("report-0001", "delivered"), ("report-0001", "replaced")]
    assert states == [*again, ("report-0002", "delivered")]
    check_certified(scene.out, 20)


@pytest.mark.virtual_time
async def test_the_ledger_knows_of_pdfs_that_show_references(scene: Scene) -> None:
    """A run that was killed after it certified one with references leaves no other without them certified."""
    selection = Selection("ids", ids=tuple(scene.keys[:20]))
    scene.emulator.set_quirks(report_shows="nothing")
    await scene.run(selection)
    change_orders(scene.lake, "references_found = 10 * (batch = 2)")
    (scene.out / "SHA256SUMS").unlink()
    scene.emulator.set_quirks(report_shows="id-and-reference")
    await scene.run(selection)
    orders = [(order["batch"], order["state"]) for order in read_manifest(scene.out)["orders"]]
    assert orders == [(1, "replaced"), (1, "delivered"), (2, "delivered")]


@pytest.mark.parametrize(("moment", "unknown"), [("report_3", 1), ("list_2", 0)])
async def test_a_run_killed_before_an_answer(scene: Scene, moment: str, unknown: int) -> None:
    """After SIGKILL no file is certified. An order in flight is named by the next run and ordered again, nothing else.

    PDFs that were saved before their second confirmation are confirmed.
    """
    emulator, seen = scene.emulator, asyncio.Event()

    def hold() -> None:
        seen.set()
        if unknown:
            emulator.set_quirks(report_async="ignored", report_seconds=3_600.0)
        else:
            emulator.set_faults(latency_ms=3_600_000.0)

    Script(emulator, **{moment: hold})
    process = await scene.start("report", "--where", "TRUE", "--out", str(scene.out), "--json")
    await seen.wait()
    process.kill()
    await process.communicate()
    assert unknown or (scene.out / "report-0003.pdf").exists()
    assert not (scene.out / "manifest.json").exists()
    emulator.set_faults(latency_ms=0.0)
    emulator.set_quirks(report_async="honoured")
    answer = await scene.report("--json")
    assert answer.code == 0, answer.err
    assert (answer.json["delivered"], len(answer.json["unknown_orders"])) == (FILES, unknown)
    assert check_orders(emulator, scene.out) == unknown
    assert emulator.counts["report"] == len(read_manifest(scene.out)["orders"]) == 3 + unknown
    check_certified(scene.out)


@pytest.mark.virtual_time
async def test_a_service_that_does_not_confirm_certifies_nothing(scene: Scene) -> None:
    """An outage after the download ends the run without a delivered file; the next run confirms and goes on."""
    emulator = scene.emulator
    Script(emulator, list_2=lambda: emulator.set_faults(outage=True, retry_after_seconds=0))
    with pytest.raises(ScanlakeError, match="HTTP 503"):
        await scene.run(client=quick_client(emulator, max_attempts=2))
    assert not (scene.out / "SHA256SUMS").exists()
    emulator.set_faults(outage=False)
    await scene.deliver()
    assert emulator.counts["report"] == 3
    check_certified(scene.out)

    manifest = read_manifest(scene.out)
    manifest["files"][3]["confirmed_after_at"] = None
    edit_file(scene.out / "manifest.json", lambda _: json.dumps(manifest).encode())
    expected = f"file {manifest['files'][3]['file_id']} is delivered without both confirmations"
    assert any(expected in problem for problem in folder_problems(scene.out))


@pytest.mark.virtual_time
async def test_a_pdf_with_an_unconfirmed_file_is_saved(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the service answers for some files of a PDF only, its order has the reason, and a later run delivers it."""
    monkeypatch.setattr("pipeline.reports.confirmation.MAX_LIMIT", 10)
    emulator, selection = scene.emulator, Selection("ids", ids=tuple(scene.keys[:3]))
    Script(emulator, report_1=lambda: emulator.set_faults(poison=scene.keys[:1]))
    await scene.run(selection, client=quick_client(emulator, max_attempts=2))
    (order,) = read_manifest(scene.out)["orders"]
    assert order["state"] == "saved"
    assert order["error"].startswith("1 file not confirmed after the report was saved")
    emulator.set_faults(poison=())
    await scene.run(selection)
    assert emulator.counts["report"] == 1
    check_certified(scene.out, 3)


async def test_a_list_that_failed_is_not_read_again() -> None:
    """After a list that failed, files are requested by their ids for the rest of a run."""
    client = Mock(spec=Client)
    client.iter_pages.side_effect = ProtocolError("no list")
    client.get_file.return_value = NotFound("404")
    confirmer = FileConfirmer(client, files_in_service=1, identity="id")
    for since in (1, 2**62):
        found = await confirmer.confirm([1, 2, 3], since=since)
        assert set(map(type, found.values())) == {NotFound}
    assert (client.iter_pages.call_count, client.get_file.call_count) == (1, 6)


@pytest.mark.virtual_time
async def test_a_walk_costs_no_more_calls_than_it_saves(monkeypatch: pytest.MonkeyPatch) -> None:
    """A list that is longer than the service says is left after as many pages as there are files to confirm."""
    monkeypatch.setattr("pipeline.reports.confirmation.MAX_LIMIT", 5)
    async with Emulator(40, seed=1) as emulator, Client(emulator.base_url, emulator.token) as client:
        confirmer = FileConfirmer(client, files_in_service=1, identity="id")
        found = await confirmer.confirm(emulator.world.keys()[:3], since=1)
    assert set(map(type, found.values())) == {FileConfirmation}
    assert (len(found), emulator.counts["list"]) == (3, 3)
