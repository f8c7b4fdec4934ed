"""`scanlake emulator`: a local emulator of the service, for trials and tests of clients."""

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
    list_options,
    make_quirks,
    parse_assignments,
)
from pipeline.emulator.process import ServeOptions, parse_faults, serve
from pipeline.emulator.server import DEFAULT_TOKEN
from pipeline.errors import SettingsError

_PORT_ERRNOS: Final = frozenset({errno.EADDRINUSE, errno.EACCES, errno.EPERM, errno.EADDRNOTAVAIL})
_WORLD, _BEHAVIOR, _FAULTS, _PROCESS = "World", "Behavior", "Faults", "Process"


def _print_options(is_requested: bool) -> None:  # noqa: FBT001 (typer passes the flag by position)
    """Print all quirks, faults and profiles and exit."""
    if not is_requested:
        return
    for title, kind in (("--quirk NAME=VALUE", Quirks), ("--fault NAME=VALUE", Faults)):
        typer.echo(f"{title}\n")
        for option in list_options(kind):
            if option.name != "probabilities":
                typer.echo(f"  {option.name}={option.default or '(empty)'}\n      {option.doc}")
                typer.echo(f"      {option.values}")
        typer.echo()
    typer.echo("--fault KIND=PROBABILITY (also the kinds of scripted faults)\n")
    for name, description in KINDS.items():
        typer.echo(f"  {name:20} {description}")
    typer.echo("\n--profile NAME\n")
    for name, settings in PROFILES.items():
        fields = ", ".join(f"{key}={value}" for key, value in settings.items()) or "all defaults"
        typer.echo(f"  {name:10} {fields}")
    raise typer.Exit


def run(
    *,
    port: Annotated[
        int,
        typer.Option(min=0, max=65535, help="Port on 127.0.0.1; 0 uses a free port.", rich_help_panel=_PROCESS),
    ] = 8765,
    files: Annotated[int, typer.Option(min=0, help="Number of files.", rich_help_panel=_WORLD)] = 2000,
    seed: Annotated[
        int, typer.Option(help="Seed; the same seed generates the same files.", rich_help_panel=_WORLD)
    ] = 0,
    days: Annotated[int, typer.Option(min=1, help="Age of the oldest file in days.", rich_help_panel=_WORLD)] = 1095,
    spread: Annotated[
        Spread,
        typer.Option(
            help="Update times: natural mix, even, burst (80 % in 1 % of the time), or 60 files per second.",
            rich_help_panel=_WORLD,
        ),
    ] = "natural",
    now: Annotated[
        str,
        typer.Option(help="Time of a stopped clock (ISO-8601, UTC); empty: system time.", rich_help_panel=_WORLD),
    ] = "",
    churn: Annotated[float, typer.Option(min=0, help="Random changes per second.", rich_help_panel=_WORLD)] = 0.0,
    profile: Annotated[
        str, typer.Option(help=f"Set of quirks: {', '.join(PROFILES)}.", rich_help_panel=_BEHAVIOR)
    ] = "seen",
    quirk: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE", help="Behavior that the interface does not define.", rich_help_panel=_BEHAVIOR
        ),
    ] = None,
    token: Annotated[
        str, typer.Option(help="Token that clients must send; not a secret.", rich_help_panel=_BEHAVIOR)
    ] = DEFAULT_TOKEN,
    fault: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="latency_ms=50, rate_limit=20, drop-mid-body=0.01, 503=0.05, ...",
            rich_help_panel=_FAULTS,
        ),
    ] = None,
    prerender: Annotated[
        bool,
        typer.Option("--prerender", help="Render all files before serving (for benchmarks).", rich_help_panel=_PROCESS),
    ] = False,
    max_seconds: Annotated[
        float, typer.Option(min=0, help="Stop after this number of seconds; 0: no limit.", rich_help_panel=_PROCESS)
    ] = 0.0,
    until_stdin_closes: Annotated[
        bool,
        typer.Option("--until-stdin-closes", help="Stop when the parent process ends.", rich_help_panel=_PROCESS),
    ] = False,
    list_quirks: Annotated[  # noqa: ARG001 (used by its callback)
        bool,
        typer.Option(
            "--list-quirks",
            callback=_print_options,
            is_eager=True,
            help="Print all quirks, faults and profiles and exit.",
            rich_help_panel=_BEHAVIOR,
        ),
    ] = False,
) -> None:
    """Run a local emulator of the service on 127.0.0.1.

    When ready, the command prints one line of JSON: base_url, token, control. Use base_url in a client:

    scanlake emulator --churn 2 --quirk order=shuffled --fault 429=0.02

    curl 'http://127.0.0.1:8765/api/v2/files?limit=2' -H 'token: ...'

    curl http://127.0.0.1:8765/_emulator/

    The last command lists the routes that change files and faults at run time. --list-quirks lists all options.

    Files are generated: two runs with the same --seed and --now serve the same files. Stop with Ctrl-C.
    """
    try:
        options = ServeOptions(
            plan=WorldPlan(files=files, seed=seed, days=days, spread=spread, now=now),
            quirks=make_quirks(profile, parse_assignments(quirk or [])),
            faults=parse_faults(fault or []),
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
        serve(options)
    except OSError as error:
        if error.errno not in _PORT_ERRNOS:
            raise
        raise SettingsError(
            f"Port {port}: cannot listen: {os.strerror(error.errno or 0)}.",
            hint="Use another port with --port.",
        ) from None
