"""`scanlake emulator`: a local emulator of the service, for trials and tests of clients."""

import errno
import os
from functools import partial
from typing import Annotated, Final

import typer

from pipeline.emulator.options import (
    PROFILES,
    ImageOptions,
    Spread,
    WorldPlan,
    make_quirks,
    parse_assignments,
    replace_fields,
)
from pipeline.emulator.process import describe_all_options, parse_faults, serve
from pipeline.emulator.server import DEFAULT_TOKEN, Emulator
from pipeline.errors import ExitCode, SettingsError

EXAMPLES: Final = ("emulator --churn 2", "emulator --quirk order=shuffled --fault 429=0.02")

_PORT_ERRNOS: Final = frozenset({errno.EADDRINUSE, errno.EACCES, errno.EPERM, errno.EADDRNOTAVAIL})
_world_option = partial(typer.Option, rich_help_panel="World")
_behavior_option = partial(typer.Option, rich_help_panel="Behavior")
_fault_option = partial(typer.Option, rich_help_panel="Faults")
_process_option = partial(typer.Option, rich_help_panel="Process")


def _print_options(is_requested: bool) -> None:  # noqa: FBT001 (typer passes the flag by position)
    if is_requested:
        typer.echo(describe_all_options())
        raise typer.Exit


def run(
    *,
    port: Annotated[int, _process_option(min=0, max=65535, help="Port on 127.0.0.1; 0 uses a free port.")] = 8765,
    files: Annotated[int, _world_option(min=0, help="Number of files.")] = 2000,
    seed: Annotated[int, _world_option(help="Seed; the same seed generates the same files.")] = 0,
    days: Annotated[int, _world_option(min=1, help="Age of the oldest file in days.")] = 1095,
    spread: Annotated[
        Spread,
        _world_option(help="Update times: natural mix, even, burst (80 % in 1 % of the time), or 60 files per second."),
    ] = "natural",
    now: Annotated[str, _world_option(help="Time of a stopped clock (ISO-8601, UTC); empty: system time.")] = "",
    churn: Annotated[float, _world_option(min=0, help="Random changes per second.")] = 0.0,
    profile: Annotated[str, _behavior_option(help=f"Set of quirks: {', '.join(PROFILES)}.")] = "seen",
    quirk: Annotated[
        list[str] | None, _behavior_option(metavar="NAME=VALUE", help="Behaviour that the interface does not define.")
    ] = None,
    token: Annotated[str, _behavior_option(help="Token that clients must send; not a secret.")] = DEFAULT_TOKEN,
    fault: Annotated[
        list[str] | None,
        _fault_option(metavar="NAME=VALUE", help="latency_ms=50, rate_limit=20, drop-mid-body=0.01, 503=0.05, ..."),
    ] = None,
    images: Annotated[
        bool, _behavior_option("--images", help="Serve the images of all uploads from a separate origin.")
    ] = False,
    image: Annotated[
        list[str] | None,
        _behavior_option(
            metavar="NAME=VALUE", help="size_bytes=30000, link_seconds=60, broken_ratio=0.01, ...; implies --images."
        ),
    ] = None,
    image_fault: Annotated[
        list[str] | None,
        _fault_option(metavar="NAME=VALUE", help="Like --fault, for the image host; implies --images."),
    ] = None,
    prerender: Annotated[
        bool, _process_option("--prerender", help="Render all files before serving (for benchmarks).")
    ] = False,
    max_seconds: Annotated[float, _process_option(min=0, help="Stop after this number of seconds; 0: no limit.")] = 0.0,
    list_quirks: Annotated[  # noqa: ARG001 (used by its callback)
        bool,
        _behavior_option(
            "--list-quirks",
            callback=_print_options,
            is_eager=True,
            help="Print all quirks, faults and profiles and exit.",
        ),
    ] = False,
) -> ExitCode:
    """Run a local emulator of the service on 127.0.0.1.

    When ready, the command prints one line of JSON: base_url, token, control. Use base_url in a client:

    curl 'http://127.0.0.1:8765/api/v2/files?limit=2' -H 'token: ...'

    curl http://127.0.0.1:8765/_emulator/

    The last command lists the routes that show and change the emulator. --list-quirks lists all options.

    Files are generated: two runs with the same --seed and --now serve the same files. Stop with Ctrl-C.
    """
    try:
        image_options = replace_fields(ImageOptions(), parse_assignments(image or []))
        emulator = Emulator(
            plan=WorldPlan(files=files, seed=seed, days=days, spread=spread, now=now),
            quirks=make_quirks(profile, parse_assignments(quirk or [])),
            faults=parse_faults(fault or []),
            images=image_options if images or image or image_fault else None,
            image_faults=parse_faults(image_fault or []),
            port=port,
            token=token,
            churn=churn,
            prerender=prerender,
        )
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    try:
        serve(emulator, max_seconds=max_seconds)
    except OSError as error:
        if error.errno not in _PORT_ERRNOS:
            raise
        raise SettingsError(
            f"Port {port}: cannot listen: {os.strerror(error.errno or 0)}.", hint="Use another port with --port."
        ) from None
    return ExitCode.OK
