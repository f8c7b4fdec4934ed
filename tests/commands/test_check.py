"""`scanlake check`: each fault has its name, its hint and its exit code, and nothing is touched."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from pipeline.client.probe import check_service
from pipeline.emulator import Emulator
from pipeline.emulator.options import Faults, Quirks
from pipeline.lake import repair
from pipeline.lake.storage.atomic_files import temp_name
from pipeline.lake.storage.lake_lock import lock_lake
from pipeline.lake.storage.layout import LakeLayout
from pipeline.output.findings import Severity
from pipeline.settings.settings import Settings
from tests.client.test_proxy import CERTIFICATES, create_context
from tests.commands.cli_process import called
from tests.lake.test_folders import describe
from tests.sync.sync_harness import synced, tampered

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import pytest

    from pipeline.output.findings import Finding
    from tests.processes import Answer


def found(findings: Iterator[Finding] | list[Finding]) -> dict[str, list[Finding]]:
    """The findings, by what was looked at; those that are not in order come first."""
    by_subject: dict[str, list[Finding]] = {}
    for finding in sorted(findings, key=lambda each: each.severity is Severity.OK):
        by_subject.setdefault(finding.subject, []).append(finding)
    return by_subject


async def test_each_fault_is_named(tmp_path: Path, canary: str) -> None:
    """A whole lake is all ok; without a service it is compared all the same; faults are all named, the worst counts."""
    (tmp_path / "token").write_text(canary)
    (tmp_path / "token").chmod(0o600)
    config = tmp_path / "scanlake.toml"
    config.write_text('token_file = "token"\n')
    async with Emulator(40, token=canary) as emulator:
        await synced(emulator, tmp_path / "lake")
        before = describe(tmp_path)
        address = {"SCANLAKE_BASE_URL": emulator.base_url}
        answer = await called(tmp_path, "check", "--json", **address)
        assert describe(tmp_path) == before
        findings = answer.json["findings"]
        assert [each for each in findings if each["severity"] != "ok"] == []
        assert list(dict.fromkeys(each["area"] for each in findings)) == ["settings", "lake", "service"]
        subjects = {"file", "scanlake.toml", "token", "disk", emulator.base_url, "clock"}
        assert {each["subject"] for each in findings} == subjects | {"ledger", "files"}
        assert (answer.code, answer.json["ok"], answer.json["counts"]) == (0, True, {"ok": len(findings)})
        assert "it has 40 files" in answer.out
        config.write_text("")
        for environment in ({}, address):
            answer = await called(tmp_path, "check", "--json", **environment)
            [service] = [each for each in answer.json["findings"] if each["area"] == "service"]
            assert (answer.code, service["severity"]) == (0, "skipped"), answer
            assert ("token" if environment else "base_url") in service["problem"]
            assert answer.json["findings"][-1]["subject"] == "files"
        part = next((tmp_path / "lake" / "tables" / "uploads").glob("0*.parquet"))
        part.unlink()
        config.write_text('max_concurrency = "many"\n')
        answer = await called(tmp_path, "check", "--json", **address)
        [settings] = answer.json["findings"]  # nothing is looked at with wrong settings
        assert (answer.code, settings["subject"], settings["severity"]) == (2, "file", "error")
        config.write_text(f'base_url = "{emulator.base_url}"\n')
        answer = await called(tmp_path, "check", "--json", SCANLAKE_TOKEN="wrong")
    errors = {each["subject"]: each for each in answer.json["findings"] if each["severity"] == "error"}
    name = f"tables/uploads/{part.name}"
    codes = {subject: each["exit_code"] for subject, each in errors.items()}
    assert (codes["token"], codes[name]) == (3, 9)
    assert errors[name]["repair"] == "written again from the catalog"
    assert all(each["hint"] for each in errors.values())
    assert (answer.code, answer.json["exit_code"]) == (9, 9)


def test_no_address_and_no_token(main: Callable[..., Answer]) -> None:
    """Where nothing is set up yet, the settings that are missing are named, and the rest is looked at."""
    answer = main("check")
    assert answer.code == 2
    assert "ERROR     settings  service: base_url is required" in answer.out
    assert "No lake at" in answer.out
    assert answer.out.splitlines()[-1].startswith("2 errors, ")


_FAULTS_OF_TLS: Final = {
    "expired": "has expired",
    "elsewhere": "not valid for 'localhost'",
    "self": "self-signed certificate",
    "old": "needs TLS 1.2 or later",
    "none": "does not speak TLS",
    "good": None,
}
_CHECK_EACH: Final = """
import os, sys
from pipeline.cli.app import main
for os.environ["SCANLAKE_BASE_URL"] in sys.argv[1:]:
    try: main(["check", "--json"])
    except SystemExit as end: assert end.code == 1
"""


def test_tls_faults_are_told_apart(tmp_path: Path) -> None:
    """An expired certificate, one for another host, a self-signed one and an old TLS each have their own words."""
    env = {**os.environ, "SCANLAKE_TOKEN": "token", "SSL_CERT_FILE": str(CERTIFICATES / "ca.pem")}
    with ExitStack() as servers:
        urls = [f"https://localhost:{servers.enter_context(speaking(name))}" for name in _FAULTS_OF_TLS]
        command = [sys.executable, "-c", _CHECK_EACH, *urls]  # certificates are read when a process starts
        process = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, check=True)
    for line, says in zip(process.stdout.splitlines(), _FAULTS_OF_TLS.values(), strict=True):
        [finding] = [each for each in json.loads(line)["findings"] if each["severity"] == "error"]
        assert (finding["exit_code"], finding["area"], finding["subject"]) == (1, "service", "service")
        assert ("TLS: " in finding["problem"]) == (says is not None), finding
        assert says is None or says in finding["problem"]
        assert finding["hint"]


@contextmanager
def speaking(certificate: str) -> Iterator[int]:
    """A server that agrees upon TLS with a certificate, or speaks something else; gives its port."""
    name = {"old": "good", "none": "good"}.get(certificate, certificate)
    context = create_context(name, is_old=certificate == "old")

    def serve() -> None:
        with suppress(OSError):  # the server has been shut down
            while True:
                line, _ = server.accept()
                with line, suppress(OSError):
                    line.settimeout(5)
                    if certificate == "none":
                        line.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                    else:
                        with context.wrap_socket(line, server_side=True) as secured:
                            secured.recv(1)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
    thread.join(10)


async def test_what_the_service_says(canary: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No service is 1, a refused token 3, a skewed or missing clock a warning; each is said, the worst first."""
    for options, token, subject, severity, code, says in (
        ({}, "other", "token", "error", 3, "refused"),
        ({"quirks": Quirks(date_skew_seconds=900.0)}, canary, "clock", "warning", 0, "s behind the service's"),
        ({"quirks": Quirks(date_header="off")}, canary, "clock", "warning", 0, "no Date header"),
        ({"faults": Faults(outage=True, retry_after="absent")}, canary, "service", "error", 1, "503"),
    ):
        async with Emulator(5, token=canary, **options) as emulator:
            *others, last = await check_service(Settings(base_url=emulator.base_url), token)
        assert (last.subject, last.severity, last.exit_code) == (subject, severity, code)
        assert says in last.problem, last
        assert [each.severity for each in others] == ["ok"] * (subject == "clock")
    [refused] = await check_service(Settings(base_url="http://127.0.0.1:9"), "token")
    assert (refused.subject, refused.severity, refused.exit_code) == ("service", Severity.ERROR, 1)
    assert "no connection" in refused.problem
    assert refused.hint.startswith("Check base_url")

    def fail(*_: object, **__: object) -> Any:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", fail)  # no test may ask a real name server
    [missing] = await check_service(Settings(base_url="https://service.example"), "token")
    assert (missing.exit_code, "cannot be resolved" in missing.problem) == (1, True)


def test_permissions_of_the_files(tmp_path: Path) -> None:
    """Files that others can read or change are warnings, with the command to mend as a person would type it."""
    config, token = tmp_path / "scanlake.toml", tmp_path / "token"
    config.write_text("")
    token.write_text("secret")
    config.chmod(0o666)
    token.chmod(0o640)
    settings = Settings(lake=tmp_path / "lake", token_file=token, base_url="https://service.example")
    findings = list(repair.check_permissions(config, settings))
    assert [each.hint for each in findings] == ["chmod go-w scanlake.toml", "chmod 600 token"]
    assert (findings[1].subject, findings[1].problem) == ("token", "other users can read the token (mode 640)")
    config.chmod(0o644)
    token.chmod(0o600)
    assert {each.severity for each in repair.check_permissions(config, settings)} == {Severity.OK}
    [folder, _] = repair.check_folder(settings)
    assert folder.subject == "lake"


def test_the_place_of_the_lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file in the lake's place is 7, as is a full disk; a lake that is not there yet is in order."""
    address = "https://service.example"
    [new, _] = repair.check_folder(Settings(lake=tmp_path / "new", base_url=address))
    assert (new.severity, "does not exist yet" in new.problem) == (Severity.OK, True)
    (tmp_path / "file").write_text("")
    [taken] = repair.check_folder(Settings(lake=tmp_path / "file" / "lake"))
    assert (taken.problem, taken.exit_code) == ("not a folder", 7)
    little = os.statvfs(tmp_path)
    usage = type(shutil.disk_usage(tmp_path))
    for free, severity in ((1_000_000, "error"), (900_000_000, "warning"), (10_000_000_000, "ok")):
        monkeypatch.setattr(shutil, "disk_usage", lambda _, free=free: usage(little.f_blocks, 0, free))
        [disk] = repair.check_folder(Settings(lake=tmp_path, base_url=address))
        assert (disk.subject, disk.severity) == ("disk", severity)
        assert list(repair.check_folder(Settings(lake=tmp_path))) == [], "nothing is written without a service"


async def test_the_health_of_the_lake(tmp_path: Path) -> None:
    """A holder, another service, a killed purge, an unpublished commit and a late verification are each named."""
    async with Emulator(30) as emulator:
        await synced(emulator, tmp_path / "lake")
        settings = Settings(base_url=emulator.base_url, lake=tmp_path / "lake")
    layout = LakeLayout(settings.lake)
    assert {each.severity for each in repair.check_lake(settings)} == {Severity.OK}
    with lock_lake(layout, "compaction"):
        held = found(repair.check_lake(settings))
        assert "held by compaction" in held["lock"][0].problem
        assert (held["files"][0].severity, held["files"][0].exit_code) == (Severity.SKIPPED, 5)
    elsewhere = replace(settings, base_url="https://service.example", lang="de")
    problems = found(repair.check_lake(elsewhere))["source"]
    assert [each.exit_code for each in problems] == [2, 2]
    assert "texts have lang unset, not de" in problems[1].problem
    part = min(layout.documents_dir.iterdir())
    shutil.copy(part, part.with_name("000000000009-abcdef.parquet"))  # the next run removes them
    (layout.root / temp_name("catalog.duckdb")).write_bytes(b"left")
    assert {each.severity for each in repair.check_lake(settings)} == {Severity.OK}
    for name, value in (
        ("purge_in_progress", "[11, 12]"),
        ("next_commit_seq", "99"),
        ("last_verify_at", "1000"),
    ):
        with tampered(layout.root) as ledger:
            ledger.execute("INSERT OR REPLACE INTO lake_property VALUES (?, ?)", (name, value))
    with lock_lake(layout, "purge"):
        assert "purge" not in found(repair.check_lake(settings))
    findings = found(repair.check_lake(settings))
    assert "of 2 files was not finished" in findings["purge"][0].problem
    assert findings["verify"][0].hint == "Run `scanlake verify`."
    assert "readers do not see yet" in findings["catalog"][0].problem
