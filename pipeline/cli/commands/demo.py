"""`scanlake demo`: the main workflow from end to end, against the emulator in a separate process."""

import asyncio
import os
import shlex
import shutil
import sys
import textwrap
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import aiohttp
import msgspec
import typer
from msgspec import Struct

from pipeline.cli.context import CommandContext
from pipeline.errors import ExitCode, ScanlakeError, SettingsError
from pipeline.lake.catalog.duckdb import read_database
from pipeline.processes.children import run_command, start_command
from pipeline.processes.event_loop import run_async
from pipeline.query.sql_page import DOCUMENTED_QUERIES
from pipeline.settings.locations import encode_path

EXAMPLES: Final = ("demo", "demo --files 500 --folder trial")

_MARKER: Final = "made-by-scanlake-demo"
_CHANGES: Final = ({"op": "update", "n": 25}, {"op": "create", "n": 12}, {"op": "close", "n": 8})
_MAX_SECONDS: Final = 1_800
_QUERIES: Final = (
    "How frequent is damage, by month?",
    "Which workflow runs are overdue?",
    "Which files were closed without a form?",
)
"""Titles of documented queries."""


class _Service(Struct, frozen=True):
    """The emulator's base URL and token."""

    base_url: str
    token: str

    async def change_world(self, change: Mapping[str, Any]) -> None:
        """Change files of the service. Raises `ScanlakeError` if the emulator refuses the change."""
        async with aiohttp.request("POST", f"{self.base_url}/_emulator/world", json=change) as response:
            if not response.ok:
                raise ScanlakeError(f"The emulator refused a change (HTTP {response.status}).")


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
    run_async(_run_workflow(folder, files, seed))
    _print("\n5. The service is stopped. An analyst queries the lake:")
    _run_queries(folder / "lake")
    _print(f"\nDone in {time.monotonic() - started:.1f} s. Open the lake:")
    for command in _suggest_commands(folder / "lake"):
        _print(f"  {shlex.join(command)}")
    return ExitCode.OK


async def _run_workflow(folder: Path, files: int, seed: int) -> None:
    """Run the commands on a lake in `folder` while an emulator runs."""
    arguments = ("--port", "0", "--files", str(files), "--seed", str(seed))
    command = start_command(["emulator", *arguments], on_line=lambda _: None)
    async with asyncio.timeout(_MAX_SECONDS), command as emulator:
        line = await emulator.stdout.readline()
        if not line:
            raise ScanlakeError("The emulator did not start.", hint="Run `scanlake emulator` to see the cause.")
        await _show_workflow(msgspec.json.decode(line, type=_Service), folder, files)


async def _show_workflow(service: _Service, folder: Path, files: int) -> None:
    lake = folder / "lake"
    _print(f"A file service with {files:,} files runs at {service.base_url} (emulator, separate process).")
    _print("\n1. The first sync fetches everything: list, details, uploads, forms, fields, workflow runs.")
    await _scanlake(service, lake, "sync")
    _print("\n2. The service changes: 25 files updated, 12 created, 8 closed.")
    for change in _CHANGES:
        await service.change_world(change)
    await _scanlake(service, lake, "sync")
    _print(
        "\n3. Five files are deleted in the service. An incremental list does not show deletions; verify detects them."
    )
    await service.change_world({"op": "delete", "n": 5})
    await _scanlake(service, lake, "verify")
    _print("\n4. An auditor needs the PDFs of the closed files of the last 90 days, in a folder with a manifest.")
    where = "closed AND updated_at > utc_now() - INTERVAL 90 DAY"
    await _scanlake(service, lake, "report", "--where", where, "--out", encode_path(folder / "audit"))
    _print(f"   {folder / 'audit' / 'index.html'} lists the files; `sha256sum -c SHA256SUMS` verifies the folder.")


def _suggest_commands(lake: Path) -> list[list[str]]:
    """Return commands that run as printed, also if the installation is not on the PATH."""
    scanlake, duckdb, python = map(_find_program, ("scanlake", "duckdb", "python"))
    catalog = str(lake / "catalog.duckdb")
    return [
        [scanlake, "--lake", encode_path(lake), "query", "FROM meta.freshness"],
        [duckdb, "-readonly", catalog],
        [python, "-c", f"import duckdb; duckdb.connect({catalog!r}, read_only=True).sql('FROM files').show()"],
    ]


def _find_program(name: str) -> str:
    """Return the path of a program of this installation, or its name if the PATH leads to it: others lack DuckDB."""
    program = Path(sys.executable).with_name(name)
    is_first = not program.exists() or Path(shutil.which(name) or "").parent == program.parent
    return name if is_first else os.path.relpath(program)  # .venv/bin/NAME after `make demo`


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


async def _scanlake(service: _Service, lake: Path, *arguments: str) -> None:
    """Run a command in a separate process, as a user does, and print its output without its log."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SCANLAKE_")}
    environment |= {"SCANLAKE_BASE_URL": service.base_url, "SCANLAKE_TOKEN": service.token}
    environment["SCANLAKE_LAKE"] = encode_path(lake)
    _print(f"   $ scanlake {shlex.join(arguments)}")
    result = await run_command(arguments, variables=environment, on_line=lambda _: None)
    if result.code:
        raise ScanlakeError(f"`scanlake {arguments[0]}` ended with exit code {result.code}: {result.message}")
    _print(textwrap.indent(result.text.decode(), "   ").rstrip())


def _run_queries(lake: Path) -> None:
    with read_database(lake / "catalog.duckdb") as db:
        for title in _QUERIES:
            started = time.monotonic()
            result = str(db.sql(DOCUMENTED_QUERIES[title]))
            _print(f"\n   {title}\n{result}")
            _print(f"   ({1000 * (time.monotonic() - started):.0f} ms)")
