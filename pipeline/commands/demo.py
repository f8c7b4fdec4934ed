"""`scanlake demo`: the main job from end to end, against the emulated service in a process of its own."""

import http.client
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import urlsplit

import duckdb
import typer

from pipeline.call import Call
from pipeline.errors import Exit, ScanlakeError, SettingsError

_MARKER: Final = "made-by-scanlake-demo"
_CHANGES: Final = ({"op": "update", "n": 25}, {"op": "create", "n": 12}, {"op": "close", "n": 8})
_WAIT: Final = 30  # seconds for the emulator to be ready

_QUESTIONS: Final = (
    (
        "Damage rate by month and type of upload",
        """
        SELECT strftime(created_at, '%Y-%m') AS month, upload_type, count(*) AS uploads,
               round(100 * avg(has_damage::INT), 1) AS damage_percent
        FROM uploads WHERE upload_type IN ('snap', 'manual')
        GROUP BY ALL ORDER BY month DESC, upload_type LIMIT 6
        """,
    ),
    (
        "Open workflow runs with skipped steps, oldest first",
        """
        SELECT files.scan_code, workflows.name AS workflow, runs.created_at AS begun,
               count(*) FILTER (steps.status = 'skipped') AS skipped, count(*) AS steps
        FROM workflow_runs AS runs
        JOIN workflow_run_steps AS steps ON steps.workflow_run_id = runs.id AND steps.file_id = runs.file_id
        JOIN files ON files.file_id = runs.file_id
        LEFT JOIN workflows ON workflows.id = runs.workflow_id
        WHERE runs.completed_at IS NULL
        GROUP BY ALL HAVING skipped > 0 ORDER BY begun LIMIT 5
        """,
    ),
    (
        "A custom field as a column",
        """
        SELECT files.scan_code, files.closed, max(fields.value) AS "{field}"
        FROM files JOIN fields USING (file_id) WHERE fields.name = '{field}'
        GROUP BY ALL ORDER BY files.scan_code LIMIT 5
        """,
    ),
)


@dataclass(frozen=True, slots=True)
class _Service:
    """The emulator as its first line describes it."""

    base_url: str
    token: str


def run(
    call: Call,
    *,
    files: Annotated[int, typer.Option(min=10, max=200_000, help="How many files the service holds.")] = 4000,
    seed: Annotated[int, typer.Option(help="The same seed grows the same files.")] = 7,
    folder: Annotated[Path, typer.Option(help="Where the lake is left; an earlier demo's is replaced.")] = Path(
        "demo-lake"
    ),
) -> Exit:
    """Show the main job on an emulated service: sync, change, sync again, verify, query."""
    del call
    began = time.monotonic()
    _make_room(folder)
    lake = folder / "lake"
    with _emulator(files, seed) as service:
        _say(f"A file service with {files:,} files runs at {service.base_url} (emulated, in its own process).")
        _say("\n1. The first sync fetches everything: list, details, uploads, forms, fields, workflow runs.")
        first = _scanlake(service, lake, "sync", "--json")
        _show_run(first)
        _say("\n2. Meanwhile the service changes: 25 files updated, 12 created, 8 closed.")
        for change in _CHANGES:
            _control(service, "world", change)
        second = _scanlake(service, lake, "sync", "--json")
        _show_run(second)
        _say(
            f"   The first sync needed {first['requests']['total']:,} calls, this one {second['requests']['total']:,}."
        )
        _say("\n3. Five files are deleted there. No incremental list shows that; a verify does, and proves the rest.")
        _control(service, "world", {"op": "delete", "n": 5})
        _show_proof(_scanlake(service, lake, "verify", "--json"))
        _say(
            "\n4. An auditor asks for the PDFs of the closed files of the last 90 days, in a folder that proves itself."
        )
        _show_folder(_order_reports(service, folder), folder)
    _say("\n5. The service is gone; the lake answers. What an analyst asks:")
    _ask(lake, second["run_id"])
    _say(f"\nDone in {time.monotonic() - began:.1f} s. The lake is yours to look at:")
    _say(f"  scanlake --lake {lake} dashboard --open")
    _say(f'  scanlake --lake {lake} query "SELECT * FROM meta.freshness"')
    _say(f"  duckdb -readonly {lake / 'catalog.duckdb'}")
    connect = f"duckdb.connect('{lake / 'catalog.duckdb'}', read_only=True)"
    _say(f"  python -c \"import duckdb; {connect}.sql('FROM files').show()\"")
    return Exit.DONE


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _make_room(folder: Path) -> None:
    if folder.exists() and not (folder / _MARKER).exists():
        raise SettingsError(f"{folder} exists and is not an earlier demo's", remedy="Name another one with --folder.")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / _MARKER).touch()


@contextmanager
def _emulator(files: int, seed: int) -> Iterator[_Service]:
    arguments = ("--port", "0", "--files", str(files), "--seed", str(seed), "--until-stdin-closes")
    command = [sys.executable, "-m", "pipeline.emulator", *arguments, "--max-seconds", "600"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:  # noqa: S603 - our own
        try:
            line = process.stdout.readline() if process.stdout else b""
            if not line:
                raise ScanlakeError("the emulator did not start", remedy="`scanlake serve` shows why.")
            described = json.loads(line)
            yield _Service(described["base_url"], described["token"])
        finally:
            process.terminate()
            process.wait(_WAIT)


def _control(service: _Service, route: str, wish: dict[str, Any]) -> None:
    address = urlsplit(service.base_url)
    connection = http.client.HTTPConnection(address.hostname or "127.0.0.1", address.port, timeout=_WAIT)
    try:
        connection.request("POST", f"/_emulator/{route}", json.dumps(wish), {"Content-Type": "application/json"})
        reply = connection.getresponse()
        if reply.status != http.HTTPStatus.OK:
            raise ScanlakeError(f"the emulator refused a change (HTTP {reply.status})")
    finally:
        connection.close()


def _scanlake(service: _Service, lake: Path, *arguments: str) -> dict[str, Any]:
    """Run the command as a person would, in a process of its own, and read its JSON."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SCANLAKE_")}
    environment |= {
        "SCANLAKE_BASE_URL": service.base_url,
        "SCANLAKE_TOKEN": service.token,
        "SCANLAKE_LAKE": str(lake.absolute()),
    }
    _say(f"   $ scanlake {shlex.join(arguments)}")
    command = [sys.executable, "-m", "pipeline", "--quiet", *arguments]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=False)  # noqa: S603 - our own
    if done.returncode:
        raise ScanlakeError(f"scanlake {arguments[0]} ended with exit code {done.returncode}")
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def _show_run(summary: dict[str, Any]) -> None:
    requests = summary["requests"]
    rate = summary["files_expanded"] / max(summary["seconds"], 0.001)
    _say(
        f"   {summary['files_expanded']:,} files fetched in {summary['seconds']:.1f} s ({rate:,.0f} files/s) with"
        f" {requests['list']:,} list and {requests['detail']:,} detail calls."
    )
    _say(f"   Snapshot {summary['snapshot']}: everything updated before {summary['horizon']} is in.")


def _show_proof(proof: dict[str, Any]) -> None:
    _say(
        f"   {proof['gone']} gone, {proof['missing']} missing, {proof['stale']} stale; now {proof['files_there']:,}"
        f" files there and {proof['files_here']:,} here: {'equal' if proof['equal'] else 'NOT equal'},"
        f" shown by {proof['requests']['total']:,} calls."
    )


def _order_reports(service: _Service, folder: Path) -> dict[str, Any]:
    where = "closed AND updated_at > now()::TIMESTAMP - INTERVAL 90 DAY"
    return _scanlake(service, folder / "lake", "report", "--where", where, "--out", str(folder / "audit"), "--json")


def _show_folder(report: dict[str, Any], folder: Path) -> None:
    _say(f"   {report['delivered']:,} of {report['files']:,} files in {report['pdfs']:,} PDFs, each in exactly one.")
    _say(f"   {folder / 'audit' / 'index.html'} is the list to look at; `sha256sum -c SHA256SUMS` proves the rest.")


def _ask(lake: Path, run_id: str) -> None:
    with duckdb.connect(str(lake / "catalog.duckdb"), read_only=True) as db:
        changed = "SELECT count(*) FROM files WHERE _run_id = ?"
        ((count,),) = db.execute(changed, [run_id]).fetchall()
        _say(f"   (the second sync brought {count} files: those changed, and no others)")
        most = "SELECT name FROM fields GROUP BY name ORDER BY count(*) DESC, name LIMIT 1"
        name = "".join(row[0] for row in db.execute(most).fetchall()).replace("'", "''")
        for title, question in _QUESTIONS:
            began = time.monotonic()
            answer = db.sql(question.format(field=name))
            _say(f"\n   {title}:")
            _say(str(answer))
            _say(f"   ({1000 * (time.monotonic() - began):.0f} ms)")
