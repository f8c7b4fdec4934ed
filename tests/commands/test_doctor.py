"""`scanlake doctor`: each fault has its name, its hint and its exit code, and nothing is touched."""

from __future__ import annotations

import os
import shutil
import socket
import sqlite3
import ssl
import threading
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pipeline.doctor import connection_checks, lake_checks
from pipeline.emulator import Emulator
from pipeline.emulator.options import Faults, Quirks
from pipeline.lake.layout import LakeLayout, lock_lake
from pipeline.settings import Settings
from tests.commands.cli_process import called
from tests.sync.sync_harness import synced

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pipeline.doctor.finding import Finding
    from tests.processes import Answer

CERTIFICATES = Path(__file__).with_name("certificates")


def found(findings: Iterator[Finding] | list[Finding]) -> dict[str, list[Finding]]:
    """The findings, by what was looked at; those that are not in order come first."""
    by_check: dict[str, list[Finding]] = {}
    for finding in sorted(findings, key=lambda each: each.state == "ok"):
        by_check.setdefault(finding.check, []).append(finding)
    return by_check


def everything(folder: Path) -> dict[str, tuple[int, int, int]]:
    """What lies in a folder: size, mode and time of change of each file."""
    facts = {}
    for path in sorted(folder.rglob("*")):
        about = path.stat()
        facts[str(path)] = (about.st_size, about.st_mode, about.st_mtime_ns)
    return facts


async def test_all_is_well(tmp_path: Path, canary: str) -> None:
    """With a whole lake and a service that answers, every line is ok, the code 0, and nothing has changed."""
    (tmp_path / "token").write_text(canary)
    (tmp_path / "token").chmod(0o600)
    (tmp_path / "scanlake.toml").write_text('token_file = "token"\n')
    async with Emulator(40, token=canary) as emulator:
        await synced(emulator, tmp_path / "lake")
        before = everything(tmp_path)
        answer = await called(tmp_path, "doctor", "--json", SCANLAKE_BASE_URL=emulator.base_url)
    assert everything(tmp_path) == before
    assert [each for each in answer.json["findings"] if each["state"] != "ok"] == []
    assert {each["check"] for each in answer.json["findings"]} == set(
        "settings permissions address connect token clock folder disk lock ledger parts catalog watermark".split()
    ) | {"last run"}
    assert answer.code == 0
    assert "the service has 40 files" in answer.out


async def test_it_goes_on_after_a_fault(tmp_path: Path) -> None:
    """Wrong settings, a refused token and a damaged lake are all named; the code is that of the worst."""
    async with Emulator(30) as emulator:
        await synced(emulator, tmp_path / "lake")
        next((tmp_path / "lake" / "parts" / "uploads").glob("0*.parquet")).unlink()
        (tmp_path / "scanlake.toml").write_text(f'base_url = "{emulator.base_url}"\nmax_concurrency = "many"\n')
        answer = await called(tmp_path, "doctor", "--json", SCANLAKE_TOKEN="wrong")
    by_check = {each["check"]: each for each in answer.json["findings"] if each["state"] == "error"}
    assert {name: each["exit_code"] for name, each in by_check.items()} == {"settings": 2, "token": 3, "parts": 9}
    assert all(each["hint"] for each in by_check.values())
    assert (answer.code, answer.json["exit_code"]) == (9, 9)


def test_no_address_and_no_token(main: Callable[..., Answer]) -> None:
    """Where nothing is set up yet, the settings that are missing are named, and the rest is looked at."""
    answer = main("doctor")
    assert answer.code == 2
    assert answer.out.endswith(" ok\n")
    assert "ERROR    address" in answer.out
    assert "ERROR    token" in answer.out
    assert "ok       disk" in answer.out


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")  # that is what the server is for
@pytest.mark.parametrize(
    ("certificate", "says"),
    [
        ("expired", "has expired"),
        ("elsewhere", "is for another host"),
        ("self", "is self-signed"),
        ("old", "old TLS"),
        ("none", "does not speak TLS"),
        ("good", None),
    ],
)
def test_tls_faults_are_told_apart(certificate: str, says: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """An expired certificate, one for another host, a self-signed one and an old TLS each have their own words."""
    monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATES / "ca.pem"))
    with speaking(certificate) as port:
        findings = found(connection_checks.check_connection(f"https://localhost:{port}"))
    assert findings["connect"][0].state == "ok"
    [tls] = findings["tls"]
    if says is None:
        assert tls.state == "ok", tls
        assert "more days" in tls.message
    else:
        assert (tls.state, tls.exit_code) == ("error", 1)
        assert says in tls.message
        assert tls.hint


@contextmanager
def speaking(certificate: str) -> Iterator[int]:
    """A server that agrees upon TLS with a certificate, or speaks something else; gives its port."""
    context = None
    if certificate != "none":
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(CERTIFICATES / ("good.pem" if certificate == "old" else f"{certificate}.pem"))
    if certificate == "old" and context is not None:
        context.set_ciphers("ALL:@SECLEVEL=0")
        context.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
        context.maximum_version = ssl.TLSVersion.TLSv1_1

    def serve() -> None:
        line, _ = server.accept()
        with line:
            line.settimeout(5)
            try:
                if context is None:
                    line.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                    return
                with context.wrap_socket(line, server_side=True) as secured:
                    secured.recv(1)
            except OSError:
                return

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve)
        thread.start()
        yield server.getsockname()[1]
        thread.join(10)


def test_a_service_that_is_not_there() -> None:
    """A name that does not resolve, and a port where nobody listens, are two faults with exit code 1."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    [_, refused] = connection_checks.check_connection(f"http://127.0.0.1:{port}")
    assert (refused.check, refused.state, refused.exit_code) == ("connect", "error", 1)
    assert "refused" in refused.message


def test_a_name_that_does_not_resolve(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host without an address is told as such."""

    def fail(*_: object, **__: object) -> Any:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", fail)  # no test may ask a real name server
    [missing] = connection_checks.check_connection("https://service.example")
    assert (missing.check, missing.exit_code) == ("address", 1)


async def test_what_the_service_says(canary: str) -> None:
    """A refused token is 3, a page that is no list 6, a skewed or missing clock a warning."""
    async with Emulator(5, token=canary) as emulator:
        settings = Settings(base_url=emulator.base_url)
        [refused] = await connection_checks.check_token(settings, "other")
        assert (refused.check, refused.exit_code) == ("token", 3)
    async with Emulator(5, token=canary, quirks=Quirks(date_skew_seconds=900.0)) as emulator:
        findings = found(await connection_checks.check_token(Settings(base_url=emulator.base_url), canary))
        assert findings["token"][0].state == "ok"
        assert findings["clock"][0].state == "warning"
        assert "s behind the service's" in findings["clock"][0].message
    async with Emulator(5, token=canary, quirks=Quirks(date_header="off")) as emulator:
        findings = found(await connection_checks.check_token(Settings(base_url=emulator.base_url), canary))
        assert "no Date header" in findings["clock"][0].message
    async with Emulator(5, token=canary, faults=Faults(outage=True, retry_after="absent")) as emulator:
        [away] = await connection_checks.check_token(Settings(base_url=emulator.base_url), canary)
        assert (away.check, away.state, away.exit_code) == ("token", "error", 1)


def test_permissions_of_the_files(tmp_path: Path) -> None:
    """A token that others can read, and settings that others can change, are warnings with the command to mend."""
    config, token = tmp_path / "scanlake.toml", tmp_path / "token"
    config.write_text("")
    token.write_text("secret")
    config.chmod(0o666)
    token.chmod(0o640)
    settings = Settings(token_file=token)
    findings = list(lake_checks.check_permissions(config, settings))
    assert [each.hint for each in findings] == ["chmod go-w scanlake.toml", "chmod 600 token"]
    config.chmod(0o644)
    token.chmod(0o600)
    assert {each.state for each in lake_checks.check_permissions(config, settings)} == {"ok"}


def test_the_place_of_the_lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file in the lake's place is 7, as is a full disk; a lake that is not there yet is in order."""
    assert found(lake_checks.check_folder(Settings(lake=tmp_path / "new")))["folder"][0].state == "ok"
    (tmp_path / "file").write_text("")
    [taken] = lake_checks.check_folder(Settings(lake=tmp_path / "file" / "lake"))
    assert (taken.check, taken.exit_code) == ("folder", 7)
    little = os.statvfs(tmp_path)
    usage = type(shutil.disk_usage(tmp_path))
    for free, state in ((1_000_000, "error"), (900_000_000, "warning"), (10_000_000_000, "ok")):
        monkeypatch.setattr(shutil, "disk_usage", lambda _, free=free: usage(little.f_blocks, 0, free))
        assert found(lake_checks.check_folder(Settings(lake=tmp_path)))["disk"][0].state == state


def test_paths_below_the_current_folder_are_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Findings name the lake's folder and the token file as a person there would type them."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "token").write_text("secret")
    (tmp_path / "token").chmod(0o640)
    settings = Settings(lake=tmp_path / "lake", token_file=tmp_path / "token")
    [folder] = found(lake_checks.check_folder(settings))["folder"]
    assert folder.message.startswith("lake does not exist yet")
    [permissions] = lake_checks.check_permissions(None, settings)
    assert (permissions.message, permissions.hint) == (
        "token: other users can read the token (mode 640)",
        "chmod 600 token",
    )
    (tmp_path / "lake").mkdir()
    (tmp_path / "lake" / "other.txt").write_text("")
    monkeypatch.chdir(tmp_path / "lake")
    assert found(lake_checks.check_folder(settings))["folder"][0].message == f"{tmp_path / 'lake'} can be written"


async def test_the_health_of_the_lake(tmp_path: Path) -> None:
    """A holder, a pause, another service, leftovers, an unpublished commit and an age are each named."""
    async with Emulator(30) as emulator:
        await synced(emulator, tmp_path / "lake")
        await synced(emulator, tmp_path / "lake")
        settings = Settings(base_url=emulator.base_url, lake=tmp_path / "lake")
    layout = LakeLayout(settings.lake)
    assert {each.state for each in lake_checks.check_lake(settings)} == {"ok"}
    with lock_lake(layout, "compaction"):
        assert "locked by compaction" in found(lake_checks.check_lake(settings))["lock"][0].message
    elsewhere = settings.model_copy(update={"base_url": "https://service.example", "lang": "de"})
    assert [each.exit_code for each in found(lake_checks.check_lake(elsewhere))["source"]] == [2, 2]
    (layout.root / "raw" / "000000000009-abcdef.parquet").write_bytes(b"left")
    (layout.root / ".catalog.duckdb.1-0a1b2c3d.tmp").write_bytes(b"left")
    assert "2 files left by a killed run" in found(lake_checks.check_lake(settings))["leftovers"][0].message
    change(layout, """INSERT INTO lake_property VALUES ('rollback_pause', '{"to": 2, "snapshot": 4}')""")
    assert "rolled back to snapshot 2" in found(lake_checks.check_lake(settings))["paused"][0].message
    change(layout, "INSERT INTO lake_property VALUES ('purge_in_progress', '[11, 12]')")
    assert "a purge of 2 files was not finished" in found(lake_checks.check_lake(settings))["purge"][0].message
    with lock_lake(layout, "purge"):
        assert "purge" not in found(lake_checks.check_lake(settings))
    change(layout, "UPDATE lake_property SET value = '1000000000' WHERE name = 'watermark'")
    change(layout, "UPDATE lake_property SET value = '99' WHERE name = 'next_commit_seq'")
    change(layout, "INSERT OR REPLACE INTO lake_property VALUES ('last_verify_at', '1000')")
    findings = found(lake_checks.check_lake(settings))
    assert findings["watermark"][0].state == "warning"
    assert findings["verify"][0].hint == "Run `scanlake verify`."
    assert "readers do not see yet" in findings["catalog"][0].message


async def test_damage_is_9_and_another_format_2(tmp_path: Path) -> None:
    """A catalog that is gone or foreign, a ledger that is gone or no ledger, and one of another format are faults."""
    async with Emulator(10) as emulator:
        await synced(emulator, tmp_path / "lake")
        settings = Settings(base_url=emulator.base_url, lake=tmp_path / "lake")
    layout = LakeLayout(settings.lake)
    catalog, ledger = layout.catalog.read_bytes(), layout.ledger.read_bytes()
    layout.catalog.unlink()
    assert found(lake_checks.check_lake(settings))["catalog"][0].exit_code == 9
    layout.catalog.write_bytes(b"no catalog")
    assert found(lake_checks.check_lake(settings))["catalog"][0].exit_code == 9
    layout.catalog.write_bytes(catalog)
    change(layout, "PRAGMA user_version = 99")
    assert found(lake_checks.check_lake(settings))["lake"][0].exit_code == 2
    layout.ledger.write_bytes(ledger[:4096] + b"\xff" * 4096 + ledger[8192:])
    assert found(lake_checks.check_lake(settings))["ledger"][0].exit_code == 9
    layout.ledger.unlink()
    [gone] = lake_checks.check_lake(settings)
    assert (gone.check, gone.exit_code) == ("ledger", 9)


def change(layout: LakeLayout, statement: str) -> None:
    """Change the ledger behind everybody's back."""
    with closing(sqlite3.connect(layout.ledger)) as db, db:
        db.execute(statement)


async def test_a_lake_that_was_moved(tmp_path: Path) -> None:
    """A catalog that looks for its parts where they no longer are says so, with the way to mend it."""
    async with Emulator(10) as emulator:
        await synced(emulator, tmp_path / "lake")
        (tmp_path / "lake").rename(tmp_path / "moved")
    [catalog] = found(lake_checks.check_lake(Settings(lake=tmp_path / "moved")))["catalog"]
    assert catalog.state == "error"
    assert "scanlake sync" in catalog.hint
