"""`scanlake sync`: bring the lake up to date with the service."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from pipeline.call import Call, setting
from pipeline.commands.running import in_own_process, run_to_end
from pipeline.commands.telling import tell_proof, tell_sync
from pipeline.errors import Exit, SettingsError
from pipeline.lake.lake import Lake
from pipeline.runs import Range, sync
from pipeline.runs.upkeep import is_due as compaction_is_due
from pipeline.runs.verify import Mode, is_due, verify
from pipeline.settings import base_url_value
from schemas.instants import SECOND, parse_instant


def run(
    call: Call,
    *,
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="MOMENT", help="Read what was updated from here on (UTC, ISO-8601)."),
    ] = None,
    until: Annotated[
        str | None, typer.Option("--until", metavar="MOMENT", help="Read what was updated before this (UTC, ISO-8601).")
    ] = None,
    full: Annotated[
        bool, typer.Option("--full", help="List everything again, not only what is new; what is held is not fetched.")
    ] = False,
    moved: Annotated[
        bool, typer.Option("--moved", help="The service has a new address; go on with this lake.")
    ] = False,
    base_url: Annotated[str | None, setting("base_url")] = None,
    token_file: Annotated[Path | None, setting("token_file")] = None,
    expand: Annotated[str | None, setting("expand")] = None,
    includes: Annotated[str | None, setting("includes")] = None,
    lang: Annotated[str | None, setting("lang")] = None,
    max_concurrency: Annotated[int | None, setting("max_concurrency")] = None,
    max_requests_per_second: Annotated[float | None, setting("max_requests_per_second")] = None,
    max_duration_seconds: Annotated[float | None, setting("max_duration_seconds")] = None,
    max_rejects: Annotated[int | None, setting("max_rejects")] = None,
) -> Exit:
    """Bring the lake up to date with the service.

    The first run fetches everything, every later one what has changed since.
    Killed, it goes on where it stopped. Every 7 days (verify_every_days) it verifies the lake as well.

    Exit codes: 0 done, 4 done with rejects, 1 the service failed (nothing is lost, run again),
    3 token refused, 5 another run holds the lake.
    """
    chosen = _range(since, until, full=full)
    settings = call.settings(
        base_url=base_url,
        token_file=token_file,
        expand=expand,
        includes=includes,
        lang=lang,
        max_concurrency=max_concurrency,
        max_requests_per_second=max_requests_per_second,
        max_duration_seconds=max_duration_seconds,
        max_rejects=max_rejects,
    )
    base_url_value(settings)
    token = call.token(settings)
    with Lake(settings.lake, doing="sync", anchor=settings.anchor) as lake:
        summary = run_to_end(sync(lake, settings, token, chosen, call.progress(), moved=moved))
        if not call.as_json:
            sys.stdout.write(tell_sync(summary))
        proof = None
        if is_due(lake, settings):
            proof = run_to_end(verify(lake, settings, token, Mode(), call.progress()))
        fold = compaction_is_due(lake)
    if fold:
        in_own_process(call, settings.lake, "compact")
    if call.as_json:
        call.print_json(summary.as_json() | ({"verify": proof.as_json()} if proof else {}))
    elif proof:
        sys.stdout.write(f"verify (due every {settings.verify_every_days:g} days):\n{tell_proof(proof)}")
    clean = not summary.rejects and (proof is None or proof.equal)
    return Exit.DONE if clean else Exit.REJECTS


def _range(since: str | None, until: str | None, *, full: bool) -> Range:
    if full and (since or until):
        raise SettingsError("--full reads everything, --since and --until only a part", remedy="Give one or the other.")
    low, high = _second("--since", since), _second("--until", until)
    if low is not None and high is not None and high <= low:
        raise SettingsError("--until is not after --since", remedy="Nothing lies between them.")
    return Range(low, high, full)


def _second(flag: str, text: str | None) -> int | None:
    if text is None:
        return None
    instant = parse_instant(text)
    if instant is None:
        raise SettingsError(f"{flag}: not a moment in time", remedy="Write it as 2026-01-31 or 2026-01-31T12:00:00Z.")
    return instant // SECOND
