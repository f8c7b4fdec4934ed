"""`scanlake serve`: a lake in the browser, or its dashboard as one self-contained file."""

import asyncio
import os
import sys
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import typer
from msgspec import Struct

from pipeline import __version__
from pipeline.cli.context import CommandContext
from pipeline.cli.option_rules import Excludes
from pipeline.errors import ExitCode, StorageError
from pipeline.lake.ledger.folder import require_own_file
from pipeline.lake.ledger.live_state import IMAGES_COMMAND, LiveState, read_live_state
from pipeline.lake.ledger.queries import RunRecord
from pipeline.lake.ledger.sizes import read_size
from pipeline.lake.storage.atomic_files import write_file
from pipeline.publish.outcome import PublishOutcome
from pipeline.query.catalog_access import CatalogAccess
from pipeline.query.dashboard import LedgerState, load_dashboard, render_dashboard
from pipeline.query.sandbox import run_interruptibly
from pipeline.query.site import Site
from pipeline.settings.settings import Settings
from pipeline.sync.run_result import find_failures
from schemas.timestamps import to_datetime

EXAMPLES: Final = ("serve", "serve --write dashboard.html")

_MAX_RUNS: Final = 20  # on the dashboard


class WrittenPage(Struct, frozen=True):
    """The file of the dashboard."""

    path: Path
    bytes: int


class ServedPages(Struct, frozen=True):
    """The address of the served pages, with the key to the rows."""

    address: str


RESULT: Final = ServedPages | WrittenPage


def run(
    context: CommandContext,
    *,
    write: Annotated[Path | None, typer.Option(help="Write the dashboard to this file and exit.")] = None,
    port: Annotated[
        int, typer.Option(min=0, max=65_535, help="Port on 127.0.0.1; 0 uses a free port."), Excludes("--write")
    ] = 8787,
) -> ExitCode:
    """Show the lake in the browser, or write its dashboard as one HTML file.

    The pages are the dashboard, tables, one file and SQL, served on 127.0.0.1 only. They show the published snapshot
    and the runs until now, make no calls to the service and do not disturb runs. The printed address has the key to the
    rows. All users of this machine can read the dashboard itself.

    --write writes the dashboard to a file instead. The file needs no network and can be mailed. Of the files in the
    lake, it contains only counts, errors and names of unknown keys.
    """
    settings = context.settings()
    if write is None:
        return _serve(context, settings, port)
    target = write.absolute()
    page = _render(settings, CatalogAccess(settings), is_served=False).encode("utf-8")
    require_own_file(target, f"--write {target}", settings.lake, page[: page.index(__version__.encode())])
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        write_file(target, page)
    except OSError as error:
        raise StorageError.from_errno(str(target), error.errno) from error
    return context.print_result(WrittenPage(target, len(page)), f"{target}: {len(page):,} bytes\n")


def _serve(context: CommandContext, settings: Settings, port: int) -> ExitCode:
    def announce(url: str) -> None:
        context.print_result(ServedPages(url), f"{url} shows the lake. Press Ctrl-C to stop.\n")
        sys.stdout.flush()

    access = CatalogAccess(settings)
    source = _choose_source(settings, read_live_state(settings.lake, runs=0))
    render = partial(_render, settings, access, is_served=True)
    site = Site(access, settings.lake.resolve().name, source, render, context.to_argv())
    asyncio.run(site.serve(port, announce))
    if access.is_stuck:  # DuckDB's thread would wake up in an interpreter that ends, and abort the process
        access.remove_spill()
        os._exit(ExitCode.OK)
    return ExitCode.OK


# What the dashboard shows


def _render(settings: Settings, access: CatalogAccess, *, is_served: bool) -> str:
    """Return the dashboard, from the catalog and the ledger."""
    ledger = _read_ledger(settings)
    name = settings.lake.resolve().name
    with access.open() as lake:
        load = partial(load_dashboard, lake, name, datetime.now(UTC), ledger)
        data = run_interruptibly(lake, load, settings.query_memory_bytes)
    return render_dashboard(data, is_served=is_served)


def _read_ledger(settings: Settings) -> LedgerState:
    state = read_live_state(settings.lake, runs=_MAX_RUNS)
    if state is None:
        failing = "The ledger cannot be read: run `scanlake check`."
        return LedgerState(source=_choose_source(settings, state), failing=failing)
    failures = find_failures(state) or find_failures(state, frozenset({IMAGES_COMMAND}))
    pause = state.properties.rollback_pause
    problem, published = None, state.properties.remote_publish
    if published is not None and published["problem"] is not None:
        problem = str(PublishOutcome.from_record(published))
    return LedgerState(
        source=_choose_source(settings, state),
        remote_problem=problem,
        runs=[_to_row(run) for run in state.runs[:_MAX_RUNS]],
        failing=None if failures is None else str(failures),
        paused_at=None if pause is None else pause["to"],
        size=read_size(settings.lake),
    )


def _to_row(record: RunRecord) -> tuple[object, ...]:
    """Return a run as a row of the table `shown_runs`."""
    started_at = to_datetime(record.started_at).replace(tzinfo=None)
    calls = record.requests_list + record.requests_detail
    return (record.run_id, record.command, record.state, started_at, record.seconds, record.files_stored, calls,
            record.rejects, record.error)  # fmt: skip


def _choose_source(settings: Settings, state: LiveState | None) -> str | None:
    """Return the address of the service whose files the lake has."""
    return (None if state is None else state.properties.source) or settings.base_url
