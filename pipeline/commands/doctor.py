"""`scanlake doctor`: check the whole set-up, with a hint for every problem."""

import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any, Final

from pipeline.config import load_valid_settings_only
from pipeline.context import CommandContext
from pipeline.doctor import connection_checks, lake_checks
from pipeline.doctor.finding import Finding, from_error, ok, warning
from pipeline.errors import ExitCode, ScanlakeError, SettingsError, most_severe
from pipeline.formatting import pluralize
from pipeline.logs import to_one_line
from pipeline.process import run_async
from pipeline.publish.latest import read_latest
from pipeline.publish.object_store import open_store
from pipeline.publish_after_run import read_lake_id
from pipeline.settings import Settings, require_base_url

GROUP: Final = "Maintain the lake"

_MARKS: Final = {"ok": "ok     ", "warning": "warning", "error": "ERROR  "}
_COLOURS: Final = {"ok": 32, "warning": 33, "error": 31}  # ANSI: green, yellow, red
_WIDTH: Final = len("permissions")  # the longest check name
_INDENT: Final = len("warning  ") + _WIDTH + 1


def run(context: CommandContext) -> ExitCode:
    """Check settings, network, token, clock, disk and lake; every problem has a hint.

    Also checks permissions. Continues after an error if possible. Changes nothing, and makes one list call. With
    publish_to it creates two objects there and deletes them.

    Exit codes: 0 no error (warnings are allowed), otherwise the most severe error: 9 damage, 7 disk or permission,
    8 object storage, 2 settings, 3 token refused, 6 not the service, 1 not reachable.
    """
    findings: list[Finding] = []
    for finding in _run_checks(context):
        findings.append(finding)
        if not context.as_json:
            sys.stdout.write(_format_finding(finding))
            sys.stdout.flush()
    code = most_severe(finding.exit_code for finding in findings)
    counts = {state: sum(finding.state == state for finding in findings) for state in _MARKS}
    if context.as_json:
        context.print_json({"exit_code": code, "counts": counts, "findings": [asdict(item) for item in findings]})
    else:
        errors, warnings = pluralize(counts["error"], "error"), pluralize(counts["warning"], "warning")
        sys.stdout.write(f"{errors}, {warnings}, {counts['ok']} ok\n")
    return code


def _run_checks(context: CommandContext) -> Iterator[Finding]:
    path = None
    try:
        layers = context.load_layers()
        path = layers.path
        settings = context.use_settings(layers)
        source = f", source {layers.source}" if layers.source else ""
        yield ok("settings", f"{path or 'no settings file'}{source}")
    except SettingsError as error:
        yield from_error("settings", error)
        settings = load_valid_settings_only(context.config, {"lake": context.lake, **context.given_settings})
    yield from lake_checks.check_permissions(path, settings)
    yield from _check_service(context, settings)
    yield from lake_checks.check_folder(settings)
    yield from lake_checks.check_lake(settings)
    yield from _check_target(settings)


def _check_target(settings: Settings) -> Iterator[Finding]:
    """Yield a finding for the object storage, if it is set. Writes objects of its own there and deletes them."""
    if settings.publish_to is None:
        return
    try:
        store = open_store(settings.publish_to)
        store.probe()
        record, _ = read_latest(store, lake_id=read_lake_id(settings))
    except ScanlakeError as error:
        yield from_error("target", error)
        return
    state = "nothing published yet" if record is None else f"snapshot {record.current.snapshot}"
    yield ok("target", f"{settings.publish_to} can be written and obeys conditions; {state}")


def _check_service(context: CommandContext, settings: Settings) -> Iterator[Finding]:
    token = None
    try:
        token = context.token(settings)
    except SettingsError as error:
        yield from_error("token", error)
    try:
        address = require_base_url(settings)
    except SettingsError as error:
        yield from_error("address", error)
        return
    findings = connection_checks.check_connection(address, settings.proxy)
    yield from findings
    if any(finding.state == "error" for finding in findings):
        if token is not None:
            yield warning("token", "not checked, because the service is not reachable", "Fix the connection first.")
        return
    if token is not None:
        yield from run_async(connection_checks.check_token(settings, token))


def describe_source(result: Mapping[str, Any]) -> str:
    """Return the line of a source from its JSON object."""
    counts = result["counts"]
    lines = [f"{pluralize(counts['error'], 'error')}, {pluralize(counts['warning'], 'warning')}, {counts['ok']} ok"]
    lines += [
        f"  {_MARKS[item['state']]}  {item['check']}: {to_one_line(item['message'])}"
        for item in result["findings"]
        if item["state"] != "ok"
    ]
    return "\n".join(lines)


def _format_finding(finding: Finding) -> str:
    hint = f"\n{'':{_INDENT}}{to_one_line(finding.hint)}" if finding.hint else ""
    mark = _MARKS[finding.state]
    if sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb":
        mark = f"\x1b[{_COLOURS[finding.state]}m{mark}\x1b[0m"
    return f"{mark}  {finding.check:{_WIDTH}} {to_one_line(finding.message)}{hint}\n"
