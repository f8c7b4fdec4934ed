"""`scanlake doctor`: is everything in order, and what to do where it is not."""

import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Final

from pipeline.call import Call, setting
from pipeline.commands.running import run_to_end
from pipeline.errors import Exit, SettingsError, worst
from pipeline.logs import one_line
from pipeline.runs import diagnosis, reaching
from pipeline.runs.finding import Finding, ok, told, warning
from pipeline.settings import Settings, base_url_value
from pipeline.sources import salvaged
from pipeline.wording import many

_MARKS: Final = {"ok": "ok     ", "warning": "warning", "fault": "FAULT  "}
_WIDTH: Final = len("permissions")  # the longest name of a check
_INDENT: Final = len("warning  ") + _WIDTH + 1


def run(
    call: Call,
    *,
    base_url: Annotated[str | None, setting("base_url")] = None,
    token_file: Annotated[Path | None, setting("token_file")] = None,
) -> Exit:
    """Look whether everything is in order, and say what to do where not.

    Looks at settings, permissions, the way to the service, token, clocks, disk and the lake; goes on after a fault
    where that makes sense. Changes nothing, and asks the service one cheap question.

    Exit codes: 0 in order (warnings included), else that of the worst fault: 9 damage, 7 disk or permission,
    2 settings, 3 token refused, 6 not the service, 1 not reachable.
    """
    findings: list[Finding] = []
    for finding in _findings(call, {"base_url": base_url, "token_file": token_file}):
        findings.append(finding)
        if not call.as_json:
            sys.stdout.write(_line(finding))
            sys.stdout.flush()
    code = worst(finding.exit_code for finding in findings)
    counts = {state: sum(finding.state == state for finding in findings) for state in _MARKS}
    if call.as_json:
        call.print_json({"exit_code": code, "counts": counts, "findings": [asdict(each) for each in findings]})
    else:
        faults, warnings = many(counts["fault"], "fault"), many(counts["warning"], "warning")
        sys.stdout.write(f"{faults}, {warnings}, {counts['ok']} in order\n")
    return code


def _findings(call: Call, flags: dict[str, str | Path | None]) -> Iterator[Finding]:
    path: Path | None = None
    try:
        given = call.given(**flags)
        path = given.path
        settings = call.begin_with(given)
        chosen = f", source {given.source}" if given.source else ""
        yield ok("settings", f"{path or 'no settings file'}{chosen}")
    except SettingsError as error:
        yield told("settings", error)
        settings = salvaged(call.config, {"lake": call.lake, **flags})
    yield from diagnosis.permissions(path, settings)
    yield from _service(call, settings)
    yield from diagnosis.place(settings)
    yield from diagnosis.lake(settings)


def _service(call: Call, settings: Settings) -> Iterator[Finding]:
    token = None
    try:
        token = call.token(settings)
    except SettingsError as error:
        yield told("token", error)
    try:
        address = base_url_value(settings)
    except SettingsError as error:
        yield told("address", error)
        return
    reached = reaching.reach(address, settings.proxy)
    yield from reached
    if any(finding.state == "fault" for finding in reached):
        if token is not None:
            yield warning("token", "could not be tried", "Mend the way to the service first.")
        return
    if token is not None:
        yield from run_to_end(reaching.ask(settings, token))


def _line(finding: Finding) -> str:
    remedy = f"\n{'':{_INDENT}}{one_line(finding.remedy)}" if finding.remedy else ""
    return f"{_MARKS[finding.state]}  {finding.check:{_WIDTH}} {one_line(finding.message)}{remedy}\n"
