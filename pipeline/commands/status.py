"""`scanlake status`: freshness and runs from the ledger; counts, rejects and drift from the published catalog."""

import time
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pipeline.context import CommandContext
from pipeline.errors import ExitCode, ScanlakeError
from pipeline.formatting import format_age, format_instant, pluralize
from pipeline.lake.layout import LakeLayout, is_lake_locked, is_lock_of_other_host
from pipeline.lake.models import LakeProperties, RunRecord
from pipeline.lake.reader import fetch_dicts, open_catalog, open_ledger_readonly
from pipeline.logs import to_one_line
from pipeline.settings import Settings
from schemas.tables import TABLES
from schemas.timestamps import SECOND, to_datetime

_MAX_REASONS: Final = 10
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
        catalog = None
        if (ledger := _read_ledger(settings, runs)) is not None:
            properties, records = ledger
            _update_freshness(freshness, properties)
            recent, catalog = list(map(_run_columns, records)), _describe_catalog(properties)
        _mark_interrupted(recent, settings)
        status = {
            "lake": str(settings.lake),
            "freshness": freshness,
            "catalog": catalog,
            "tables": {row["name"]: row["n"] for row in fetch_dicts(lake, counts)},
            "runs": recent,
            "rejects": fetch_dicts(lake, _REJECTS_SQL),
            "drift": fetch_dicts(lake, "FROM meta.schema_drift ORDER BY table_name, key"),
        }
    if context.as_json:
        context.print_json(_to_json(status))
    else:
        _print_status(context.console(), status)
    return ExitCode.OK


def _read_ledger(settings: Settings, limit: int) -> tuple[LakeProperties, list[RunRecord]] | None:
    """Return the lake's properties and newest runs: they are ahead of the catalog. None if there is no ledger."""
    layout = LakeLayout(settings.lake.absolute())
    if not layout.ledger.is_file():
        return None
    try:
        with open_ledger_readonly(layout) as ledger:
            return ledger.properties, ledger.recent_runs(limit)
    except ScanlakeError:
        return None  # `scanlake doctor` shows why


def _update_freshness(freshness: dict[str, Any], properties: LakeProperties) -> None:
    """Replace what has changed since the catalog was published."""
    if properties.watermark is not None:
        freshness["watermark"] = _to_naive(properties.watermark * SECOND)
        freshness["age_seconds"] = time.time() - properties.watermark
    if properties.last_verify_at is not None:
        freshness["last_verify_at"] = _to_naive(properties.last_verify_at)


def _describe_catalog(properties: LakeProperties) -> dict[str, Any]:
    """Return the form of the catalog and why, whether it lacks rows, and until when publishing waits."""
    record, until = properties.catalog, properties.publish_postponed_until
    return {
        "form": record["form"] if record else None,
        "reason": record["reason"] if record else None,
        "lacks_rows": properties.has_unpublished_rows,
        "postponed_until": None if until is None else _to_naive(until),
    }


def _to_naive(micros: int) -> datetime:
    return to_datetime(micros).replace(tzinfo=None)


def _mark_interrupted(runs: list[dict[str, Any]], settings: Settings) -> None:
    """Show a run without a process as interrupted: a full disk let it record no end."""
    layout = LakeLayout(settings.lake.absolute())
    if layout.lock.exists() and not is_lake_locked(layout) and not is_lock_of_other_host(layout):
        for run in runs:
            if run["state"] == "running":
                run |= {"state": "interrupted", "error": run["error"] or "The process ended without recording why."}


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


def _print_status(console: Console, status: dict[str, Any]) -> None:
    for line in _summary_lines(status):
        console.print(Text(line))
    grid = Table("table", box=None)
    grid.add_column("rows", justify="right")
    for name, count in status["tables"].items():
        grid.add_row(Text(name), f"{count:,}")
    console.print(grid)
    if status["runs"]:
        console.print(_runs_table(status["runs"]))
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
        f"Lake {status['lake']}: {pluralize(fresh['files'], 'file')}.",
        published + ("." if fresh["complete"] else ", during a run."),
    ]
    lines += _catalog_lines(status["catalog"])
    if fresh["watermark"] is None:
        lines.append("No watermark yet: the first sync has not finished.")
    else:
        age = format_age(fresh["age_seconds"])
        lines.append(f"Everything updated before {format_instant(fresh['watermark'])} is in the lake ({age}).")
    if fresh["last_verify_at"] is None:
        lines.append("Never verified; `scanlake verify` detects deletions.")
    else:
        lines.append(f"Verified {format_instant(fresh['last_verify_at'])}.")
    return lines


def _catalog_lines(catalog: dict[str, Any] | None) -> list[str]:
    if catalog is None or catalog["form"] is None:
        return []
    lines = [f"catalog.duckdb has {catalog['form']}: {catalog['reason']}."]
    if catalog["postponed_until"] is not None:
        lacking = "the newest rows" if catalog["lacks_rows"] else "the newest records"
        until = format_instant(catalog["postponed_until"])
        lines.append(f"It lacks {lacking}: the first run after {until} publishes them; `scanlake publish` does now.")
    return lines


def _runs_table(runs: list[dict[str, Any]]) -> Table:
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
