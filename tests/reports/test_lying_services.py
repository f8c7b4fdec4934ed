"""Services that answer orders late or wrongly: endless pauses, errors as successes, one document for all.

And report URLs that want the token.
"""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from structlog.testing import capture_logs

from pipeline.emulator import pdf
from pipeline.emulator.reports import Reports
from pipeline.errors import AuthenticationError, ExitCode, ServiceUnavailableError
from tests.reports.report_harness import (
    FILES,
    Selection,
    check_folder,
    check_orders,
    encrypt,
    quick_client,
    read_manifest,
    set_batch_size,
)

if TYPE_CHECKING:
    from pipeline.emulator import Emulator
    from tests.reports.report_harness import Scene


@pytest.mark.virtual_time
@pytest.mark.parametrize(("kind", "accepted"), [("429", 0), ("429", 1), ("503", 0)])
async def test_a_pause_of_years_ends_the_run(scene: Scene, kind: str, accepted: int) -> None:
    """An order that must wait 30 years ends the run soon, with exit 1; accepted reports are saved; the rest is kept."""
    emulator = scene.emulator
    emulator.set_faults(retry_after="huge")
    emulator.script(kind, path="/api/v2/reports", skip=accepted)
    with pytest.raises(
        ServiceUnavailableError, match=f"POST /reports: HTTP {kind}.*Retry-After that is too long"
    ) as end:
        await scene.run()
    assert end.value.exit_code == ExitCode.FAILED
    assert asyncio.get_running_loop().time() <= 2
    assert (emulator.counts["report"], emulator.injected_faults[kind]) == (accepted + 1, 1)
    assert len(list(scene.out.glob("*.pdf"))) == accepted
    await scene.deliver()


@pytest.mark.virtual_time
@pytest.mark.parametrize("host", ["same", "other-port"])
@pytest.mark.parametrize(("kind", "pause"), [("429", "huge"), ("429", "seconds"), ("503", "huge"), ("stall", "absent")])
async def test_the_timeout_bounds_every_wait_of_a_report(scene: Scene, host: str, kind: str, pause: str) -> None:
    """A report whose host asks for a pause, or does not answer, is named after --timeout and one last poll.

    A pause of another host holds back no other call. With one of the service itself the run ends with exit 1, because
    it cannot confirm the files of a saved report; the next run has everything.
    """
    emulator = scene.emulator
    emulator.set_quirks(report_host=host)
    emulator.set_faults(retry_after=pause, retry_after_seconds=30)
    emulator.script(kind, times=99, path="/reports/", skip=1)
    client = quick_client(emulator, attempt_timeout_seconds=60.0)
    if host == "same" and kind != "stall":
        with pytest.raises(ServiceUnavailableError, match=r"asks for a pause of \d+ s, longer than --timeout 4\."):
            await scene.run(client=client, timeout_seconds=4.0)
    else:
        result = await scene.run(client=client, timeout_seconds=4.0)
        reasons = {str(file.reason) for file in result.manifest.failed}
        assert FILES - len(result.manifest.failed) == len(check_folder(scene.out)) > 0
        assert {reason.partition(":")[0] for reason in reasons} == {"not ready 4 s after its order"}, reasons
    assert asyncio.get_running_loop().time() <= 10
    emulator.faults.clear()
    emulator.set_quirks(report_host="same")
    await scene.run(client=quick_client(emulator))
    assert len(check_folder(scene.out)) == FILES


@pytest.mark.virtual_time
async def test_a_download_that_goes_on_is_not_cut_off(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """A PDF that is there within --timeout, and whose bytes come slowly, is downloaded to its end."""
    monkeypatch.setattr("pipeline.emulator.faults._DRIP_SECONDS", 0.0035)
    scene.emulator.script("drip", times=9, path="/reports/")
    await scene.deliver(timeout_seconds=1.0)
    assert asyncio.get_running_loop().time() > 5


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


@pytest.mark.virtual_time
@pytest.mark.parametrize(
    ("documents", "shows"),
    [
        ("first-url", "nothing"),
        ("first-content", "nothing"),
        ("first-url", "reference"),
        ("first-content", "id-and-reference"),
    ],
)
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


@pytest.mark.parametrize("broken", [b"%PDF-1.4\n%%EOF\n", b"%PDF-1.4\n<html>Error 500</html>\n" * 40 + b"%%EOF"])
async def test_a_pdf_that_cannot_be_opened_is_not_delivered(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, broken: bytes
) -> None:
    """Its files fail by name after two orders, with exit 4, and no PDF stays; those of other PDFs are delivered."""
    render, counts = pdf.render_pdf, scene.emulator.counts
    with monkeypatch.context() as patch:
        patch.setattr(pdf, "render_pdf", lambda title, lines: render(title, lines) if "-0002-" in title else broken)
        answer = await scene.report("--json")
    assert (answer.code, answer.json["delivered"], answer.json["pdfs_not_read"]) == (ExitCode.REJECTS, 10, [])
    assert {file["reason"] for file in answer.json["failed"]} == {"its PDF cannot be opened"}
    assert len(answer.json["failed"]) == FILES - 10
    assert (counts["report"], [path.name for path in scene.out.glob("*.pdf*")]) == (5, ["report-0002.pdf"])
    answer = await scene.report()
    assert (answer.code, answer.out.splitlines()[1]) == (ExitCode.OK, "3 of 3 PDFs were read")
    assert "25 in\n3 PDFs. 3 of 3 PDFs were read." in (scene.out / "index.html").read_text()
    assert len(check_folder(scene.out)) == FILES


async def test_a_pdf_that_is_not_looked_at_is_named(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """A PDF that needs a password is delivered; summary, page, manifest and the check of the folder name it."""
    render = pdf.render_pdf
    monkeypatch.setattr(pdf, "render_pdf", lambda *content: encrypt(render(*content), "secret"))
    answer = await scene.report()
    assert answer.code == ExitCode.OK, answer
    names = [f"report-{number:04}.pdf" for number in (1, 2, 3)]
    assert [answer.out.splitlines()[1], *answer.out.splitlines()[3:]] == [
        "0 of 3 PDFs were read",
        *(f"not looked at: {name}" for name in names),
    ]
    found = {(item["pdf"], item["pages"], item["references_found"]) for item in read_manifest(scene.out)["pdfs"]}
    assert found == {(name, "not looked at", None) for name in names}
    assert "25 in\n3 PDFs. 0 of 3 PDFs were read." in (scene.out / "index.html").read_text()
    answer = await scene.command("check", "--report", str(scene.out))
    assert (answer.code, answer.out.count(": not looked at")) == (ExitCode.OK, 3)


@pytest.mark.virtual_time
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


@pytest.mark.virtual_time
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
    await scene.deliver()


@pytest.mark.virtual_time
async def test_the_last_order_has_no_file_in_doubt(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """A service that leaves another file out of each of four reports delivers the fifth, without the last of them."""
    render, counts = Reports._render, scene.emulator.counts

    def leave_out(self: Reports, order: Any, title: str) -> bytes:
        files = [file for place, file in enumerate(order.files) if place != counts["report"] or place > 3]
        return render(self, msgspec.structs.replace(order, files=files), title)

    monkeypatch.setattr(Reports, "_render", leave_out)
    await scene.run(Selection("ids", ids=tuple(scene.keys[:6])))
    assert counts["report"] == 5
    assert [file["file_id"] for file in read_manifest(scene.out)["files"] if file["reason"]] == [scene.keys[3]]


@pytest.mark.virtual_time
@pytest.mark.parametrize(("kind", "form"), [("503", "seconds"), ("429", "http-date")])
async def test_an_order_is_not_repeated_before_its_retry_after(scene: Scene, kind: str, form: str) -> None:
    """After a 503 or a 429 the next order waits for `Retry-After`, whichever call sends it."""
    emulator, loop = scene.emulator, asyncio.get_running_loop()
    ordered_at: list[float] = []
    emulator.set_faults(retry_after=form, retry_after_seconds=30)
    emulator.script(kind, path="/api/v2/reports")
    emulator.on_request = lambda endpoint: ordered_at.append(loop.time()) if endpoint == "report" else None
    result = await scene.deliver(Selection("ids", ids=tuple(scene.keys[:10])))
    assert len(emulator.reports.by_secret) == 1
    unknown = int(kind == "503")  # a 429 means that nothing was ordered
    assert len(result.manifest.unknown_orders) == read_manifest(scene.out)["counts"]["unknown_orders"] == unknown
    first, second = ordered_at
    # A date has whole seconds, so that its pause is up to a second shorter.
    assert 30 - (form == "http-date") <= second - first <= 32


@pytest.mark.virtual_time
async def test_a_service_that_answers_late_gets_one_order_at_a_time(scene: Scene) -> None:
    """An answer that takes as long as the report, and longer than other calls may, is waited for: none comes twice."""
    emulator = scene.emulator
    emulator.set_quirks(report_async="ignored", report_seconds=1_700.0)
    counts: list[int] = []
    emulator.on_request = lambda endpoint: counts.append(emulator.in_flight) if endpoint == "report" else None
    result = await scene.deliver()
    assert max(counts) == 1
    assert emulator.counts["report"] == len(result.manifest.orders) == 3
    assert 3 * 1_700 <= asyncio.get_running_loop().time() < 3 * 1_700 + 1
    assert check_orders(emulator, scene.out) == 0


@pytest.mark.virtual_time
async def test_a_report_that_cannot_be_fetched_yet_is_polled_on(scene: Scene) -> None:
    """A 403 may mean "not ready", and an error of the report's host may pass: no warning, and no order repeated."""
    scene.emulator.set_quirks(report_not_ready="403", report_ready_polls=2)
    scene.emulator.script("500", path="/reports/")
    with capture_logs() as logged:
        await scene.deliver(client=quick_client(scene.emulator, max_attempts=1))
    assert [line["event"] for line in logged if line["log_level"] == "warning"] == []
    assert (scene.emulator.counts["report"], scene.emulator.injected_faults["500"]) == (3, 1)


@pytest.mark.virtual_time
async def test_a_file_that_cannot_be_confirmed_is_not_called_absent(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that the service does not show before its order is in no PDF, with this reason; the next run has it."""
    monkeypatch.setattr("pipeline.reports.confirmation.MAX_LIMIT", 5)  # five pages: details are cheaper
    first, *others = scene.keys[:3]
    scene.emulator.script("500", times=99, path=f"/api/v2/files/{first}")
    selection = Selection("ids", ids=tuple(scene.keys[:3]))
    result = await scene.run(selection)
    assert [file.file_id for file in result.manifest.failed] == [first]
    assert str(result.manifest.failed[0].reason).startswith("not confirmed in the service before its order: ")
    assert sorted(check_folder(scene.out)) == others
    scene.emulator.faults.clear()
    await scene.deliver(selection)


@pytest.mark.virtual_time
@pytest.mark.parametrize("token_location", ["query", "header"])
async def test_a_report_url_that_wants_the_token_gets_it(scene: Scene, token_location: str) -> None:
    """After one 401 the service's own origin gets the token. A 401 with it stops the run at once, not after --timeout.

    The order stays, and the next run polls it.
    """
    emulator, first = scene.emulator, scene.out.with_name("first")
    emulator.set_quirks(report_download_token="required")
    await scene.run(client=quick_client(emulator, token_location=token_location), out=first)
    assert emulator.statuses[401] == 1
    assert len(check_folder(first)) == FILES
    emulator.reset()
    emulator.set_quirks(report_download_token="refused")
    with pytest.raises(BaseExceptionGroup) as raised:
        await scene.run(client=quick_client(emulator, token_location=token_location))
    assert raised.group_contains(AuthenticationError, match="HTTP 401, without the token and with it")
    orders = emulator.counts["report"]
    assert asyncio.get_running_loop().time() <= 2
    emulator.set_quirks(report_download_token="required")
    await scene.deliver(client=quick_client(emulator, token_location=token_location))
    # An order whose response the stopped run did not wait for is sent again.
    with closing(sqlite3.connect(scene.lake / "ledger.sqlite")) as ledger:
        ((unknown,),) = ledger.execute("SELECT count(*) FROM report_order WHERE state = 'unknown'").fetchall()
    assert max(orders, 3) <= emulator.counts["report"] <= 3 + unknown


@pytest.mark.virtual_time
async def test_another_host_that_wants_credentials_never_gets_the_token(scene: Scene) -> None:
    """A 401 of another host fails the report by name at once; the host sees no secret."""
    emulator = scene.emulator
    emulator.set_quirks(report_host="other-port")
    emulator.script("401", times=2, path="/reports/")
    result = await scene.run(Selection("ids", ids=tuple(scene.keys[:10])))
    assert result.had_protocol_errors
    assert {"another host wants credentials (HTTP 401)" in str(file.reason) for file in result.manifest.failed} == {
        True
    }
    assert (emulator.leaks, emulator.strays) == ([], [])
    assert emulator.counts["poll"] == 1
