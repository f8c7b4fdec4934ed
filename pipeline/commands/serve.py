"""`scanlake serve`: the emulated service, to try scanlake or any other client against."""

import errno
import os
from typing import Annotated, Final

import typer

from pipeline.emulator.faults import KINDS
from pipeline.emulator.options import (
    PROFILES,
    Faults,
    Quirks,
    Spread,
    WorldPlan,
    assignments,
    documented,
    quirks_of,
)
from pipeline.emulator.server import DEFAULT_TOKEN
from pipeline.emulator.serving import Serving, faults_of, serve
from pipeline.errors import SettingsError

_PORT_REFUSED: Final = frozenset({errno.EADDRINUSE, errno.EACCES, errno.EPERM, errno.EADDRNOTAVAIL})
_WORLD, _ANSWERS, _TROUBLE, _PROCESS = "World", "Answers", "Misbehaviour", "Process"


def _list_options(wanted: bool) -> None:  # noqa: FBT001 (typer hands the flag over by position)
    """Print all quirks, faults and profiles, and leave."""
    if not wanted:
        return
    for title, kind in (("--quirk NAME=VALUE", Quirks), ("--fault NAME=VALUE", Faults)):
        typer.echo(f"{title}\n")
        for option in documented(kind):
            if option.name != "shares":
                typer.echo(f"  {option.name}={option.default or '(nothing)'}\n      {option.doc}")
                typer.echo(f"      {option.values}")
        typer.echo()
    typer.echo("--fault KIND=PROBABILITY, and the kinds of a scripted fault\n")
    for name, meaning in KINDS.items():
        typer.echo(f"  {name:20} {meaning}")
    typer.echo("\n--profile NAME\n")
    for name, settings in PROFILES.items():
        spelt = ", ".join(f"{key}={value}" for key, value in settings.items()) or "all defaults"
        typer.echo(f"  {name:10} {spelt}")
    raise typer.Exit


def run(
    *,
    port: Annotated[
        int,
        typer.Option(min=0, max=65535, help="Port on 127.0.0.1; 0 takes a free one.", rich_help_panel=_PROCESS),
    ] = 8765,
    files: Annotated[int, typer.Option(min=0, help="How many files there are.", rich_help_panel=_WORLD)] = 2000,
    seed: Annotated[int, typer.Option(help="The same seed grows the same files.", rich_help_panel=_WORLD)] = 0,
    days: Annotated[int, typer.Option(min=1, help="Age of the oldest file.", rich_help_panel=_WORLD)] = 1095,
    spread: Annotated[
        Spread,
        typer.Option(
            help="Update times: a natural mix, even, 80 % in 1 % of the time, 60 in one second.",
            rich_help_panel=_WORLD,
        ),
    ] = "natural",
    now: Annotated[
        str,
        typer.Option(help="Stop the clock here (ISO-8601, UTC); empty: real time.", rich_help_panel=_WORLD),
    ] = "",
    churn: Annotated[float, typer.Option(min=0, help="Changes a second while serving.", rich_help_panel=_WORLD)] = 0.0,
    profile: Annotated[
        str, typer.Option(help=f"A set of quirks: {', '.join(PROFILES)}.", rich_help_panel=_ANSWERS)
    ] = "seen",
    quirk: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="One answer the interface leaves open.", rich_help_panel=_ANSWERS),
    ] = None,
    token: Annotated[
        str, typer.Option(help="The token clients must send. Not a secret.", rich_help_panel=_ANSWERS)
    ] = DEFAULT_TOKEN,
    fault: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="latency_ms=50, rate_limit=20, drop-mid-body=0.01, 503=0.05, ...",
            rich_help_panel=_TROUBLE,
        ),
    ] = None,
    prerender: Annotated[
        bool,
        typer.Option("--prerender", help="Render all files first, for benchmarks.", rich_help_panel=_PROCESS),
    ] = False,
    max_seconds: Annotated[
        float, typer.Option(min=0, help="Stop after so long; 0: never.", rich_help_panel=_PROCESS)
    ] = 0.0,
    until_stdin_closes: Annotated[
        bool,
        typer.Option("--until-stdin-closes", help="Stop when the starting process is gone.", rich_help_panel=_PROCESS),
    ] = False,
    list_quirks: Annotated[  # noqa: ARG001 (acts in its callback)
        bool,
        typer.Option(
            "--list-quirks",
            callback=_list_options,
            is_eager=True,
            help="Show every quirk, fault and profile with its meaning, and leave.",
            rich_help_panel=_ANSWERS,
        ),
    ] = False,
) -> None:
    """Serve the whole file service, pretended, on 127.0.0.1.

    Ready, it prints one line of JSON: base_url, token, control. Point a client at base_url:

    scanlake serve --churn 2 --quirk order=shuffled --fault 429=0.02

    curl 'http://127.0.0.1:8765/api/v2/files?limit=2' -H 'token: ...'

    curl http://127.0.0.1:8765/_emulator/

    The last one lists the routes that change files and cause trouble while it runs; --list-quirks what can be set.

    Files are grown from the seed, so two runs with one seed and one --now tell the same story. Ctrl-C ends it.
    """
    try:
        serving = Serving(
            plan=WorldPlan(files=files, seed=seed, days=days, spread=spread, now=now),
            quirks=quirks_of(profile, assignments(quirk or [])),
            faults=faults_of(fault or []),
            port=port,
            token=token,
            churn=churn,
            prerender=prerender,
            max_seconds=max_seconds,
            until_stdin_closes=until_stdin_closes,
        )
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    try:
        serve(serving)
    except OSError as error:
        if error.errno not in _PORT_REFUSED:
            raise
        raise SettingsError(
            f"Port {port} cannot be listened on: {os.strerror(error.errno or 0)}.",
            remedy="Name another one with --port.",
        ) from None
