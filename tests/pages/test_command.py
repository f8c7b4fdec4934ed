"""The command: what it writes and refuses to write, and what it serves, to whom, until when."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import pytest

from pipeline.emulator import Emulator
from pipeline.errors import ExitCode
from pipeline.lake.lake import Lake
from tests.cli.conftest import scanlake
from tests.constants import set_run_constants
from tests.lake.lake_builder import commit
from tests.pages.page_lakes import NOW, ParsedPage, build_lake
from tests.processes import ran
from tests.sync.sync_harness import SEED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.processes import Answer

    Scanlake = Callable[..., Answer]

__all__ = ["scanlake"]
_AT: Final = int(NOW.timestamp() * 1_000_000)


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """A lake of two files."""
    build_lake(tmp_path / "lake", {7: 0, 8: 0})
    return tmp_path / "lake"


# The file


def test_a_file_is_written_and_renewed(scanlake: Scanlake, lake: Path, tmp_path: Path) -> None:
    """The page is written beside nothing else, says so, and may replace an earlier one of ours."""
    assert lake.exists()
    answer = scanlake("serve", "--write", "dashboard.html")
    page = tmp_path / "dashboard.html"
    assert (answer.code, answer.err) == (0, "")
    assert answer.out == f"{page}: {page.stat().st_size:,} bytes\n"
    assert "Files 2 " in ParsedPage(page.read_text(encoding="utf-8")).text
    before = page.stat().st_ino
    told = json.loads(scanlake("serve", "--write", "dashboard.html", "--json").out)
    assert told == {"ok": True, "exit_code": 0, "path": str(page), "bytes": page.stat().st_size}
    assert page.stat().st_ino != before
    assert page.stat().st_mode & 0o777 == 0o644
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dashboard.html", "lake"]


def test_a_file_of_others_is_kept(scanlake: Scanlake, lake: Path, tmp_path: Path) -> None:
    """What is no page of ours is not overwritten; a link to a page of ours is replaced, not followed."""
    assert lake.exists()
    other = tmp_path / "x.html"
    other.write_text("<p>scanlake serve</p>", encoding="utf-8")
    (tmp_path / "report.html").write_text('<!doctype html><meta name="generator" content="other">', encoding="utf-8")
    (tmp_path / "link.html").symlink_to(other)
    for name in ("x.html", "report.html", "link.html"):
        answer = scanlake("serve", "--write", name)
        assert answer.code == ExitCode.USAGE
        assert "not a dashboard of scanlake. Use another file with --write, or delete this one." in answer.err
    assert other.read_text(encoding="utf-8") == "<p>scanlake serve</p>"
    assert scanlake("serve", "--write", ".").code == ExitCode.USAGE
    other.unlink()
    assert scanlake("serve", "--write", "x.html").code == 0
    assert other.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert scanlake("serve", "--write", "link.html").code == 0
    assert not (tmp_path / "link.html").is_symlink()


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("--write", "lake/dashboard.html"), ExitCode.USAGE, "is in the lake"),
        (("--write", "nowhere/dashboard.html"), ExitCode.USAGE, "is not a folder"),
        (("--port", "1234", "--write", "x.html"), ExitCode.USAGE, "--port and --write exclude each other"),
        (("--lake", "nolake"), ExitCode.USAGE, "scanlake init"),
    ],
)
def test_mistakes_are_one_line(
    arguments: tuple[str, ...], code: ExitCode, says: str, scanlake: Scanlake, lake: Path, tmp_path: Path
) -> None:
    """A mistake ends with its code and one line, and leaves nothing behind."""
    assert lake.exists()
    answer = scanlake("serve", *arguments)
    assert (answer.code, len(answer.lines), answer.out) == (code, 1, "")
    assert says in answer.err
    assert [path.name for path in tmp_path.iterdir()] == ["lake"]


def test_a_full_disk_leaves_the_former_page(lake: Path, tmp_path: Path) -> None:
    """A page that cannot be written whole is not written at all."""
    assert lake.exists()
    folder = tmp_path / "locked"
    folder.mkdir()
    former = '<!doctype html><meta name="generator" content="scanlake serve 0">'
    (folder / "dashboard.html").write_text(former, encoding="utf-8")
    command = f"ulimit -f 8; exec {sys.executable} -m pipeline serve --write {folder}/dashboard.html"
    done = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == ExitCode.STORAGE, done.stderr
    assert [path.name for path in folder.iterdir()] == ["dashboard.html"]
    assert (folder / "dashboard.html").read_text(encoding="utf-8") == former


# Served


@contextmanager
def served(lake: Path, canary: str = "") -> Iterator[tuple[int, subprocess.Popen[str]]]:
    """The command while it serves; its port and process."""
    command = [sys.executable, "-m", "pipeline", "--lake", str(lake), "serve", "--port", "0", "--json"]
    environment = {**os.environ, **({"SCANLAKE_TOKEN": canary} if canary else {})}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            port = urlsplit(json.loads(process.stdout.readline())["address"]).port
            assert port is not None
            yield port, process
        finally:
            process.kill()


def asked(port: int, path: str = "/", method: str = "GET", **headers: str) -> tuple[int, dict[str, str], str]:
    """Status, headers and text of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    try:
        connection.request(method, path, headers=headers)
        reply = connection.getresponse()
        return reply.status, dict(reply.getheaders()), reply.read().decode()
    finally:
        connection.close()


def republished(lake: Path) -> None:
    """A third file arrives."""
    with Lake(lake, doing="the test") as held:
        commit(held, {9: 0})
        held.publish("r2", at=_AT, complete=True, watermark=_AT)


def test_served_to_this_machine_under_its_own_name(lake: Path, canary: str) -> None:
    """Only / is there without the key, only on 127.0.0.1, and only for who calls it by that name."""
    with served(lake, canary) as (port, process):
        status, headers, page = asked(port)
        assert status == 200
        assert "Files 2 " in ParsedPage(page).text
        assert canary not in page
        assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
        assert headers["Content-Security-Policy"].startswith("default-src 'none'")
        assert (headers["Cache-Control"], headers["Server"]) == ("no-store", "scanlake")
        assert asked(port, Host=f"localhost:{port}")[0] == 200
        for host in ("evil.example", f"evil.example:{port}", "127.0.0.1", f"127.0.0.1:{port + 1}", ""):
            assert asked(port, Host=host)[0] == 421, host
        for path in ("/x", "//", "/version", "/../lake/ledger.sqlite", "/%2e%2e/", "/favicon.ico", "/dashboard.html"):
            assert asked(port, path)[0] == 404, path
        assert asked(port, method="POST")[0] == 405
        assert asked(port, method="HEAD")[::2] == (200, "")
        with pytest.raises(OSError, match="refused"):
            socket.create_connection(("127.0.0.2", port), timeout=5)
        assert process.poll() is None


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


def test_every_other_host_is_refused(lake: Path) -> None:
    """A request is answered only if it names the printed address: another site's name must not reach the page."""
    with served(lake) as (port, process):
        for name, head in HEADS.items():
            with socket.create_connection(("127.0.0.1", port), timeout=10) as line:
                line.sendall(b"GET " + head.format(port=port).encode() + b"\r\nConnection: close\r\n\r\n")
                reply = b"".join(iter(lambda: line.recv(65_536), b""))
            assert reply.startswith((b"HTTP/1.1 4", b"HTTP/1.0 4")), (name, reply[:100])
            assert b"Files" not in reply, name
        assert asked(port)[0] == 200
        assert process.poll() is None


def test_each_request_shows_the_newest_publish(lake: Path) -> None:
    """The page is that of the present catalog; while there is none, it is one line with the reason."""
    with served(lake) as (port, _):
        assert "Files 2 " in ParsedPage(asked(port)[2]).text
        republished(lake)
        assert "Files 3 " in ParsedPage(asked(port)[2]).text
        (lake / "catalog.duckdb").rename(lake / "away.duckdb")
        status, _, text = asked(port)
        assert (status, text.count("\n")) == (503, 1)
        assert "catalog.duckdb is missing." in text


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM])
def test_it_ends_cleanly(lake: Path, end: signal.Signals) -> None:
    """Ctrl-C and SIGTERM end it at once, with 0 and without a word, even while somebody keeps a line open."""
    with served(lake) as (port, process), socket.create_connection(("127.0.0.1", port)) as idle:
        idle.sendall(b"GET / HTTP/1.1\r\nHost: 127.")
        began = time.monotonic()
        process.send_signal(end)
        assert process.wait(10) == 0
        assert time.monotonic() - began < 60
        assert process.stderr is not None
        assert process.stderr.read() == ""


def test_a_taken_port_is_said(scanlake: Scanlake, lake: Path) -> None:
    """A port that is taken is one line that says what to do."""
    assert lake.exists()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        answer = scanlake("serve", "--port", str(taken.getsockname()[1]))
    assert (answer.code, len(answer.lines)) == (ExitCode.USAGE, 1)
    assert "Use another port with --port" in answer.err


async def test_failing_and_paused_syncs_need_attention(tmp_path: Path) -> None:
    """A page that is made after syncs have failed, or after a rollback, says so, although neither published rows."""
    lake = tmp_path / "lake"
    async with Emulator(30, seed=SEED) as emulator:
        for _ in range(2):
            assert (await ran(emulator, lake, "sync", "-q"))[0] == 0
            emulator.world.update(emulator.world.pick_random(3))
        assert (await ran(emulator, lake, "verify", "-q"))[0] == 0
        page = tmp_path / "page.html"
        await ran(emulator, lake, "serve", "--write", str(page))
        assert "verdict problems" not in page.read_text()
        emulator.set_faults(outage=True)
        for _ in range(2):
            assert (await ran(emulator, lake, "sync", "-q", **set_run_constants(max_attempts=1)))[0] == 1
        await ran(emulator, lake, "serve", "--write", str(page))
        assert "The last 2 runs failed: " in page.read_text()
        assert "verdict problems" in page.read_text()
        assert (await ran(emulator, lake, "rollback", "1", "--yes"))[0] == 0
        await ran(emulator, lake, "serve", "--write", str(page))
        assert "Syncs are paused: the lake was rolled back to snapshot 1." in page.read_text()
        shown = (await ran(emulator, lake, "status"))[1]
    assert "Paused: the lake was rolled back to snapshot 1; `scanlake rollback --undo` allows syncs." in shown
    assert "Not verified since the last rollback" in shown, shown
