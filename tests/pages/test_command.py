"""The command: what it writes and refuses to write, and what it serves, to whom."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

import pytest

from pipeline.commands import serve
from pipeline.emulator import Emulator
from pipeline.errors import ExitCode, ScanlakeError
from pipeline.pages.catalog_access import CatalogAccess
from pipeline.settings import Settings
from tests.forkserver import run_command
from tests.pages.browse_client import start_browse
from tests.pages.page_lakes import ParsedPage, verified
from tests.sync.sync_harness import SEED, synced

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.processes import Answer

    Main = Callable[..., Answer]

WRITE = ("--lake", "lake", "serve", "--write")


# The file


@pytest.mark.usefixtures("small_lake")
def test_a_file_is_written_and_renewed(main: Main, tmp_path: Path) -> None:
    """The page is written beside nothing else, says so, and may replace an earlier one of ours."""
    answer = main(*WRITE, "dashboard.html")
    page = tmp_path / "dashboard.html"
    assert (answer.code, answer.err) == (0, "")
    assert answer.out == f"{page}: {page.stat().st_size:,} bytes\n"
    assert "Files 2 " in ParsedPage(page.read_text(encoding="utf-8")).text
    before = page.stat().st_ino
    told = main(*WRITE, "dashboard.html", "--json").json
    assert told == {"ok": True, "exit_code": 0, "path": str(page), "bytes": page.stat().st_size}
    assert page.stat().st_ino != before
    assert page.stat().st_mode & 0o777 == 0o644
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dashboard.html", "lake"]


@pytest.mark.usefixtures("small_lake")
def test_a_file_of_others_is_kept(main: Main, tmp_path: Path) -> None:
    """What is no page of ours is not overwritten; a link to a page of ours is replaced, not followed."""
    other = tmp_path / "x.html"
    other.write_text("<p>scanlake serve</p>", encoding="utf-8")
    (tmp_path / "report.html").write_text('<!doctype html><meta name="generator" content="other">', encoding="utf-8")
    (tmp_path / "link.html").symlink_to(other)
    for name in ("x.html", "report.html", "link.html"):
        answer = main(*WRITE, name)
        assert answer.code == ExitCode.USAGE
        assert "not a dashboard of scanlake. Use another file with --write, or delete this one." in answer.err
    assert other.read_text(encoding="utf-8") == "<p>scanlake serve</p>"
    assert main(*WRITE, ".").code == ExitCode.USAGE
    other.unlink()
    assert main(*WRITE, "x.html").code == 0
    assert other.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert main(*WRITE, "link.html").code == 0
    assert not (tmp_path / "link.html").is_symlink()


@pytest.mark.usefixtures("small_lake")
def test_mistakes_are_one_line(main: Main, tmp_path: Path) -> None:
    """A mistake ends with its code and one line, and leaves nothing behind."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        for arguments, says in (
            (("--write", "lake/dashboard.html"), "is in the lake"),
            (("--write", "nowhere/dashboard.html"), "is not a folder"),
            (("--port", "1234", "--write", "x.html"), "--port and --write exclude each other"),
            (("--lake", "nolake"), "scanlake init"),
            (("--port", str(taken.getsockname()[1])), "Use another port with --port"),
        ):
            answer = main("--lake", "lake", "serve", *arguments)
            assert (answer.code, len(answer.lines), answer.out) == (ExitCode.USAGE, 1, ""), arguments
            assert says in answer.err
    assert [path.name for path in tmp_path.iterdir()] == ["lake"]


@pytest.mark.usefixtures("small_lake")
def test_a_full_disk_leaves_the_former_page(tmp_path: Path) -> None:
    """A page that cannot be written whole is not written at all."""
    folder = tmp_path / "locked"
    folder.mkdir()
    former = '<!doctype html><meta name="generator" content="scanlake serve 0">'
    (folder / "dashboard.html").write_text(former, encoding="utf-8")
    command = (*WRITE, str(folder / "dashboard.html"))
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
        for name, head in HEADS.items():
            reply = visitor.send_raw(b"GET " + head.format(port=port).encode() + b"\r\nConnection: close\r\n\r\n")
            assert reply.startswith((b"HTTP/1.1 4", b"HTTP/1.0 4")), (name, reply[:100])
            assert b"Files" not in reply, name
        assert visitor.call()[0] == 200
        assert process.returncode is None


HEADS = {  # lines of the head after the request line's method; {port} is the server's
    "no Host": "/ HTTP/1.1",
    "no Host in HTTP/1.0": "/ HTTP/1.0",
    "empty": "/ HTTP/1.1\r\nHost:",
    "blank": "/ HTTP/1.1\r\nHost: \t ",
    "only a port": "/ HTTP/1.1\r\nHost: :{port}",
    "two": "/ HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nHost: evil.example",
    "two, the wrong first": "/ HTTP/1.1\r\nHost: evil.example\r\nHost: 127.0.0.1:{port}",
    "a list": "/ HTTP/1.1\r\nHost: 127.0.0.1:{port}, evil.example",
    "another name": "/ HTTP/1.1\r\nHost: evil.example:{port}",
    "a name with ours": "/ HTTP/1.1\r\nHost: 127.0.0.1.evil.example:{port}",
    "localhost below a name": "/ HTTP/1.1\r\nHost: evil.localhost:{port}",
    "no port": "/ HTTP/1.1\r\nHost: localhost",
    "another port": "/ HTTP/1.1\r\nHost: 127.0.0.1:80",
    "a long port": "/ HTTP/1.1\r\nHost: 127.0.0.1:0{port}",
    "user": "/ HTTP/1.1\r\nHost: evil.example@127.0.0.1:{port}",
    "trailing dot": "/ HTTP/1.1\r\nHost: localhost.:{port}",
    "short address": "/ HTTP/1.1\r\nHost: 127.1:{port}",
    "hexadecimal address": "/ HTTP/1.1\r\nHost: 0x7f000001:{port}",
    "number": "/ HTTP/1.1\r\nHost: 2130706433:{port}",
    "another loopback": "/ HTTP/1.1\r\nHost: 127.0.0.2:{port}",
    "wildcard": "/ HTTP/1.1\r\nHost: 0.0.0.0:{port}",
    "IPv6": "/ HTTP/1.1\r\nHost: [::1]:{port}",
    "mapped": "/ HTTP/1.1\r\nHost: [::ffff:127.0.0.1]:{port}",
    "URL": "/ HTTP/1.1\r\nHost: http://127.0.0.1:{port}",
    "path": "/ HTTP/1.1\r\nHost: 127.0.0.1:{port}/",
    "NUL": "/ HTTP/1.1\r\nHost: 127.0.0.1:{port}\0evil",
    "other URL as target": "http://evil.example/ HTTP/1.1\r\nHost: 127.0.0.1:{port}",
    "other URL in a path": "//evil.example/ HTTP/1.1\r\nHost: 127.0.0.1:{port}",
    "forwarded": "/ HTTP/1.1\r\nHost: evil.example\r\nX-Forwarded-Host: 127.0.0.1:{port}",
    "bare line feed": "/ HTTP/1.1\r\nX: y\nHost: 127.0.0.1:{port}",
}


async def test_failing_and_paused_syncs_need_attention(tmp_path: Path, main: Main) -> None:
    """A page that is made after syncs have failed, or after a rollback, says so, although neither published rows."""
    lake, settings = tmp_path / "lake", Settings(lake=tmp_path / "lake")

    def render() -> str:
        return serve._render(settings, CatalogAccess(settings), is_served=False)

    async with Emulator(5, seed=SEED) as emulator:
        for _ in range(2):
            await synced(emulator, lake)
            emulator.world.update(emulator.world.pick_random(3))
        await verified(emulator, lake)
        assert "verdict problems" not in render()
        emulator.set_faults(outage=True)
        for _ in range(2):
            with pytest.raises(ScanlakeError, match="503"):
                await synced(emulator, lake, max_attempts=1)
    page = render()
    assert "The last 2 runs failed: " in page
    assert "verdict problems" in page
    assert main("--lake", str(lake), "rollback", "1", "--yes").code == ExitCode.OK
    assert "Syncs are paused: the lake was rolled back to snapshot 1." in render()
    shown = main("--lake", str(lake), "status").out
    assert "Paused: the lake was rolled back to snapshot 1; `scanlake rollback --undo` allows syncs." in shown
    assert "Not verified since the last rollback" in shown, shown
