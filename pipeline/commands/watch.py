"""`scanlake watch`: sync again and again, unattended."""

import os
import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from pipeline.call import Call, setting
from pipeline.commands.running import run_to_end
from pipeline.errors import Exit, SettingsError, worst
from pipeline.settings import TOKEN_VARIABLE, Settings, base_url_value
from pipeline.sources import names, union_of_all
from pipeline.watching.liveness import flaw_of
from pipeline.watching.notify import Notifier
from pipeline.watching.office import watch
from pipeline.watching.schedule import Timetable, seconds_of
from pipeline.watching.telemetry import refuse_without_extra
from pipeline.watching.watcher import VERB, Post, Watcher


def run(
    call: Call,
    *,
    every: Annotated[
        str | None,
        typer.Option("--every", metavar="DURATION", help="Time between two syncs: 90s, 15m, 6h, 1d. [interval]"),
    ] = None,
    jitter: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="Syncs begin up to so much earlier or later. Default: a tenth."),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="One sync, and its exit code: --max-runs 1.")] = False,
    max_runs: Annotated[int | None, typer.Option(min=1, help="End after so many syncs.")] = None,
    every_source: Annotated[
        bool, typer.Option("--all", help="Watch every source of the settings file, each at its own times.")
    ] = False,
    check_liveness: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Exit 0 if the watch that writes FILE lives, else 1. For probes."),
    ] = None,
    max_age: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="With --check-liveness: and its last success is no older than this."),
    ] = None,
    base_url: Annotated[str | None, setting("base_url")] = None,
    token_file: Annotated[Path | None, setting("token_file")] = None,
    liveness_file: Annotated[Path | None, setting("liveness_file")] = None,
    metrics_file: Annotated[Path | None, setting("metrics_file")] = None,
) -> Exit:
    """Sync again and again, unattended.

    Each sync is a process of its own. One that fails is repeated, at growing intervals; a lake that another
    run holds is waited for. Settings or a token that never worked end the watch with 2 or 3; once they did
    work it goes on, slowly, until they are put right. SIGTERM or Ctrl-C end it within ten seconds (130).
    """
    if check_liveness is not None:
        return _check(call, check_liveness, max_age)
    if max_age is not None:
        raise SettingsError("--max-age goes with --check-liveness.", remedy="Leave it out, or name the file.")
    flags = {"base_url": base_url, "token_file": token_file, "liveness_file": liveness_file,
             "metrics_file": metrics_file}  # fmt: skip
    most = 1 if once else max_runs
    posts = []
    follow = partial(_union, call) if every_source else None
    for source in _sources(call, flags, every_source=every_source):
        load = partial(_load, call, source, flags)
        settings = load()
        every_seconds = seconds_of("--every" if every else "interval", every or settings.interval, least=1)
        table = Timetable.of(every_seconds, None if jitter is None else seconds_of("--jitter", jitter))
        posts.append(Post(source or "", _command(call, source, flags), load, table, most, every_source, follow))
    signs = posts[0].load().liveness_file  # one process has one, however many it watches
    watchers = run_to_end(watch(posts, Notifier.of(os.environ), signs))
    return _tell(call, watchers)


def _sources(call: Call, flags: dict[str, Any], *, every_source: bool) -> list[str | None]:
    if not every_source:
        return [call.source]
    found: list[str | None] = list(names(call.config))
    one = {"--source": call.source, "--lake": call.lake, "--base-url": flags["base_url"],
           "--token-file": flags["token_file"]}  # fmt: skip
    for flag, given in one.items():
        if given is not None:
            raise SettingsError(f"--all watches every source, {flag} names one.", remedy="Give one or the other.")
    # It is no source's own: sent to the wrong service it would be given away.
    os.environ.pop(TOKEN_VARIABLE, None)
    if not found:
        raise SettingsError("--all: the settings file has no [sources.NAME] tables.", remedy="Leave --all out.")
    return found


def _load(call: Call, source: str | None, flags: dict[str, Any]) -> Settings:
    """The settings as they stand now, found fit for a sync. Raises `SettingsError`."""
    settings = _of(call, source).settings(**flags)
    base_url_value(settings)
    _of(call, source).token(settings)
    refuse_without_extra(settings)
    return settings


def _of(call: Call, source: str | None) -> Call:
    return call if source == call.source else Call(**{**_fields(call), "source": source})


def _fields(call: Call) -> dict[str, Any]:
    return {name: getattr(call, name) for name in call.__dataclass_fields__}


def _command(call: Call, source: str | None, flags: dict[str, Any]) -> list[str]:
    """One run, as a process: with this call's flags, but for those that are the watch's own."""
    words = [sys.executable, "-m", "pipeline", VERB, "--json"]
    given = {"config": call.config, "source": source, "lake": call.lake, "log_file": call.log_file,
             "base_url": flags["base_url"], "token_file": flags["token_file"]}  # fmt: skip
    for name, value in given.items():
        if value is not None:
            words += [f"--{name.replace('_', '-')}", str(value)]
    words += ["--quiet"] if call.quiet else []
    words += ["--log-json"] if call.log_json else []
    return words + ["--verbose"] * call.verbosity


def _union(call: Call) -> list[str]:
    """What writes the catalog of all sources anew, where there is one."""
    if not union_of_all(call.config).exists():
        return []
    words = [sys.executable, "-m", "pipeline", "catalog", "--union", "--json"]
    return words + ([] if call.config is None else ["--config", str(call.config)])


def _tell(call: Call, watchers: list[Watcher]) -> Exit:
    if call.as_json:
        call.print_json(
            {
                "sources": [
                    {"source": each.post.source, "runs": each.runs, "exit_code": each.last and each.last.code}
                    for each in watchers
                ]
            }
        )
    codes = [each.last.code for each in watchers if each.last is not None]
    return worst(codes)


def _check(call: Call, path: Path, max_age: str | None) -> Exit:
    flaw = flaw_of(path, max_age=None if max_age is None else seconds_of("--max-age", max_age))
    if call.as_json:
        call.print_json({"alive": flaw is None, "reason": flaw})
    elif flaw is not None:
        sys.stderr.write(f"scanlake: {flaw}\n")
    return Exit.DONE if flaw is None else Exit.FAILED
