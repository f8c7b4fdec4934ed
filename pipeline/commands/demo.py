"""`scanlake demo`: the main workflow from end to end, against the emulator in a separate process."""

import http.client
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple
from urllib.parse import urlsplit

import typer

from pipeline.context import CommandContext
from pipeline.errors import ExitCode, ScanlakeError, SettingsError
from pipeline.lake.duckdb_files import open_read_only

GROUP: Final = "Try it out"

_MARKER: Final = "made-by-scanlake-demo"
_CHANGES: Final = ({"op": "update", "n": 25}, {"op": "create", "n": 12}, {"op": "close", "n": 8})
_TIMEOUT_SECONDS: Final = 30

_DEMO_QUERIES: Final = (
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
        SELECT files.scan_code, definition.name AS workflow, runs.created_at AS started,
               count(*) FILTER (steps.status = 'skipped') AS skipped, count(*) AS steps
        FROM workflow_runs AS runs
        JOIN workflow_run_steps AS steps ON steps.workflow_run_id = runs.id AND steps.file_id = runs.file_id
        JOIN files ON files.file_id = runs.file_id
        LEFT JOIN workflow_definitions AS definition USING (_definition_hash)
        WHERE runs.completed_at IS NULL
        GROUP BY ALL HAVING skipped > 0 ORDER BY started LIMIT 5
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


class _Service(NamedTuple):
    """Base URL and token from the emulator's first line."""

    base_url: str
    token: str


def run(
    context: CommandContext,
    *,
    files: Annotated[int, typer.Option(min=10, max=200_000, help="Number of files in the emulated service.")] = 4000,
    seed: Annotated[int, typer.Option(help="Seed of the generated files.")] = 7,
    folder: Annotated[Path, typer.Option(help="Folder of the lake. Replaces the folder of an earlier demo.")] = Path(
        "demo-lake"
    ),
) -> ExitCode:
    """Run the main workflow against the emulator: sync, change, sync, verify, report, query."""
    del context
    started = time.monotonic()
    _reset_folder(folder)
    lake = folder / "lake"
    with _emulator(files, seed) as service:
        _print(f"A file service with {files:,} files runs at {service.base_url} (emulator, separate process).")
        _print("\n1. The first sync fetches everything: list, details, uploads, forms, fields, workflow runs.")
        first = _scanlake(service, lake, "sync", "--json")
        _show_run(first)
        _print("\n2. The service changes: 25 files updated, 12 created, 8 closed.")
        for change in _CHANGES:
            _change_world(service, change)
        second = _scanlake(service, lake, "sync", "--json")
        _show_run(second)
        first_calls, second_calls = first["requests"]["total"], second["requests"]["total"]
        _print(f"   The first sync needed {first_calls:,} calls, this one {second_calls:,}.")
        _print(
            "\n3. Five files are deleted in the service."
            " An incremental list does not show deletions; verify detects them."
        )
        _change_world(service, {"op": "delete", "n": 5})
        _print_verification(_scanlake(service, lake, "verify", "--json"))
        _print("\n4. An auditor needs the PDFs of the closed files of the last 90 days, in a folder with a manifest.")
        where = "closed AND updated_at > utc_now() - INTERVAL 90 DAY"
        selection = ("--where", where, "--out", str(folder / "audit"))
        _print_report(_scanlake(service, lake, "report", *selection, "--json"), folder)
    _print("\n5. The service is stopped. An analyst queries the lake:")
    _run_queries(lake, second["run_id"])
    _print(f"\nDone in {time.monotonic() - started:.1f} s. Open the lake:")
    for command in _suggest_commands(lake):
        _print(f"  {command}")
    return ExitCode.OK


def _suggest_commands(lake: Path) -> list[str]:
    """Return commands that run as printed in this folder, also if the installation is not on the PATH."""
    catalog = lake / "catalog.duckdb"
    python = _find_program(Path(sys.executable).name) or sys.executable
    own = _find_program("scanlake")
    scanlake = [own] if own else [python, "-m", "pipeline"]
    connect = f"import duckdb; duckdb.connect({str(catalog)!r}, read_only=True).sql('FROM files').show()"
    duckdb_cli = _find_program("duckdb")
    commands = [
        [*scanlake, "--lake", str(lake), "dashboard", "--open"],
        [*scanlake, "--lake", str(lake), "query", "FROM meta.freshness"],
        [duckdb_cli, "-readonly", str(catalog)] if duckdb_cli else [python, "-m", "pip", "install", "duckdb-cli"],
        [python, "-c", connect],
    ]
    return [shlex.join(command) for command in commands]


def _find_program(name: str) -> str | None:
    """Return how to call a program of this installation: by name, or by its path, relative if below this folder."""
    on_path = shutil.which(name)
    sibling = Path(sys.executable).with_name(name)
    if not sibling.exists():
        return name if on_path else None
    if on_path and sibling.samefile(on_path) and Path(on_path).parent == sibling.parent:
        return name
    return str(sibling.relative_to(Path.cwd()) if sibling.is_relative_to(Path.cwd()) else sibling)


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _reset_folder(folder: Path) -> None:
    if folder.exists() and not (folder / _MARKER).exists():
        raise SettingsError(
            f"{folder} exists and is not from an earlier demo.", hint="Choose another folder with --folder."
        )
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / _MARKER).touch()


@contextmanager
def _emulator(files: int, seed: int) -> Iterator[_Service]:
    arguments = ("--port", "0", "--files", str(files), "--seed", str(seed), "--until-stdin-closes")
    command = [sys.executable, "-m", "pipeline", "emulator", *arguments, "--max-seconds", "1800"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:  # noqa: S603 - own program
        try:
            line = process.stdout.readline() if process.stdout else b""
            if not line:
                raise ScanlakeError("The emulator did not start.", hint="Run `scanlake emulator` to see the cause.")
            description = json.loads(line)
            yield _Service(description["base_url"], description["token"])
        finally:
            process.terminate()
            process.wait(_TIMEOUT_SECONDS)


def _change_world(service: _Service, change: dict[str, Any]) -> None:
    url = urlsplit(service.base_url)
    connection = http.client.HTTPConnection(url.hostname or "127.0.0.1", url.port, timeout=_TIMEOUT_SECONDS)
    with closing(connection):
        connection.request("POST", "/_emulator/world", json.dumps(change), {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != http.HTTPStatus.OK:
            raise ScanlakeError(f"The emulator refused a change (HTTP {response.status}).")


def _scanlake(service: _Service, lake: Path, *arguments: str) -> dict[str, Any]:
    """Run a command in a separate process, as a user does, and return its JSON."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SCANLAKE_")}
    environment |= {
        "SCANLAKE_BASE_URL": service.base_url,
        "SCANLAKE_TOKEN": service.token,
        "SCANLAKE_LAKE": str(lake.absolute()),
    }
    _print(f"   $ scanlake {shlex.join(arguments)}")
    command = [sys.executable, "-m", "pipeline", "--quiet", *arguments]
    process = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=False)  # noqa: S603 - own program
    if process.returncode:
        raise ScanlakeError(f"`scanlake {arguments[0]}` ended with exit code {process.returncode}.")
    result: dict[str, Any] = json.loads(process.stdout)
    return result


def _show_run(summary: dict[str, Any]) -> None:
    requests = summary["requests"]
    rate = summary["files_stored"] / max(summary["seconds"], 0.001)
    _print(
        f"   {summary['files_stored']:,} files fetched in {summary['seconds']:.1f} s ({rate:,.0f} files/s) with"
        f" {requests['list']:,} list and {requests['detail']:,} detail calls."
    )
    _print(f"   Snapshot {summary['snapshot']}: everything updated before {summary['watermark']} is in the lake.")


def _print_verification(result: dict[str, Any]) -> None:
    _print(
        f"   {result['deleted']} deleted, {result['missing']} missing, {result['stale']} stale;"
        f" {result['files_in_service']:,} files in the service, {result['files_in_lake']:,} in the lake:"
        f" {'consistent' if result['consistent'] else 'NOT consistent'}, {result['requests']['total']:,} calls."
    )


def _print_report(report: dict[str, Any], folder: Path) -> None:
    _print(
        f"   {report['delivered']:,} of {report['files']:,} files in {report['pdfs']:,} PDFs,"
        " every file in exactly one."
    )
    _print(f"   {folder / 'audit' / 'index.html'} lists the files; `sha256sum -c SHA256SUMS` verifies the folder.")


def _run_queries(lake: Path, run_id: str) -> None:
    with open_read_only(lake / "catalog.duckdb") as db:
        changed = "SELECT count(*) FROM files WHERE _run_id = ?"
        ((count,),) = db.execute(changed, [run_id]).fetchall()
        _print(f"   (the second sync fetched {count} files: the changed files and no others)")
        most_frequent = "SELECT name FROM fields GROUP BY name ORDER BY count(*) DESC, name LIMIT 1"
        name = "".join(row[0] for row in db.execute(most_frequent).fetchall()).replace("'", "''")
        for title, query in _DEMO_QUERIES:
            started = time.monotonic()
            result = db.sql(query.format(field=name))
            _print(f"\n   {title}:")
            _print(str(result))
            _print(f"   ({1000 * (time.monotonic() - started):.0f} ms)")
