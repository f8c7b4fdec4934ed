"""`scanlake status`: freshness and runs from the ledger; counts, rejects and drift from the published catalog."""

import time
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pipeline.context import CommandContext
from pipeline.errors import ExitCode
from pipeline.formatting import format_age, format_duration, format_instant, format_path, pluralize
from pipeline.lake.live_state import LiveState, read_live_state
from pipeline.lake.models import LakeProperties, RunRecord
from pipeline.lake.reader import fetch_dicts, open_catalog
from pipeline.logs import to_one_line
from pipeline.monitoring.failures import Failures, find_failures
from schemas.tables import TABLES
from schemas.timestamps import SECOND, to_datetime

if TYPE_CHECKING:
    import duckdb

GROUP: Final = "Use the data"

_MAX_REASONS: Final = 10
_WIDE_COLUMNS: Final = 100  # of a terminal that shows all figures of a run
_REJECTS_SQL: Final = """
    SELECT reason, count(*) AS files, min(first_seen_at) AS first_seen_at, max(last_tried_at) AS last_tried_at,
           (list(file_id ORDER BY file_id))[:5] AS file_ids
    FROM meta.rejects GROUP BY reason ORDER BY files DESC, reason
"""


def run(
    context: CommandContext,
    *,
    runs: Annotated[int, typer.Option(min=0, max=1000, help="Number of recent runs to show.")] = 5,
) -> ExitCode:
    """Show how current and how complete the lake is.

    It makes no calls to the service and does not disturb runs. Beside a catalog without a lake, such as a copy, it
    shows what the catalog knows.
    """
    settings = context.settings()
    with open_catalog(settings) as lake:
        counts = " UNION ALL ".join(
            f"SELECT '{table.name}' AS name, count(*) AS n FROM {table.qualified_name}" for table in TABLES
        )
        freshness = fetch_dicts(lake, "FROM meta.freshness")[0]
        recent = fetch_dicts(lake, "FROM meta.runs ORDER BY started_at DESC LIMIT ?", runs)
        catalog, state, failures, publish = None, read_live_state(settings.lake, runs=runs), None, None
        if state is not None:
            _update_freshness(freshness, state.properties)
            recent, catalog = list(map(_run_columns, state.runs[:runs])), _describe_catalog(state.properties)
            failures = find_failures(settings.lake, state)
            publish = _describe_publish(state.properties)
        status = {
            "lake": str(settings.lake),
            "source": context.source,
            "base_url": None if state is None else state.properties.source,
            "freshness": freshness,
            "catalog": catalog,
            "publish": publish,
            "tables": {row["name"]: row["n"] for row in fetch_dicts(lake, counts)},
            "running": _describe_running(state),
            "paused": None if state is None else state.properties.rollback_pause,
            "failures": failures and asdict(failures),
            "interrupted": None if state is None else _describe_interrupted(state),
            "was_verified": freshness["last_verify_at"] is not None or (state is not None and state.was_verified),
            "is_consistent": _read_last_verification(lake),
            "runs": recent,
            "rejects": fetch_dicts(lake, _REJECTS_SQL),
            "drift": fetch_dicts(lake, "FROM meta.schema_drift ORDER BY table_name, key"),
        }
    if context.as_json:
        context.print_json(_to_json(status))
    else:
        _print_status(context.console(), status)
    return ExitCode.OK


def _read_last_verification(lake: "duckdb.DuckDBPyConnection") -> bool | None:
    """Return whether the last verification has left the lake consistent with the service; None without one."""
    rows = fetch_dicts(lake, "SELECT consistent FROM meta.verifications ORDER BY verified_at DESC LIMIT 1")
    return rows[0]["consistent"] if rows else None


def _update_freshness(freshness: dict[str, Any], properties: LakeProperties) -> None:
    """Replace what has changed since the catalog was published."""
    if properties.watermark is not None:
        freshness["watermark"] = _to_naive(properties.watermark * SECOND)
        freshness["age_seconds"] = time.time() - properties.watermark
    verified_at = properties.last_verify_at  # none after a rollback: later deletions are unknown again
    freshness["last_verify_at"] = None if verified_at is None else _to_naive(verified_at)


def _describe_catalog(properties: LakeProperties) -> dict[str, Any]:
    """Return whether the catalog lacks rows."""
    return {"lacks_rows": properties.has_unpublished_rows}


def _describe_publish(properties: LakeProperties) -> dict[str, Any] | None:
    """Return the last publish to object storage; None before the first."""
    if (record := properties.remote_publish) is None:
        return None
    instants = {name: record[name] for name in ("published_at", "tried_at")}
    columns = {name: record[name] for name in ("target", "snapshot", "problem", "failures")}
    return columns | {name: None if at is None else _to_naive(at) for name, at in instants.items()}


def _describe_running(state: LiveState | None) -> dict[str, Any] | None:
    """Return the run that is going on, with its progress at its last commit; None without one."""
    if state is None or state.running is None:
        return None
    run, progress = state.running, state.progress
    return {
        "run_id": run.run_id,
        "command": run.command,
        "started_at": _to_naive(run.started_at),
        "files_listed": run.files_listed,
        "files_stored": run.files_stored,
        "files_in_lake": state.files,
        "done": None if progress is None else progress["done"],
        "total": None if progress is None else progress["total"],
        "eta_seconds": None if progress is None else progress["eta_seconds"],
    }


def _describe_interrupted(state: LiveState) -> dict[str, str] | None:
    """Return the command and the reason of the newest run if it was killed or stopped; None if not."""
    run = next(iter(state.runs), None)
    if run is None or run.state != "interrupted":
        return None
    return {"command": run.command, "reason": to_one_line(run.error or "interrupted")}


def _to_naive(micros: int) -> datetime:
    return to_datetime(micros).replace(tzinfo=None)


def _run_columns(run: RunRecord) -> dict[str, Any]:
    """Return a run of the ledger as a row of meta.runs."""
    instants = {name: getattr(run, name) for name in ("started_at", "ended_at", "watermark")}
    return asdict(run) | {name: None if at is None else _to_naive(at) for name, at in instants.items()}


def _to_json(value: Any) -> Any:
    """Return the value with instants as ISO-8601 text in UTC."""
    if isinstance(value, dict):
        return {name: _to_json(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_to_json(item) for item in value]
    return value.replace(tzinfo=UTC).isoformat() if isinstance(value, datetime) else value


# Formatted output


def describe_source(status: Mapping[str, Any]) -> str:
    """Return the line of a source from its JSON object."""
    if (running := status["running"]) is not None:
        running = {**running, "started_at": datetime.fromisoformat(running["started_at"])}
        status = {**status, "running": running}
    fresh, run = status["freshness"], next(iter(status["runs"]), None)
    age = "no watermark yet" if fresh["watermark"] is None else f"updated {format_age(fresh['age_seconds'])}"
    parts = [pluralize(fresh["files"], "file"), age]
    parts += [] if run is None else [f"last run: {run['command']} {run['state']}"]
    return "; ".join([", ".join(parts), *(line.rstrip(".") for line in _state_lines(status))])


def _print_status(console: Console, status: dict[str, Any]) -> None:
    for line in _summary_lines(status):
        console.print(Text(line))
    grid = Table("table", box=None)
    grid.add_column("rows", justify="right")
    for name, count in status["tables"].items():
        grid.add_row(Text(name), f"{count:,}")
    console.print(grid)
    if status["runs"]:
        console.print(_runs_table(status["runs"], is_narrow=console.width < _WIDE_COLUMNS))
    if status["rejects"]:
        console.print(Text("Rejects (each is retried in every run; see meta.rejects):"))
        for reject in status["rejects"][:_MAX_REASONS]:
            ids = ", ".join(str(file_id) for file_id in reject["file_ids"] if file_id is not None)
            line = f"  {reject['files']:,} x {to_one_line(str(reject['reason']))}"
            console.print(Text(line + (f": {ids}" if ids else "")))
    if status["drift"]:
        console.print(Text("Keys that the schema does not contain, stored in `extra` (see meta.schema_drift):"))
        for drift in status["drift"]:
            line = f"  {drift['table_name']}.{drift['key']}: {drift['kind']}, {pluralize(drift['count'], 'time')}"
            console.print(Text(to_one_line(line)))


def _summary_lines(status: dict[str, Any]) -> list[str]:
    fresh = status["freshness"]
    published = f"Snapshot {fresh['snapshot']}, published {format_instant(fresh['published_at'])}"
    lines = [
        _describe_lake(status),
        published + ("." if fresh["complete"] else ", during a run."),
    ]
    lines += _catalog_lines(status["catalog"], is_running=status["running"] is not None)
    lines += _state_lines(status)
    lines += _publish_lines(status["publish"])
    if fresh["watermark"] is None:
        lines.append("No watermark yet: the first sync has not finished.")
    else:
        age = format_age(fresh["age_seconds"])
        lines.append(f"Everything updated before {format_instant(fresh['watermark'])} is in the lake ({age}).")
    if fresh["last_verify_at"] is None:
        never = "Not verified since the last rollback" if status["was_verified"] else "Never verified"
        lines.append(f"{never}; `scanlake verify` detects deletions.")
    elif status["is_consistent"] is False:
        compared = f"Compared with the service {format_instant(fresh['last_verify_at'])}"
        lines.append(f"{compared}: not consistent. `scanlake verify` repairs it.")
    else:
        lines.append(f"Verified {format_instant(fresh['last_verify_at'])}.")
    return lines


def _describe_lake(status: Mapping[str, Any]) -> str:
    name = f"Source {status['source']}: " if status["source"] else ""
    service = f" of {status['base_url']}" if status["base_url"] else ""
    files = pluralize(status["freshness"]["files"], "file")
    return f"{name}{files}{service} in {format_path(Path(status['lake']))}."


def _state_lines(status: Mapping[str, Any]) -> list[str]:
    """Return what a reader must know first: failures, a pause, and the run that is going on."""
    lines = []
    if (failures := status["failures"]) is not None:
        lines.append(f"Failing: {Failures(**failures)}")
    elif (interrupted := status["interrupted"]) is not None:
        reason = interrupted["reason"].rstrip(".")
        lines.append(f"Interrupted: the last run ({interrupted['command']}) did not finish: {reason}.")
    if (pause := status["paused"]) is not None:
        lines.append(
            f"Paused: the lake was rolled back to snapshot {pause['to']}; `scanlake rollback --undo` allows syncs."
        )
    if (run := status["running"]) is not None:
        counts = [f"{run['files_listed']:,} listed", f"{run['files_stored']:,} fetched"]
        if run["total"] is not None:
            counts.append(f"{max(0, run['total'] - run['done']):,} of {run['total']:,} to go")
        if run["eta_seconds"] is not None:
            counts.append(f"{format_duration(round(run['eta_seconds']))} left")
        lines.append(f"Running: {run['command']} since {format_instant(run['started_at'])}: {', '.join(counts)}.")
    return lines


def _catalog_lines(catalog: dict[str, Any] | None, *, is_running: bool) -> list[str]:
    if catalog is None or not catalog["lacks_rows"] or is_running:
        return []
    return ["catalog.duckdb lacks the newest rows: the next sync publishes them."]  # a publish failed or was killed


def _publish_lines(publish: dict[str, Any] | None) -> list[str]:
    if publish is None:
        return []
    former = "nothing was published there before"
    if publish["snapshot"] is not None:
        former = f"snapshot {publish['snapshot']}, published {format_instant(publish['published_at'])}"
    if publish["problem"] is None:
        return [f"{publish['target']} has {former}."]
    times = pluralize(publish["failures"], "time")
    return [to_one_line(f"Publishing to {publish['target']} failed {times}; {former}: {publish['problem']}")]


def _runs_table(runs: list[dict[str, Any]], *, is_narrow: bool) -> Table:
    if is_narrow:
        table = Table("command", "state", "started (UTC)", box=None)
        table.add_column("fetched", justify="right")
        table.add_column("error")
        for run in runs:
            texts = (run["command"], run["state"], f"{run['started_at']:%m-%d %H:%M}", f"{run['files_stored'] or 0:,}")
            table.add_row(*(Text(to_one_line(text)) for text in (*texts, run["error"] or "")))
        return table
    table = Table("run", "command", "state", "started (UTC)", box=None)
    for heading in ("seconds", "listed", "fetched", "skipped", "rejects"):
        table.add_column(heading, justify="right")
    table.add_column("error")
    for run in runs:
        texts = (run["run_id"], run["command"], run["state"], f"{run['started_at']:%m-%d %H:%M}")
        counts = (run["files_listed"], run["files_stored"], run["files_skipped"], run["rejects"])
        seconds = "" if run["seconds"] is None else f"{run['seconds']:,.1f}"
        numbers = (seconds, *("" if count is None else f"{count:,}" for count in counts))
        table.add_row(*(Text(to_one_line(text)) for text in texts), *numbers, Text(to_one_line(run["error"] or "")))
    return table
