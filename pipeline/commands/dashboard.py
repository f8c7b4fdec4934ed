"""`scanlake dashboard`: one self-contained page about the lake, as a file; or served, with pages to browse the rows."""

import asyncio
import sys
import webbrowser
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Final

import typer

from pipeline import logs
from pipeline.config import load_all_sources, per_source_path
from pipeline.context import CommandContext
from pipeline.dashboard.browse.catalog_access import CatalogAccess
from pipeline.dashboard.browse.site import BrowseSite
from pipeline.dashboard.live import add_live_state, version_of
from pipeline.dashboard.models import DashboardData, RemotePublish
from pipeline.dashboard.overview import SourceState, render_overview
from pipeline.dashboard.page import render_page
from pipeline.dashboard.queries import RUNS, load_dashboard_data
from pipeline.dashboard.server import CachedPage, serve
from pipeline.dashboard.writing import check_writable, write_page
from pipeline.errors import ExitCode, ScanlakeError, SettingsError, most_severe
from pipeline.formatting import pluralize
from pipeline.lake.lake_folder import require_outside_lakes
from pipeline.lake.live_state import read_live_state
from pipeline.lake.reader import CATALOG, run_interruptibly
from pipeline.monitoring.failures import find_failures
from pipeline.publish_after_run import read_publish_record
from pipeline.query_process import write_query_csv
from pipeline.settings import Settings
from pipeline.sources import name_source, refuse_options_of_one_source
from schemas.timestamps import to_datetime

GROUP: Final = "Use the data"

_DEFAULT_PORT: Final = 8787
_MAX_CSV_BYTES: Final = 1_000_000_000
_CSV_SECONDS: Final = 60.0
_DEFAULT_PAGE: Final = Path("dashboard.html")


def run(
    context: CommandContext,
    *,
    out: Annotated[Path | None, typer.Option(help="File of the page. Default: dashboard.html.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite a file that is not a dashboard.")] = False,
    live: Annotated[
        bool, typer.Option("--serve", help="Serve the page on 127.0.0.1, and pages to browse the rows.")
    ] = False,
    port: Annotated[
        int | None, typer.Option(min=0, max=65_535, help="Port of --serve; 0 uses a free port. Default: 8787.")
    ] = None,
    open_browser: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
    all_sources: Annotated[
        bool,
        typer.Option("--all", help="Every source in the settings file: a page over all, and the page of each."),
    ] = False,
) -> ExitCode:
    """Write or serve a self-contained HTML page about the lake.

    The page shows one published snapshot, and the runs until now. It makes no calls to the service and does not
    disturb runs. The file needs no network and can be mailed. It contains references, names of fields and questions,
    and errors, but no answers, links or documents. --serve adds pages to browse the rows: tables, one file, SQL. The
    printed address has the key to them; all users of this machine can read the page itself.

    --all writes the page of each source beside a page with the state of all: dashboard-NAME.html, dashboard.html.
    """
    if all_sources:
        if live or port is not None:
            raise SettingsError("--all and --serve exclude each other.", hint="Serve one source with --source NAME.")
        return _write_all(context, (out or _DEFAULT_PAGE).absolute(), force=force, open_browser=open_browser)
    settings = context.settings()
    if live:
        if out is not None or force:
            raise SettingsError("--serve writes no file.", hint="Leave out --out and --force, or leave out --serve.")
        return _serve(context, settings, _DEFAULT_PORT if port is None else port, open_browser=open_browser)
    if port is not None:
        raise SettingsError("--port requires --serve.", hint="Add --serve, or leave out --port.")
    target = (out or _DEFAULT_PAGE).absolute()
    require_outside_lakes(target, f"--out {target}", settings.lake)
    check_writable(target, force=force)
    size = write_page(target, render_page(_load(settings, CatalogAccess(settings))))
    context.print_result({"out": str(target), "bytes": size}, f"{target}: {size:,} bytes\n")
    if open_browser:
        webbrowser.open(target.as_uri())
    return ExitCode.OK


def _write_all(context: CommandContext, target: Path, *, force: bool, open_browser: bool) -> ExitCode:
    """Write the page of each source, and the page over all of them to `target`. A source that fails is on it."""
    refuse_options_of_one_source(context)
    sources = load_all_sources(context.config)
    pages = {source: per_source_path(target, source) for source in sources}
    for path in (target, *pages.values()):
        for settings in sources.values():
            require_outside_lakes(path, f"--out {path}", settings.lake)
        check_writable(path, force=force)
    states, results, codes = [], dict[str, object](), [ExitCode.OK]
    for source, settings in sources.items():
        if settings.token is not None:
            logs.register_secrets(settings.token.get_secret_value())
        try:
            data = replace(_load(settings, CatalogAccess(settings)), lake=source)
        except ScanlakeError as error:
            hint = name_source(error.hint or "", source)
            states.append(SourceState(source, error=f"{error.message} {hint}".rstrip()))
            results[source] = {"error": error.message, "hint": hint, "exit_code": error.exit_code}
            codes.append(error.exit_code)
        else:
            size = write_page(pages[source], render_page(data))
            states.append(SourceState(source, pages[source].name, data))
            results[source] = {"out": str(pages[source]), "bytes": size}
    size = write_page(target, render_overview(states, datetime.now(UTC).replace(tzinfo=None)))
    text = f"{target}: {pluralize(len(states), 'source')}, {size:,} bytes\n"
    text += "".join(f"{state.source}: {state.error}\n" for state in states if state.error)
    code = most_severe(codes)
    context.print_result({"out": str(target), "bytes": size, "exit_code": code, "sources": results}, text)
    if open_browser:
        webbrowser.open(target.as_uri())
    return code


def _load(settings: Settings, access: CatalogAccess) -> DashboardData:
    """Return the values on the page of a lake, from its catalog and its ledger."""
    with access.open() as lake:
        name = settings.lake.resolve().name
        data = run_interruptibly(lake, lambda: load_dashboard_data(lake, name, datetime.now(UTC)))
    if (state := read_live_state(settings.lake, runs=RUNS)) is not None:
        failures = find_failures(settings.lake, state)
        data = add_live_state(data, state, None if failures is None else str(failures))
    return replace(data, publish=_read_publish(settings), source=_read_source(settings))


def _read_publish(settings: Settings) -> RemotePublish | None:
    record = read_publish_record(settings)
    if record is None:
        return None
    at = record["published_at"]
    published_at = None if at is None else to_datetime(at).replace(tzinfo=None)
    return RemotePublish(record["target"], record["snapshot"], published_at, record["problem"], record["failures"])


def _read_source(settings: Settings) -> str | None:
    """Return the address of the service whose files the lake has."""
    state = read_live_state(settings.lake, runs=0)
    return (None if state is None else state.properties.source) or settings.base_url


def _open_with_key(url: str, folder: Path) -> None:
    """Open an address in the browser by way of a file: all users of the machine see the arguments of a process."""
    file = folder / "open.html"
    file.write_text(f'<meta http-equiv="refresh" content="0; url={url}">', encoding="utf-8")
    webbrowser.open(file.as_uri())


def _serve(context: CommandContext, settings: Settings, port: int, *, open_browser: bool) -> ExitCode:
    def announce(url: str) -> None:
        context.print_result({"address": url}, f"{url} shows the lake. Press Ctrl-C to stop.\n")
        sys.stdout.flush()
        if open_browser:
            _open_with_key(url, folder)

    access = CatalogAccess(settings)
    page = CachedPage(
        settings.lake.absolute() / CATALOG,
        lambda version: render_page(_load(settings, access), version),
        lambda: version_of(read_live_state(settings.lake, runs=1)),
    )
    # A download has a process of its own: in this one, it would hold up every other page.
    write_csv = partial(write_query_csv, context, size=_MAX_CSV_BYTES, seconds=_CSV_SECONDS)
    site = BrowseSite(access, settings.lake.resolve().name, lambda: _read_source(settings), write_csv)
    with TemporaryDirectory(prefix="scanlake-") as temporary:
        folder = Path(temporary)
        asyncio.run(serve(page, site, port, announce))
    return ExitCode.OK
