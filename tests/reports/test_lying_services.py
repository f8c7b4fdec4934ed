"""Services that answer orders wrongly: endless pauses, errors as successes, one document for all."""

from __future__ import annotations

import asyncio
import json
import time
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from pipeline.emulator import Emulator, Quirks
from pipeline.emulator.reports import Reports
from pipeline.errors import ServiceUnavailableError
from tests.processes import ended, ran, started
from tests.reports.report_harness import SEED, check_folder, read_manifest, run_report, sync_lists

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("accepted", [0, 1])
async def test_a_pause_of_years_ends_the_run(tmp_path: Path, accepted: int) -> None:
    """An order that must wait 30 years ends the run soon with exit 1; accepted reports are saved; the rest is kept."""
    command = ("report", "--where", "TRUE", "--out", str(tmp_path / "out"))
    async with Emulator(250, seed=SEED) as emulator:
        await sync_lists(emulator, tmp_path / "lake")
        emulator.set_faults(retry_after="huge")
        emulator.script("429", path="/api/v2/reports", skip=accepted)
        begun = time.monotonic()
        code, _, err = await asyncio.wait_for(ended(await started(emulator, tmp_path / "lake", *command)), 60)
        assert (code, time.monotonic() - begun < 30) == (1, True), err
        assert "POST /reports: HTTP 429" in err.splitlines()[-1]
        assert "Retry-After that is too long" in err.splitlines()[-1]
        assert "Traceback" not in err
        assert (emulator.counts["report"], emulator.injected_faults["429"]) == (accepted + 1, 1)
        assert len(list((tmp_path / "out").glob("*.pdf"))) == accepted
        code, _, err = await ran(emulator, tmp_path / "lake", *command)
        assert code == 0, err
        assert len(check_folder(tmp_path / "out")) == 250


@pytest.mark.parametrize("files", [30, 950])
async def test_an_error_in_a_success_is_not_ordered_again(tmp_path: Path, files: int) -> None:
    """Each of three batches is ordered once; then the run stops, with the service's text at every file."""
    command = ("report", "--where", "TRUE", "--out", str(tmp_path / "out"), "--json")
    async with Emulator(files, seed=SEED, quirks=Quirks(report_unknown_ids="200")) as emulator:
        await sync_lists(emulator, tmp_path / "lake")
        emulator.on_request = _delete_before_order(emulator)
        code, text, err = await ran(emulator, tmp_path / "lake", *command)
        assert code == (4 if files == 30 else 1), err
        assert emulator.counts["report"] == (1 if files == 30 else 3)
        assert "an error in a 200: NO FILE FOUND" in (text if files == 30 else err.splitlines()[-1])
        if files == 30:
            output: dict[str, Any] = json.loads(text)
            assert (output["delivered"], len(output["unknown_orders"])) == (0, 1)
            assert all("NO FILE FOUND" in file["reason"] for file in read_manifest(tmp_path / "out")["files"])
        emulator.on_request = None
        emulator.set_quirks(report_unknown_ids="skip")
        code, _, _ = await ran(emulator, tmp_path / "lake", *command)
        assert code == 4
        assert len(check_folder(tmp_path / "out")) == files - len(emulator.world.deleted)


def _delete_before_order(emulator: Emulator) -> Any:
    """Return a hook that deletes a file of each batch after its confirmation."""
    keys = emulator.world.keys()

    def delete(endpoint: str) -> None:
        if endpoint == "report":
            emulator.world.delete([key for key in keys[::10] if key in emulator.world.records])

    return delete


@pytest.mark.parametrize("documents", ["first-url", "first-content"])
@pytest.mark.parametrize("shows", ["nothing", "reference", "id-and-reference"])
async def test_one_document_for_three_batches_is_not_three_reports(tmp_path: Path, documents: str, shows: str) -> None:
    """Files whose PDF came for other files too, and does not show them, fail by name after at most two orders."""
    quirks = Quirks(report_documents=documents, report_shows=shows)  # type: ignore[arg-type]
    async with Emulator(250, seed=SEED, quirks=quirks) as emulator:
        await sync_lists(emulator, tmp_path / "lake")
        command = ("report", "--where", "TRUE", "--out", str(tmp_path / "out"))
        code, _, err = await ran(emulator, tmp_path / "lake", *command)
        assert code == 4, err
        assert emulator.counts["report"] <= 6
        manifest = read_manifest(tmp_path / "out")
        delivered = [file for file in manifest["files"] if file["state"] == "delivered"]
        assert len(delivered) == (0 if shows == "nothing" else 100)
        assert len(list((tmp_path / "out").glob("*.pdf"))) == (0 if shows == "nothing" else 1)
        reasons = {file["reason"] for file in manifest["files"] if file["state"] == "failed"}
        assert all("same document" in reason or "not shown" in reason for reason in reasons), reasons
        emulator.set_quirks(report_documents="own")
        result = await run_report(emulator, tmp_path / "lake", tmp_path / "out", service=emulator.base_url)
        assert not result.manifest.failed


async def test_a_document_that_comes_again_in_a_later_run_is_noticed(tmp_path: Path) -> None:
    """A PDF that was delivered by one run is withdrawn when the next run gets the same document for other files."""
    quirks = Quirks(report_documents="first-content", report_shows="nothing")
    async with Emulator(150, seed=SEED, quirks=quirks) as emulator:
        await sync_lists(emulator, tmp_path / "lake")
        emulator.set_faults(retry_after="huge")
        emulator.script("429", path="/api/v2/reports", skip=1)
        with pytest.raises(ServiceUnavailableError, match="Retry-After"):
            await run_report(emulator, tmp_path / "lake", tmp_path / "out")
        assert len(list((tmp_path / "out").glob("*.pdf"))) == 1
        result = await run_report(emulator, tmp_path / "lake", tmp_path / "out")
        assert (len(result.manifest.failed), result.manifest.pdfs) == (150, ())
        assert list((tmp_path / "out").glob("*.pdf")) == []
        emulator.set_quirks(report_documents="own")
        assert not (await run_report(emulator, tmp_path / "lake", tmp_path / "out")).manifest.failed


async def test_reports_that_always_lack_a_file_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A service that leaves the first file out of each report gets five orders of a batch; every file is named."""
    render = Reports._render

    def leave_out(self: Reports, order: Any, title: str) -> bytes:
        return render(self, msgspec.structs.replace(order, files=order.files[1:]), title)

    async with Emulator(250, seed=SEED) as emulator:
        await sync_lists(emulator, tmp_path / "lake")
        with monkeypatch.context() as patch:
            patch.setattr(Reports, "_render", leave_out)
            result = await run_report(emulator, tmp_path / "lake", tmp_path / "out")
        assert emulator.counts["report"] == 3 * 5
        assert len(result.manifest.failed) == 250
        reasons = {file["reason"] for file in read_manifest(tmp_path / "out")["files"]}
        assert any("after 5 orders" in reason for reason in reasons), reasons
        assert list((tmp_path / "out").glob("*.pdf")) == []
        result = await run_report(emulator, tmp_path / "lake", tmp_path / "out")
        assert not result.manifest.failed
        assert len(check_folder(tmp_path / "out")) == 250


@pytest.mark.parametrize("kind", ["503", "429"])
@pytest.mark.parametrize(("form", "seconds"), [("seconds", 1), ("seconds", 3), ("http-date", 3)])
async def test_an_order_is_not_repeated_before_its_retry_after(
    tmp_path: Path, kind: str, form: str, seconds: int
) -> None:
    """After a 503 or a 429 the next order waits for `Retry-After`, whichever call sends it."""
    ordered_at: list[float] = []
    async with Emulator(250, seed=SEED) as emulator:
        await sync_lists(emulator, tmp_path / "lake")
        emulator.set_faults(retry_after=form, retry_after_seconds=seconds)
        emulator.script(kind, path="/api/v2/reports")
        emulator.on_request = lambda endpoint: ordered_at.append(time.monotonic()) if endpoint == "report" else None
        result = await run_report(emulator, tmp_path / "lake", tmp_path / "out")
    assert not result.manifest.failed
    assert len(ordered_at) == 4
    # A date has whole seconds, so that its pause is up to a second shorter.
    assert ordered_at[1] - ordered_at[0] >= seconds - (form == "http-date")


async def test_a_503_with_a_pause_of_years_ends_the_run(tmp_path: Path) -> None:
    """After a 503 whose `Retry-After` is too long to wait no further order is sent in this run."""
    async with Emulator(250, seed=SEED) as emulator:
        await sync_lists(emulator, tmp_path / "lake")
        emulator.set_faults(retry_after="huge")
        emulator.script("503", path="/api/v2/reports")
        with pytest.raises(ServiceUnavailableError, match="Retry-After that is too long"):
            await run_report(emulator, tmp_path / "lake", tmp_path / "out")
        assert emulator.counts["report"] == 1
        assert not (await run_report(emulator, tmp_path / "lake", tmp_path / "out")).manifest.failed
