"""POST /reports with its downloads, and GET /share."""

import asyncio
import io
import re
from urllib.parse import urlsplit

import pypdf
import pytest

from pipeline.emulator import Quirks
from tests.emulator.http_client import Asker, Reply, asking


async def _ordered(ask: Asker, body: object) -> tuple[Reply, str]:
    reply = await ask.post("/api/v2/reports", body)
    return reply, reply.json().get("url", "")


async def test_a_synchronous_report_is_there_at_once_and_lists_its_files() -> None:
    """201 with a URL whose PDF, opened by a reader, names every id and scan code ordered."""
    async with asking(100) as ask:
        records = list(ask.emulator.world.records.values())
        reply, url = await _ordered(ask, {"files": [r.key for r in records], "filename": "Prüfung (1)"})
        assert reply.status == 201
        pdf = await ask.get(url, token=False)
        assert (pdf.status, pdf.headers["Content-Type"]) == (200, "application/pdf")
        assert pdf.body.startswith(b"%PDF-")
        assert pdf.body.endswith(b"%%EOF\n")
        # Readers mend a wrong cross-reference table silently, so it is checked here entry by entry.
        places = [int(found) for found in re.findall(rb"(\d{10}) 00000 n ", pdf.body)]
        assert all(pdf.body[at:].startswith(b"%d 0 obj" % number) for number, at in enumerate(places, 1))
        assert pdf.body[int(pdf.body.split()[-2]) :].startswith(b"xref")
        reader = pypdf.PdfReader(io.BytesIO(pdf.body), strict=True)
        text = "\n".join(page.extract_text() for page in reader.pages)
        assert len(reader.pages) == 3
        assert all(str(record.key) in text and record.scan_code in text for record in records)
        assert "Prüfung (1)" in text
        assert ask.emulator.leaks == []


@pytest.mark.parametrize(("answer", "status"), [("404", 404), ("403", 403), ("empty-200", 200), ("html-200", 200)])
async def test_an_asynchronous_report_appears_after_its_time(answer: str, status: int) -> None:
    """The URL comes at once; until the report is there it answers in the shape of the quirk; a lost one never is."""
    quirks = Quirks(report_not_ready=answer, report_ready_seconds=0.2, report_async_status="202")  # type: ignore[arg-type]
    async with asking(5, quirks=quirks) as ask:
        order = {"files": ask.emulator.world.keys(), "asynchronous": True}
        reply, url = await _ordered(ask, order)
        assert reply.status == 202
        early = await ask.get(url, token=False)
        assert (early.status, early.body.startswith(b"%PDF")) == (status, False)
        await asyncio.sleep(0.25)
        assert (await ask.get(url, token=False)).body.startswith(b"%PDF")
        assert (ask.emulator.counts["poll"], ask.emulator.counts["download"]) == (1, 1)
        ask.emulator.set_quirks(report_ready_seconds=0.0, report_ready_polls=2)
        _, url = await _ordered(ask, order)
        assert [(await ask.get(url, token=False)).body[:4] == b"%PDF" for _ in range(3)] == [False, False, True]
        ask.emulator.set_quirks(report_lost_ratio=1.0, report_ready_polls=0)
        _, url = await _ordered(ask, order)
        assert not (await ask.get(url, token=False)).body.startswith(b"%PDF")


async def test_a_malformed_order_answers_422() -> None:
    """An order whose body breaks a rule, or of 101 files, is refused with a text and makes no report.

    An id that names no file is left out of the PDF, or refuses the whole order.
    """
    settings = ({"dateTime": {"zone": "Mars/Base"}}, {"format": "docx"})
    bodies = [{}, *({"files": files} for files in ([], ["1"], [True])), {"files": [1], "template": "2"}, [1], "text"]
    async with asking(101) as ask:
        for body in (*bodies, *({"files": [1], "settings": one} for one in settings)):
            reply, _ = await _ordered(ask, body)
            assert (reply.status, reply.json()["response"]) == (422, "error"), body
        assert not ask.emulator.reports.by_secret
        keys = ask.emulator.world.keys()
        assert (await _ordered(ask, {"files": keys}))[0].status == 422
        assert (await _ordered(ask, {"files": keys[:100] + keys[:50]}))[0].status == 201
        assert (await _ordered(ask, {"files": [keys[0], 1]}))[0].status == 201
        ask.emulator.set_quirks(report_unknown_ids="404")
        assert (await _ordered(ask, {"files": [keys[0], 1]}))[0].status == 404


async def test_a_credential_that_reaches_a_download_is_noted() -> None:
    """Token, cookie and referrer at a report's URL, and anything at the other origin, are recorded.

    report_disposition=traversal sends a name that would leave the folder.
    """
    async with asking(3, quirks=Quirks(report_host="other-port", report_disposition="traversal")) as ask:
        _, url = await _ordered(ask, {"files": ask.emulator.world.keys()})
        assert urlsplit(url).port == ask.emulator.other_port
        assert "../" in (await ask.get(url, token=False)).headers["Content-Disposition"]
        assert ask.emulator.leaks == []
        await ask.get(url, headers={"Cookie": "a=b", "Referer": "http://x/"})
        assert set(ask.emulator.leaks) == {"query", "cookie", "referer"}
        await ask.get(f"{ask.emulator.other_url}/api/v2/files")
        assert ask.emulator.strays == ["GET /api/v2/files with query"]


async def test_shares_give_the_answers_of_the_interface_none_of_them_cacheable() -> None:
    """200, 401, 404 and 422 come with their texts and Cache-Control: no-cache."""
    async with asking(3) as ask:
        code = ("reference", next(iter(ask.emulator.world.by_reference)))
        replies = [
            await ask.get("/api/v2/share", [code]),
            await ask.get("/api/v2/share", [code], token=False),
            await ask.get("/api/v2/share", [("reference", "nobody's")]),
            await ask.get("/api/v2/share", [code, ("timezone", "Europe/Nowhere")]),
        ]
        assert [reply.status for reply in replies] == [200, 401, 404, 422]
        texts = ["SHARE CREATED", "Unauthorized", "NO FILE FOUND", "INVALID TIMEZONE"]
        assert [reply.json()["status"] for reply in replies] == texts
        assert {reply.headers["Cache-Control"] for reply in replies} == {"no-cache"}
        assert (await ask.get("/api/v2/share", [code, ("expires", "soon")])).status == 422
        assert (await ask.get("/api/v2/share", [("reference", "x" * 256)])).status == 422


async def test_shares_send_e_mail_unless_told_not_to() -> None:
    """E-mail goes to the recipient by default, to several with dl, to nobody with send_email=false."""
    async with asking(3) as ask:
        code = next(iter(ask.emulator.world.by_reference))
        to = [("reference", code), ("email", "a@example.com")]
        await ask.get("/api/v2/share", [*to, ("send_email", "false")])
        assert ask.emulator.emails == []
        await ask.get("/api/v2/share", to)
        assert ask.emulator.emails == [("a@example.com", code)]
        await ask.get("/api/v2/share", [("reference", code), ("dl", "DL7")])
        assert len(ask.emulator.emails) == 4
