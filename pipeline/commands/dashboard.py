"""`scanlake dashboard`: one self-contained page about the lake, as a file or live on this machine."""

import asyncio
import sys
import webbrowser
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from pipeline.call import Call
from pipeline.dashboard.page import page
from pipeline.dashboard.queries import read
from pipeline.dashboard.serving import Edition, serve
from pipeline.dashboard.writing import may_write, write
from pipeline.errors import Exit, SettingsError
from pipeline.published import CATALOG, published, until_done
from pipeline.settings import Settings


def run(
    call: Call,
    *,
    out: Annotated[
        Path | None, typer.Option("--out", help="The file. Default: dashboard.html.", show_default=False)
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite a file that is not a dashboard.")] = False,
    live: Annotated[
        bool, typer.Option("--serve", help="Serve it on 127.0.0.1 instead; it renews itself after each publish.")
    ] = False,
    port: Annotated[
        int | None,
        typer.Option(
            min=0, max=65_535, help="Port for --serve. Default: 8787; 0 takes a free one.", show_default=False
        ),
    ] = None,
    show: Annotated[bool, typer.Option("--open", help="Open it in the browser.")] = False,
) -> Exit:
    """Show the state of the lake on one page that needs nothing but itself.

    It is made from one snapshot of the published lake: it asks nothing of the service and disturbs no run. The
    file needs no network and can be mailed; it shows references, names of fields and questions, and errors, but
    no answers, links or documents. What --serve shows can be seen by everyone who works on this machine.
    """
    settings = call.settings()
    if live:
        if out is not None or force:
            raise SettingsError("--serve writes no file.", remedy="Leave out --out and --force, or --serve.")
        return _serve(call, settings, 8787 if port is None else port, show=show)
    if port is not None:
        raise SettingsError("--port is for --serve.", remedy="Add --serve, or leave out --port.")
    target = (out or Path("dashboard.html")).absolute()
    if target.resolve().is_relative_to(settings.lake.resolve()):
        raise SettingsError(f"{target} lies within the lake.", remedy="Write it somewhere else with --out.")
    may_write(target, force=force)
    size = write(target, _made(settings, None))
    if call.as_json:
        call.print_json({"out": str(target), "bytes": size})
    else:
        sys.stdout.write(f"{target}: {size:,} bytes\n")
    if show:
        webbrowser.open(target.as_uri())
    return Exit.DONE


def _made(settings: Settings, version: str | None) -> str:
    with published(settings) as lake:
        name = settings.lake.resolve().name
        facts = until_done(lake, lambda: read(lake, name, datetime.now(UTC)))
    return page(facts, version)


def _serve(call: Call, settings: Settings, port: int, *, show: bool) -> Exit:
    def ready(address: str) -> None:
        if call.as_json:
            call.print_json({"address": address})
        else:
            sys.stdout.write(f"{address} shows the lake until Ctrl-C.\n")
        sys.stdout.flush()
        if show:
            webbrowser.open(address)

    edition = Edition(settings.lake.absolute() / CATALOG, lambda version: _made(settings, version))
    asyncio.run(serve(edition, port, ready))
    return Exit.DONE
