"""`scanlake status`: freshness, counts, runs, rejects and drift, from the published catalog."""

from datetime import UTC, datetime
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pipeline.call import Call
from pipeline.errors import Exit
from pipeline.logs import one_line
from pipeline.published import published, rows
from pipeline.wording import many
from schemas.tables import TABLES

_SHOWN_REASONS: Final = 10


def run(
    call: Call,
    *,
    runs: Annotated[int, typer.Option("--runs", min=0, max=1000, help="How many of the last runs to show.")] = 5,
) -> Exit:
    """Say how current and how complete the lake is.

    Reads the published catalog alone: it asks nothing of the service and disturbs no run.
    """
    settings = call.settings()
    with published(settings) as lake:
        counts = " UNION ALL ".join(
            f"SELECT '{table.name}' AS name, count(*) AS n FROM {table.name}" for table in TABLES
        )
        state: dict[str, Any] = {
            "lake": str(settings.lake),
            "freshness": rows(lake, "FROM meta.freshness")[0],
            "tables": {row["name"]: row["n"] for row in rows(lake, counts)},
            "runs": rows(lake, "FROM meta.runs ORDER BY started_at DESC LIMIT ?", runs),
            "rejects": rows(lake, _REJECTS),
            "drift": rows(lake, "FROM meta.schema_drift ORDER BY table_name, key"),
        }
    if call.as_json:
        call.print_json(_spelled(state))
    else:
        _show(call.console(), state)
    return Exit.DONE


_REJECTS: Final = """
    SELECT reason, count(*) AS files, min(first_seen_at) AS first_seen_at, max(last_tried_at) AS last_tried_at,
           (list(file_id ORDER BY file_id))[:5] AS file_ids
    FROM meta.rejects GROUP BY reason ORDER BY files DESC, reason
"""


def _spelled(value: Any) -> Any:
    """Moments as ISO-8601 in UTC, everything else as it is."""
    if isinstance(value, dict):
        return {name: _spelled(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_spelled(item) for item in value]
    return value.replace(tzinfo=UTC).isoformat() if isinstance(value, datetime) else value


# For people


def _show(console: Console, state: dict[str, Any]) -> None:
    for line in _headline(state):
        console.print(Text(line))
    console.print(_grid("table", "rows", [(name, f"{count:,}") for name, count in state["tables"].items()]))
    if state["runs"]:
        console.print(_runs(state["runs"]))
    if state["rejects"]:
        console.print(Text("Rejects (each is tried again in every run; see meta.rejects):"))
        for reject in state["rejects"][:_SHOWN_REASONS]:
            some = ", ".join(str(file_id) for file_id in reject["file_ids"] if file_id is not None)
            console.print(
                Text(f"  {reject['files']:,} x {one_line(str(reject['reason']))}" + (f": {some}" if some else ""))
            )
    if state["drift"]:
        console.print(Text("Keys the schema does not know, kept in `extra` (see meta.schema_drift):"))
        for drift in state["drift"]:
            console.print(
                Text(one_line(f"  {drift['table_name']}.{drift['key']}: {drift['kind']}, {drift['count']:,} times"))
            )


def _headline(state: dict[str, Any]) -> list[str]:
    fresh = state["freshness"]
    horizon, age = fresh["horizon"], fresh["age_seconds"]
    if horizon is None:
        current = "No horizon yet: the first sync has not come to its end."
    else:
        current = f"Everything updated before {_moment(horizon)} is in ({_ago(age)})."
    whole = "" if fresh["complete"] else ", published while a run was going on"
    lines = [
        f"Lake {state['lake']}: {many(fresh['files'], 'file')}.",
        f"Snapshot {fresh['snapshot']}, published {_moment(fresh['published_at'])}{whole}.",
        current,
    ]
    verified = fresh["last_verify_at"]
    lines.append(
        "Never verified; `scanlake verify` finds deletions." if verified is None else f"Verified {_moment(verified)}."
    )
    return lines


def _runs(runs: list[dict[str, Any]]) -> Table:
    table = Table("run", "command", "state", "started (UTC)", box=None)
    for heading in ("seconds", "listed", "read", "skipped", "rejects"):
        table.add_column(heading, justify="right")
    table.add_column("error")
    for run in runs:
        words = (run["run_id"], run["command"], run["state"], f"{run['started_at']:%m-%d %H:%M}")
        counts = (run["files_listed"], run["files_expanded"], run["files_skipped"], run["rejects"])
        seconds = "" if run["seconds"] is None else f"{run['seconds']:,.1f}"
        numbers = (seconds, *("" if count is None else f"{count:,}" for count in counts))
        table.add_row(*(Text(one_line(str(word))) for word in words), *numbers, Text(one_line(run["error"] or "")))
    return table


def _grid(left: str, right: str, lines: list[tuple[str, str]]) -> Table:
    table = Table(left, box=None)
    table.add_column(right, justify="right")
    for first, second in lines:
        table.add_row(Text(first), Text(second))
    return table


def _moment(moment: datetime | None) -> str:
    return "" if moment is None else f"{moment:%Y-%m-%d %H:%M:%S} UTC"


def _ago(seconds: float) -> str:
    for size, unit in ((86_400, "days"), (3_600, "hours"), (60, "minutes")):
        if abs(seconds) >= 2 * size:
            return f"{seconds / size:.0f} {unit} ago"
    return f"{seconds:.0f} seconds ago"
