"""`scanlake dashboard`: one self-contained page about the lake, as a file or served on this machine."""

import asyncio
import sys
import webbrowser
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Final

import typer

from pipeline.context import CommandContext
from pipeline.dashboard.page import render_page
from pipeline.dashboard.queries import load_dashboard_data
from pipeline.dashboard.server import CachedPage, serve
from pipeline.dashboard.writing import check_writable, write_page
from pipeline.errors import ExitCode, SettingsError
from pipeline.lake.lake_folder import require_outside_lakes
from pipeline.lake.reader import CATALOG, open_catalog, run_interruptibly
from pipeline.settings import Settings

_DEFAULT_PORT: Final = 8787


def run(
    context: CommandContext,
    *,
    out: Annotated[Path | None, typer.Option(help="File of the page. Default: dashboard.html.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite a file that is not a dashboard.")] = False,
    live: Annotated[
        bool, typer.Option("--serve", help="Serve the page on 127.0.0.1; it reloads after each publish.")
    ] = False,
    port: Annotated[
        int | None, typer.Option(min=0, max=65_535, help="Port of --serve; 0 uses a free port. Default: 8787.")
    ] = None,
    open_browser: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
) -> ExitCode:
    """Write or serve a self-contained HTML page about the lake.

    The page shows one published snapshot. It makes no calls to the service and does not disturb runs. The file needs
    no network and can be mailed. It contains references, names of fields and questions, and errors, but no answers,
    links or documents. All users of this machine can read what --serve serves.
    """
    settings = context.settings()
    if live:
        if out is not None or force:
            raise SettingsError("--serve writes no file.", hint="Leave out --out and --force, or leave out --serve.")
        return _serve(context, settings, _DEFAULT_PORT if port is None else port, open_browser=open_browser)
    if port is not None:
        raise SettingsError("--port requires --serve.", hint="Add --serve, or leave out --port.")
    target = (out or Path("dashboard.html")).absolute()
    require_outside_lakes(target, f"--out {target}", settings.lake)
    check_writable(target, force=force)
    size = write_page(target, _render_page(settings, None))
    context.print_result({"out": str(target), "bytes": size}, f"{target}: {size:,} bytes\n")
    if open_browser:
        webbrowser.open(target.as_uri())
    return ExitCode.OK


def _render_page(settings: Settings, version: str | None) -> str:
    with open_catalog(settings) as lake:
        name = settings.lake.resolve().name
        data = run_interruptibly(lake, lambda: load_dashboard_data(lake, name, datetime.now(UTC)))
    return render_page(data, version)


def _serve(context: CommandContext, settings: Settings, port: int, *, open_browser: bool) -> ExitCode:
    def announce(url: str) -> None:
        context.print_result({"address": url}, f"{url} shows the lake. Press Ctrl-C to stop.\n")
        sys.stdout.flush()
        if open_browser:
            webbrowser.open(url)

    page = CachedPage(settings.lake.absolute() / CATALOG, lambda version: _render_page(settings, version))
    asyncio.run(serve(page, port, announce))
    return ExitCode.OK
