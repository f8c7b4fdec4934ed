"""PDFs as services make them: odd, broken, or small on the disk and not in the processor or memory."""

from __future__ import annotations

import asyncio
import os
import signal
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pipeline.emulator import pdf
from pipeline.processes.worker import WorkerEndedError
from pipeline.reports import pdf_reader
from pipeline.reports.pdf_reader import PdfReader, Unread
from tests.processes import children_of, ended
from tests.reports.report_harness import encrypt, replace_file

if TYPE_CHECKING:
    from asyncio.subprocess import Process

    from tests.reports.report_harness import Scene

_FILES = {4711: "SC-4711", 4712: "SC-4712"}
_READ = {4711: True, 4712: False}
_ORDINARY = b"(File 4711 SC-4711) Tj "
_SLOW = b"(abcdefgh) Tj " * 100_000  # pypdf 7.1 takes 6 s for each page
_LARGE = _ORDINARY + b"BI /W 1 /H 1 /BPC 8 /CS /G ID %s EI " % bytes(20_000_000)  # takes 40 MB


@pytest.fixture
def _one_pdf_worker() -> None:
    """Each reader has a worker of its own here."""


def make_pdf(content: bytes, pages: int = 1) -> bytes:
    """Return a PDF whose pages share one compressed content."""
    stream = zlib.compress(b"BT /F1 1 Tf " + content + b"ET", 9)
    kids = b" ".join(b"%d 0 R" % (5 + page) for page in range(pages))
    resources = b"/MediaBox [0 0 9 9] /Resources << /Font << /F1 3 0 R >> >>"
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Count %d /Kids [%s] >>" % (pages, kids),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
        b"<< /Length %d /Filter /FlateDecode >> stream\n%s\nendstream" % (len(stream), stream),
        *[b"<< /Type /Page /Parent 2 0 R %s /Contents 4 0 R >>" % resources] * pages,
    ]
    body, table = b"%PDF-1.4\n", b"0000000000 65535 f \n"
    for number, each in enumerate(objects, 1):
        table += b"%010d 00000 n \n" % len(body)
        body += b"%d 0 obj\n%s\nendobj\n" % (number, each)
    size = len(objects) + 1
    trailer = b"trailer << /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n" % (size, len(body))
    return body + b"xref\n0 %d\n" % size + table + trailer


@pytest.mark.parametrize(
    ("name", "limit", "content"),
    [
        ("_MAX_PROCESSOR_SECONDS", 1, make_pdf(_SLOW, 40)),
        ("_MAX_MEMORY_BYTES", 85 * 1024**2, make_pdf(_LARGE)),  # Python and pypdf take 65
    ],
    ids=["time", "memory"],
)
def test_a_pdf_beyond_a_limit_is_not_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, limit: int, content: bytes
) -> None:
    """Too much work and too much memory say nothing about a PDF; those before and after it are read."""
    monkeypatch.setattr(pdf_reader, name, limit)
    assert len(content) < 50_000
    ordinary = make_pdf(_ORDINARY)
    assert read_all(tmp_path, ordinary, content, ordinary) == [_READ, Unread.SKIPPED, _READ]


def read_all(folder: Path, *contents: bytes) -> list[object]:
    """Return what one reader says of each PDF."""
    path = folder / "read.pdf"
    with closing(PdfReader()) as reader:
        return [reader.read(path, _FILES) for content in contents if path.write_bytes(content)]


def test_what_no_viewer_opens_is_told_from_what_is_not_looked_at(tmp_path: Path) -> None:
    """Odd PDFs are read, one with a password or an unknown filter is not looked at, no PDF cannot be opened."""
    sound = make_pdf(_ORDINARY)
    warning = b"<br />\n<b>Warning</b>: Undefined variable $x in <b>/var/www/report.php</b> on line <b>12</b><br />\n"
    odd = [b"\n" + sound, b"\xef\xbb\xbf" + sound, warning + sound, sound + bytes(1_000), encrypt(sound, "")]
    assert read_all(tmp_path, *odd) == [_READ] * len(odd)
    closed = [encrypt(sound, "secret"), sound.replace(b"/FlateDecode", b"/FutureCodec")]
    assert read_all(tmp_path, *closed) == [Unread.SKIPPED] * len(closed)
    holes = sound[:60] + bytes(len(sound) - 120) + sound[-60:]
    shells = [b"%PDF", b"%PDF-1.4\n%%EOF\n", b"%PDF-1.4 <html>Error 500</html> %%EOF", sound[:300] + b"%%EOF", holes]
    shells += [make_pdf(_ORDINARY, pages=0), sound.replace(b"/Type /Page ", b"/Type /Nope")]
    assert read_all(tmp_path, *shells) == [Unread.BROKEN] * len(shells)
    with closing(PdfReader()) as reader:
        assert reader.read(tmp_path / "moved" / "report.pdf", _FILES) is Unread.SKIPPED


def test_a_closed_reader_reads_nothing(tmp_path: Path) -> None:
    """A thread that reads is told of the end: "not read" would let it go on, and sign what it did not check."""
    path = tmp_path / "slow.pdf"
    path.write_bytes(make_pdf(_SLOW, 40))
    before = children_of(os.getpid())
    with ThreadPoolExecutor(1) as pool, closing(PdfReader()) as reader:
        reading = pool.submit(reader.read, path, _FILES)
        while children_of(os.getpid()) == before:
            time.sleep(0.01)
        reader.close()
        for read in (reading.result, partial(reader.read, path, _FILES)):
            with pytest.raises(WorkerEndedError):
                read()


@pytest.mark.parametrize("case", ["certified", "complete", "checked"])
async def test_a_stop_on_request_waits_for_no_pdf(scene: Scene, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    """SIGTERM ends a job that reads a PDF, new or complete, and a check of its folder; no process is left."""
    slow = make_pdf(_SLOW, 40)
    command = ("report", "--where", "TRUE", "--out", str(scene.out))
    if case == "certified":
        monkeypatch.setattr(pdf, "render_pdf", lambda *_: slow)
    else:
        await scene.run()
        replace_file(scene.out, "report-0002.pdf", slow)
    process = await scene.start(*(("check", "--report", str(scene.out)) if case == "checked" else command))
    worker = await _wait_for_work(process)
    process.send_signal(signal.SIGTERM)
    code, _, err = await ended(process, within=10)
    assert code == 130, err
    assert "Traceback" not in err
    assert not Path(f"/proc/{worker}").exists()  # noqa: ASYNC240 - in memory


async def _wait_for_work(process: Process) -> int:
    """Wait until a child of a command has used the processor for longer than its start takes. Return its id."""
    while True:
        assert process.returncode is None
        for child in children_of(process.pid):
            used = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[11]  # noqa: ASYNC240 - in memory
            if int(used) >= 100:  # hundredths of a second
                return child
        await asyncio.sleep(0.01)
