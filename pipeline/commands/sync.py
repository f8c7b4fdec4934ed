"""`scanlake sync`: bring the lake up to date with the service."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from pipeline.call import Call, setting
from pipeline.commands import union
from pipeline.commands.running import in_own_process, run_to_end
from pipeline.commands.side_by_side import default_jobs, side_by_side, tell
from pipeline.commands.telling import tell_proof, tell_sync
from pipeline.errors import Exit, SettingsError, worst
from pipeline.lake.lake import Lake
from pipeline.runs.sync import Range, sync
from pipeline.runs.upkeep import is_due as compaction_is_due
from pipeline.runs.verify import Mode, is_due, verify
from pipeline.settings import Settings, base_url_value
from pipeline.sources import lakes_of_all
from pipeline.watching.aftermath import Account, accounted
from pipeline.watching.facts import Before, brought, lake_facts
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
    all_: Annotated[
        bool, typer.Option("--all", help="Sync every source of the settings file, each in a process of its own.")
    ] = False,
    jobs: Annotated[
        int | None, typer.Option("--jobs", min=1, help="With --all: processes at a time. Default: one a core.")
    ] = None,
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
    3 token refused, 5 another run holds the lake. With --all: the worst of the sources'.
    """
    chosen = _range(since, until, full=full)
    flags: dict[str, Any] = {
        "base_url": base_url,
        "token_file": token_file,
        "expand": expand,
        "includes": includes,
        "lang": lang,
        "max_concurrency": max_concurrency,
        "max_requests_per_second": max_requests_per_second,
        "max_duration_seconds": max_duration_seconds,
        "max_rejects": max_rejects,
    }
    if all_:
        return _sync_all(call, flags | {"since": since, "until": until, "full": full, "moved": moved}, jobs)
    if jobs is not None:
        raise SettingsError("--jobs goes with --all.", remedy="Leave it out, or sync every source with --all.")
    settings = call.settings(**flags)
    base_url_value(settings)
    with accounted(settings, "sync", call.source or "") as account:
        account.code = _sync(call, settings, chosen, account, moved=moved)
    return account.code


def _sync_all(call: Call, flags: Mapping[str, Any], jobs: int | None) -> Exit:
    """Every source in a process of its own; the union of their catalogs follows, where there is one."""
    for flag, given in {"--source": call.source, "--lake": call.lake, **_of_one_service(flags)}.items():
        if given is not None:
            raise SettingsError(f"--all syncs every source, {flag} names one.", remedy="Give one or the other.")
    lakes = lakes_of_all(call.config)
    arguments = ["sync", *_spelled(flags)]
    ended = side_by_side(call, list(lakes), arguments, jobs=jobs or default_jobs())
    union.renew(call.config, lakes)
    code = worst(each.exit_code for each in ended)
    if call.as_json:
        told = {
            each.source: {"exit_code": each.code, "seconds": round(each.seconds, 3)} | each.answer for each in ended
        }
        call.print_json({"exit_code": code, "sources": told})
    else:
        width = max(map(len, lakes))
        sys.stdout.writelines(tell(each, width) for each in ended)
    return code


def _of_one_service(flags: Mapping[str, Any]) -> dict[str, Any]:
    return {"--base-url": flags["base_url"], "--token-file": flags["token_file"]}


def _spelled(flags: Mapping[str, Any]) -> list[str]:
    """Flags as they stand on a command line."""
    spelled = []
    for name, value in flags.items():
        if value is True:
            spelled.append(f"--{name.replace('_', '-')}")
        elif value is not None and value is not False:
            spelled += [f"--{name.replace('_', '-')}", str(value)]
    return spelled


def _sync(call: Call, settings: Settings, chosen: Range, account: Account, *, moved: bool) -> Exit:
    token = call.token(settings)
    shown = call.progress()
    with Lake(settings.lake, doing="sync", anchor=settings.anchor) as lake:
        before = Before.of(lake)
        summary = run_to_end(sync(lake, settings, token, chosen, shown, moved=moved))
        fetched = summary.files_expanded
        came = brought(lake, before, run_id=summary.run_id, fetched=fetched, last=shown.last)
        speaks = not (call.as_json or call.quiet)
        if speaks:
            sys.stdout.write(tell_sync(summary, came, lake_facts(lake)))
        proof = None
        if is_due(lake, settings):
            proof = run_to_end(verify(lake, settings, token, Mode(), shown))
        fold = compaction_is_due(lake)
        account.told = summary.as_json() | {"brought": came.as_json(), "lake": lake_facts(lake)}
    if fold:
        in_own_process(call, settings.lake, "compact", *(("--source", call.source) if call.source else ()))
    if proof:
        account.told["verify"] = proof.as_json()
    if call.as_json:
        call.print_json(account.told)
    elif proof and (speaks or not proof.equal):
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
