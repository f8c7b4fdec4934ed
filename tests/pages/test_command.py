"""The command: what it writes and refuses to write, and what it serves, to whom."""

from __future__ import annotations

import asyncio
import os
import re
import socket
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest

from pipeline import __version__
from pipeline.cli.commands import serve
from pipeline.errors import ExitCode
from pipeline.lake.lake import Lake
from pipeline.lake.ledger.queries import RunRecord, VerificationRecord
from pipeline.query.catalog_access import CatalogAccess
from pipeline.settings.settings import Settings
from schemas.timestamps import now_us, to_datetime
from tests.forkserver import run_command
from tests.pages.browse_client import start_browse
from tests.pages.page_lakes import ParsedPage, republish
from tests.processes import NOBODY, why_not_as_nobody
from tests.rows import every

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.pages.browse_client import Visitor
    from tests.processes import Answer

    Main = Callable[..., Answer]

WRITE = ("--lake", "lake", "serve", "--write")


# The file


@pytest.mark.usefixtures("small_lake")
def test_a_file_is_written_and_renewed(main: Main, tmp_path: Path) -> None:
    """The page is written beside nothing else, and may replace one of ours; what is none stays, and so does a link."""
    page, other = tmp_path / "dashboard.html", tmp_path / "x.html"
    answer = main(*WRITE, "dashboard.html")
    assert (answer.code, answer.err) == (0, "")
    assert answer.out == f"{page}: {page.stat().st_size:,} bytes\n"
    text = ParsedPage(page.read_text(encoding="utf-8")).text
    assert "Files 2 " in text
    assert re.search(r"Size [\d.]+ MB documents [\d.]+ kB, tables [\d.]+ kB, catalog [\d.]+ kB, ", text), text
    before = page.stat().st_ino
    assert page.stat().st_mode & 0o777 == 0o644
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dashboard.html", "lake"]
    other.write_text("<p>scanlake serve</p>", encoding="utf-8")
    (tmp_path / "report.html").write_text('<!doctype html><meta name="generator" content="other">', encoding="utf-8")
    (tmp_path / "link.html").symlink_to(other)
    for name in ("x.html", "report.html", "link.html"):
        answer = main(*WRITE, name)
        assert answer.code == ExitCode.USAGE
        assert "exists and is not a file that scanlake has written. Use another file" in answer.err
    assert other.read_text(encoding="utf-8") == "<p>scanlake serve</p>"
    assert main(*WRITE, "new/folder/dashboard.html").code == 0
    told = main(*WRITE, "dashboard.html", "--json").json
    assert told == {"ok": True, "exit_code": 0, "path": str(page), "bytes": page.stat().st_size}
    assert page.stat().st_ino != before


@pytest.mark.usefixtures("small_lake")
def test_mistakes_are_one_line(main: Main, tmp_path: Path) -> None:
    """A mistake ends with its code and one line, and leaves nothing behind; a full disk leaves the former page."""
    folder = tmp_path / "pages"
    folder.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        for arguments, says in (
            (("--write", "."), "exists and is not a file that scanlake has written. Use another file."),
            (("--write", "../lake/dashboard.html"), "is in the lake"),
            (("--port", "1234", "--write", "x.html"), "--port and --write exclude each other"),
            (("--lake", "nolake"), "scanlake init"),
            (("--port", str(taken.getsockname()[1])), "Use another port with --port"),
        ):
            os.chdir(folder)
            answer = main("--lake", "../lake", "serve", *arguments)
            assert (answer.code, len(answer.lines), answer.out) == (ExitCode.USAGE, 1, ""), arguments
            assert says in answer.err, arguments
    assert list(folder.iterdir()) == []
    command = (*WRITE, str(folder / "dashboard.html"))
    os.chdir(tmp_path)
    assert main(*command).code == 0
    former = (folder / "dashboard.html").read_text(encoding="utf-8").replace(__version__, "0.0.1", 1)
    (folder / "dashboard.html").write_text(former, encoding="utf-8")
    finished = run_command(command, cwd=tmp_path, env=dict(os.environ), limits={"RLIMIT_FSIZE": 8_192})
    assert finished.code == ExitCode.STORAGE, finished.err
    assert [path.name for path in folder.iterdir()] == ["dashboard.html"]
    assert (folder / "dashboard.html").read_text(encoding="utf-8") == former


# Served


async def test_served_to_this_machine_under_its_own_name(small_lake: Path, canary: str) -> None:
    """Only / is there without the key, only on 127.0.0.1, and only for who calls it by that name."""
    async with start_browse(small_lake, SCANLAKE_TOKEN=canary) as (visitor, process):
        port = visitor.port
        status, headers, page = visitor.call()
        assert status == 200
        assert "Files 2 " in ParsedPage(page).text
        assert canary not in page
        assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
        assert headers["Content-Security-Policy"].startswith("default-src 'none'")
        assert (headers["Cache-Control"], headers["Server"]) == ("no-store", "scanlake")
        assert visitor.call(Host=f"localhost:{port}")[0] == 200
        for path in ("/x", "//", "/version", "/../lake/ledger.sqlite", "/%2e%2e/", "/favicon.ico", "/dashboard.html"):
            assert visitor.call(path)[0] == 404, path
        assert visitor.call(method="POST")[0] == 405
        assert visitor.call(method="HEAD")[::2] == (200, "")
        with pytest.raises(OSError, match="refused"):
            socket.create_connection(("127.0.0.2", port), timeout=5)
        for head in HEADS:
            reply = visitor.send_raw(b"GET " + head.format(port=port).encode() + b"\r\nConnection: close\r\n\r\n")
            assert reply.startswith((b"HTTP/1.1 4", b"HTTP/1.0 4")), (head, reply[:100])
            assert b"Files" not in reply, head
        assert visitor.call()[0] == 200
        assert process.returncode is None


@pytest.mark.skipif(why_not_as_nobody() != "", reason=why_not_as_nobody())
async def test_a_key_that_another_user_got_opens_nothing(small_lake: Path) -> None:
    """Browsers send cookies to every port of a host: another user who has the key by that sees no rows with it."""
    async with start_browse(small_lake) as (visitor, _):
        assert visitor.get("/browse")[0] == 200
        if (process := os.fork()) == 0:
            os.setuid(NOBODY)
            os._exit(visitor.get("/browse")[0] - 300)
        _, status = await asyncio.to_thread(os.waitpid, process, 0)
        assert os.waitstatus_to_exitcode(status) == 103


def test_the_port_of_http_need_not_be_named(visitor: Visitor) -> None:
    """A client leaves out port 80, and no other."""
    with patch("pipeline.query.site._HTTP_PORT", visitor.port):
        codes = [
            visitor.call(Host=host)[0] for host in ("127.0.0.1", "localhost", f"localhost:{visitor.port}", "a", "")
        ]
    assert codes == [200, 200, 200, 421, 421]


HOSTS = (
    ":{port} evil.example:{port} 127.0.0.1.evil.example:{port} evil.localhost:{port} evil.example@127.0.0.1:{port}"
    " localhost 127.0.0.1:80 127.0.0.1:0{port} localhost.:{port} 127.1:{port} 0x7f000001:{port} 2130706433:{port}"
    " 127.0.0.2:{port} 0.0.0.0:{port} [::1]:{port} [::ffff:127.0.0.1]:{port} http://127.0.0.1:{port} 127.0.0.1:{port}/"
    " 127.0.0.1:{port}\0evil"
).split()
HEADS = (  # after the request line's method; {port} is the server's
    *(f"/ HTTP/1.1\r\nHost: {host}" for host in [*HOSTS, "", " \t ", "127.0.0.1:{port}, evil.example"]),
    "/ HTTP/1.1",
    "/ HTTP/1.0",
    "/ HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nHost: evil.example",
    "/ HTTP/1.1\r\nHost: evil.example\r\nHost: 127.0.0.1:{port}",
    "/ HTTP/1.1\r\nHost: evil.example\r\nX-Forwarded-Host: 127.0.0.1:{port}",
    "/ HTTP/1.1\r\nX: y\nHost: 127.0.0.1:{port}",
    "http://evil.example/ HTTP/1.1\r\nHost: 127.0.0.1:{port}",
    "//evil.example/ HTTP/1.1\r\nHost: 127.0.0.1:{port}",
)


def test_failing_and_paused_syncs_need_attention(small_lake: Path, main: Main) -> None:
    """A page that is made after syncs have failed, or after a rollback, says so, although neither published rows."""
    settings = Settings(lake=small_lake)

    def render() -> str:
        return serve._render(settings, CatalogAccess(settings), is_served=False)

    with Lake(small_lake, doing="verify") as lake:
        values: list[Any] = ["r1", to_datetime(now_us()), "list", True, None, 2, 2, *[0] * 8, {}]
        lake.ledger.record_verification(VerificationRecord(*values))
    republish(small_lake)
    assert "failed" not in _attention(render())
    with Lake(small_lake, doing="sync") as lake:
        for run_id in ("r2", "r3"):
            lake.ledger.begin_run(RunRecord(run_id, "sync", "0", now_us(), state="failed", error="HTTP 503"))
    assert "The last 2 runs failed: HTTP 503" in _attention(render())
    assert main("--lake", str(small_lake), "rollback", "1", "--yes").code == ExitCode.OK
    assert "Syncs are paused: the lake was rolled back to snapshot 1." in _attention(render())
    shown = main("--lake", str(small_lake), "status").out
    assert "Paused: the lake was rolled back to snapshot 1; `scanlake rollback --undo` allows syncs." in shown
    assert "Not verified since the last rollback" in shown, shown


@every("content", [None, b"no ledger"])
def test_a_ledger_that_cannot_be_read_needs_attention(small_lake: Path, content: bytes | None) -> None:
    """Without the ledger nobody knows how the last runs ended: the page does not call the lake current."""
    settings = Settings(lake=small_lake)
    for path in small_lake.glob("ledger.sqlite*"):
        path.unlink()
    if content is not None:
        (small_lake / "ledger.sqlite").write_bytes(content)
    page = serve._render(settings, CatalogAccess(settings), is_served=False)
    assert "The ledger cannot be read: run `scanlake check`." in _attention(page)


def _attention(page: str) -> str:
    """Return the part of a page that says what needs attention."""
    return page.partition('class="verdict problems"')[2].partition("</ul>")[0]
