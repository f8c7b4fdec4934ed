"""`scanlake watch`: syncs at an interval, unattended."""

import os
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, Final

import typer

from pipeline.command_options import Requires
from pipeline.config import source_names
from pipeline.context import CommandContext
from pipeline.errors import ExitCode, SettingsError, most_severe
from pipeline.monitoring.metrics import lake_labels, render_prometheus
from pipeline.monitoring.metrics_server import serve_metrics
from pipeline.monitoring.run_history import RunStatsFile
from pipeline.monitoring.schedule import Schedule, parse_duration
from pipeline.monitoring.scheduler import COMMAND, Watcher, run_watchers
from pipeline.process import run_async
from pipeline.settings import TOKEN_VARIABLE, Settings, require_base_url


@dataclass(frozen=True, slots=True)
class SourceRuns:
    """The number of runs of a source, and the exit code of the last one; the name is empty without sources."""

    source: str
    runs: int
    exit_code: int | None


@dataclass(frozen=True, slots=True)
class WatchResult:
    """The JSON object of a watch that has ended by itself."""

    sources: tuple[SourceRuns, ...]


GROUP: Final = "Fetch data"
RESULT: Final = WatchResult


def run(
    context: CommandContext,
    *,
    every: Annotated[str, typer.Option(metavar="DURATION", help="Time between two syncs: 90s, 15m, 6h, 1d.")] = "15m",
    jitter: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION", help="Maximum random shift of a sync's start. Default: a tenth of the interval."
        ),
    ] = None,
    max_runs: Annotated[
        int | None, typer.Option(min=1, help="Stop after this number of syncs, with the exit code of the last one.")
    ] = None,
    all_sources: Annotated[
        bool, typer.Option("--all", help="Watch every source in the settings file, each with its own schedule.")
    ] = False,
    metrics_port: Annotated[
        int | None, typer.Option(min=0, max=65_535, help="Serve the metrics under /metrics on this port.")
    ] = None,
    metrics_address: Annotated[
        str,
        typer.Option(metavar="ADDRESS", help="Address of --metrics-port; 0.0.0.0 for all interfaces."),
        Requires("--metrics-port"),
    ] = "127.0.0.1",
) -> ExitCode:
    """Run a sync at every interval, unattended.

    Every sync is a separate process. A failed sync is repeated with increasing back-off. `watch` waits while another
    run holds the lake. Settings or a token that never worked end `watch` with 2 or 3. If they worked before, `watch`
    continues with a long back-off until they are corrected. SIGTERM or Ctrl-C end it within ten seconds (130).
    """
    context = replace(context, logs_steps=True)
    interval = parse_duration("--every", every, minimum=1)
    schedule = Schedule.from_interval(interval, None if jitter is None else parse_duration("--jitter", jitter))
    watchers = []
    for source in _select_sources(context, all_sources=all_sources):
        source_context = replace(context, source=source)
        load = partial(_load_settings, source_context)
        load()  # a wrong setting of any source ends `watch` before it starts
        argv = ["--json", *source_context.to_argv(), COMMAND]
        watchers.append(Watcher(source or "", argv, load, schedule, max_runs, never_gives_up=all_sources))
    watching = run_watchers(watchers)
    if metrics_port is not None:
        watching = _serve_metrics_while(watching, watchers, metrics_address, metrics_port)
    run_async(watching)
    sources = tuple(SourceRuns(watcher.source, watcher.runs, watcher.last_code) for watcher in watchers)
    code = most_severe(source.exit_code for source in sources if source.exit_code is not None)
    return context.print_result(WatchResult(sources), code=code)


async def _serve_metrics_while(
    watching: Coroutine[Any, Any, None], watchers: Sequence[Watcher], address: str, port: int
) -> None:
    lakes = [(watcher.load_settings().lake, watcher.source) for watcher in watchers]

    def render() -> str:
        return render_prometheus(*((RunStatsFile(lake).last, lake_labels(lake, source)) for lake, source in lakes))

    try:
        async with serve_metrics(address, port, render):
            await watching
    finally:
        watching.close()


def _select_sources(context: CommandContext, *, all_sources: bool) -> list[str | None]:
    if not all_sources:
        return [context.source]
    context.refuse_options_of_one_source()
    sources: list[str | None] = list(source_names(context.config))
    # The token belongs to no source: a wrong service would receive it.
    os.environ.pop(TOKEN_VARIABLE, None)
    if not sources:
        raise SettingsError("--all requires [sources.NAME] tables in the settings file.", hint="Leave out --all.")
    return sources


def _load_settings(context: CommandContext) -> Settings:
    """Load the current settings and check that a sync can start with them. Raises `SettingsError`."""
    settings = context.settings()
    require_base_url(settings)
    context.token(settings)
    return settings
