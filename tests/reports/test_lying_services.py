"""Services that answer orders wrongly: endless pauses, errors as successes, one document for all."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from pipeline.emulator.reports import Reports
from pipeline.errors import ExitCode, ServiceUnavailableError
from tests.reports.report_harness import FILES, Selection, check_folder, read_manifest, set_batch_size
from tests.soaking import sample

if TYPE_CHECKING:
    from pipeline.emulator import Emulator
    from tests.reports.report_harness import Scene


@pytest.mark.parametrize(("kind", "accepted"), [("429", 0), ("429", 1), ("503", 0)])
async def test_a_pause_of_years_ends_the_run(scene: Scene, kind: str, accepted: int) -> None:
    """An order that must wait 30 years ends the run with exit 1; accepted reports are saved; the rest is kept."""
    emulator = scene.emulator
    emulator.set_faults(retry_after="huge")
    emulator.script(kind, path="/api/v2/reports", skip=accepted)
    with pytest.raises(
        ServiceUnavailableError, match=f"POST /reports: HTTP {kind}.*Retry-After that is too long"
    ) as end:
        await scene.run()
    assert end.value.exit_code == ExitCode.FAILED
    assert (emulator.counts["report"], emulator.injected_faults[kind]) == (accepted + 1, 1)
    assert len(list(scene.out.glob("*.pdf"))) == accepted
    assert not (await scene.run()).manifest.failed
    assert len(check_folder(scene.out)) == FILES


@pytest.mark.parametrize("batches", [1, 5])
async def test_an_error_in_a_success_is_not_ordered_again(
    scene: Scene, batches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of three batches is ordered once; then the run stops, with the service's text at every file."""
    set_batch_size(monkeypatch, FILES // batches)
    emulator = scene.emulator
    emulator.set_quirks(report_unknown_ids="200")
    emulator.on_request = _delete_before_order(emulator)
    answer = await scene.report("--json")
    assert answer.code == (ExitCode.REJECTS if batches == 1 else ExitCode.FAILED), answer.err
    assert emulator.counts["report"] == min(batches, 3)
    assert "an error in a 200: NO FILE FOUND" in (answer.out if batches == 1 else answer.lines[-1])
    if batches == 1:
        assert (answer.json["delivered"], len(answer.json["unknown_orders"])) == (0, 1)
        assert all("NO FILE FOUND" in file["reason"] for file in read_manifest(scene.out)["files"])
    emulator.on_request = None
    emulator.set_quirks(report_unknown_ids="skip")
    assert (await scene.report()).code == ExitCode.REJECTS
    assert len(check_folder(scene.out)) == FILES - len(emulator.world.deleted)


def _delete_before_order(emulator: Emulator) -> Any:
    """Return a hook that deletes a file of each batch after its confirmation."""
    keys = emulator.world.keys()

    def delete(endpoint: str) -> None:
        if endpoint == "report":
            emulator.world.delete([key for key in keys[::5] if key in emulator.world.records])

    return delete


@pytest.mark.parametrize("documents", ["first-url", "first-content"])
@pytest.mark.parametrize("shows", ["nothing", "reference", "id-and-reference"])
async def test_one_document_for_three_batches_is_not_three_reports(scene: Scene, documents: str, shows: str) -> None:
    """Files whose PDF came for other files too, and does not show them, fail by name after at most two orders."""
    scene.emulator.set_quirks(report_documents=documents, report_shows=shows)
    await scene.run()
    assert scene.emulator.counts["report"] <= 6
    manifest = read_manifest(scene.out)
    delivered = [file for file in manifest["files"] if file["state"] == "delivered"]
    assert len(delivered) == (0 if shows == "nothing" else 10)
    assert len(list(scene.out.glob("*.pdf"))) == (0 if shows == "nothing" else 1)
    reasons = {file["reason"] for file in manifest["files"] if file["state"] == "failed"}
    assert all("same document" in reason or "not shown" in reason for reason in reasons), reasons
    scene.emulator.set_quirks(report_documents="own")
    assert not (await scene.run()).manifest.failed


async def test_a_document_that_comes_again_in_a_later_run_is_noticed(scene: Scene) -> None:
    """A PDF that was delivered by one run is withdrawn when the next run gets the same document for other files."""
    emulator = scene.emulator
    emulator.set_quirks(report_documents="first-content", report_shows="nothing")
    emulator.set_faults(retry_after="huge")
    emulator.script("429", path="/api/v2/reports", skip=1)
    with pytest.raises(ServiceUnavailableError, match="Retry-After"):
        await scene.run()
    assert len(list(scene.out.glob("*.pdf"))) == 1
    result = await scene.run()
    assert (len(result.manifest.failed), result.manifest.pdfs) == (FILES, ())
    assert list(scene.out.glob("*.pdf")) == []
    emulator.set_quirks(report_documents="own")
    assert not (await scene.run()).manifest.failed


async def test_reports_that_always_lack_a_file_are_bounded(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """A service that leaves the first file out of each report gets five orders of a batch; every file is named."""
    render = Reports._render

    def leave_out(self: Reports, order: Any, title: str) -> bytes:
        return render(self, msgspec.structs.replace(order, files=order.files[1:]), title)

    with monkeypatch.context() as patch:
        patch.setattr(Reports, "_render", leave_out)
        result = await scene.run()
    assert scene.emulator.counts["report"] == 3 * 5
    assert len(result.manifest.failed) == FILES
    reasons = {file["reason"] for file in read_manifest(scene.out)["files"]}
    assert any("after 5 orders" in reason for reason in reasons), reasons
    assert list(scene.out.glob("*.pdf")) == []
    assert not (await scene.run()).manifest.failed
    assert len(check_folder(scene.out)) == FILES


@pytest.mark.parametrize(
    ("kind", "form", "seconds"),
    sample(
        [
            ("503", "seconds", 1),
            *(("503", form, 3) for form in ("seconds", "http-date")),
            *(("429", form, 3) for form in ("seconds", "http-date")),
            ("429", "seconds", 1),
            ("429", "http-date", 2),
        ],
        2,
    ),
)
async def test_an_order_is_not_repeated_before_its_retry_after(
    scene: Scene, kind: str, form: str, seconds: int
) -> None:
    """After a 503 or a 429 the next order waits for `Retry-After`, whichever call sends it."""
    ordered_at: list[float] = []
    emulator = scene.emulator
    emulator.set_faults(retry_after=form, retry_after_seconds=seconds)
    emulator.script(kind, path="/api/v2/reports")
    emulator.on_request = lambda endpoint: ordered_at.append(time.monotonic()) if endpoint == "report" else None
    result = await scene.run(Selection("ids", ids=tuple(scene.keys[:10])))
    assert not result.manifest.failed
    assert len(ordered_at) == 2
    # A date has whole seconds, so that its pause is up to a second shorter.
    assert ordered_at[1] - ordered_at[0] >= seconds - (form == "http-date")
