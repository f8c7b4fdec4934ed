"""What the counting columns of every view must say, counted one by one in a plain reading of the service.

Like the reading it imports nothing of scanlake, and knows of a view what its comment says.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from tests.plain_reading import Reading, Row

_RUN: Final = ["file_id", "workflow_run_id", "started_at", "steps", "done", "skipped", "open", "other_steps"]
COUNTED: Final = {
    "file_summary": [
        *("file_id", "uploads", "photos", "damaged_uploads", "devices", "form_submits"),
        *("workflow_runs", "open_workflow_runs", "open_steps"),
    ],
    "damage_by_month": ["month", "photos", "with_damage", "damage_ratio", "files", "files_with_damage"],
    "workflow_progress": _RUN,
    "open_workflow_runs": _RUN,
    "open_workflow_steps": ["file_id", "workflow_run_id", "started_at", "workflow_step_id", "step_order"],
    "upload_addresses": ["file_id", "upload_id", "rank"],
    "workflows": ["id", "workflow_order"],
    "workflow_steps": ["workflow_id", "id", "step_order", "position"],
}
"""Columns by view that `count_views` has: every number but coordinates and ages, and what names the row."""


def count_views(reading: Reading) -> dict[str, list[Row]]:
    """Return the rows of each view of `COUNTED`, with its columns there."""
    runs = [
        run | {"workflow_run_id": run["id"], "started_at": _time(run["started_at"])}
        for run in reading.rows["workflow_runs"]
        if not run["removed"]
    ]
    unfinished = [run for run in runs if not run["completed"]]
    latest: dict[int, Row] = {}
    for flow in reading.definitions.values():
        key = int(flow["id"])
        if key not in latest or _time(latest[key]["updated_at"]) < _time(flow["updated_at"]):
            latest[key] = flow
    return {
        "file_summary": _summaries(reading, runs),
        "damage_by_month": _months(reading),
        "workflow_progress": runs,
        "open_workflow_runs": unfinished,
        "open_workflow_steps": [
            run | {"workflow_step_id": int(step["id"]), "step_order": int(step["order"])}
            for run in unfinished
            for step in reading.definitions[run["definition"]]["steps"]
            if str(step["id"]) in run["missing"]
        ],
        "upload_addresses": [
            {"file_id": upload["file_id"], "upload_id": int(upload["id"]), "rank": rank}
            for upload in reading.rows["uploads"]
            for rank, _ in enumerate(_addresses(upload.get("geocoding")), 1)
        ],
        "workflows": [{"id": key, "workflow_order": int(flow["order"])} for key, flow in latest.items()],
        "workflow_steps": [
            {"workflow_id": key, "id": int(step["id"]), "step_order": int(step["order"]), "position": place}
            for key, flow in latest.items()
            for place, step in enumerate(flow["steps"])
        ],
    }


def count_cells(reading: Reading) -> dict[str, tuple[int, int]]:
    """Return the number of rows and of filled cells of each wide view."""
    fields = {(row["file_id"], row["name"]) for row in reading.rows["fields"] if _is_filled(row["value"])}
    answers = {
        (row["file_id"], row["submit_position"], row["label"])
        for row in reading.rows["form_answers"]
        if _is_filled(row["value"])
    }
    return {
        "fields_wide": (len(reading.rows["files"]), len(fields)),
        "form_answers_wide": (len(reading.rows["form_submits"]), len(answers)),
    }


def _summaries(reading: Reading, runs: list[Row]) -> list[Row]:
    rows = {row["file_id"]: Counter(dict.fromkeys(COUNTED["file_summary"], 0)) for row in reading.rows["files"]}
    devices: defaultdict[int, set[str]] = defaultdict(set)
    for upload in reading.rows["uploads"]:
        row = rows[upload["file_id"]]
        row["uploads"] += 1
        row["photos"] += upload["upload_type"] == "snap"
        row["damaged_uploads"] += _is_damaged(upload) is True
        devices[upload["file_id"]].update([upload["device_id"]] if upload["device_id"] else [])
    for submit in reading.rows["form_submits"]:
        rows[submit["file_id"]]["form_submits"] += 1
    for run in runs:
        row = rows[run["file_id"]]
        row["workflow_runs"] += 1
        row["open_workflow_runs"] += not run["completed"]
        row["open_steps"] += 0 if run["completed"] else run["open"]
    return [dict(row) | {"file_id": key, "devices": len(devices[key])} for key, row in rows.items()]


def _months(reading: Reading) -> list[Row]:
    months: defaultdict[datetime, list[Row]] = defaultdict(list)
    for upload in reading.rows["uploads"]:
        if upload["upload_type"] == "snap":
            taken = _time(upload["scan_date_time"] or upload["created_at"])
            months[datetime(taken.year, taken.month, 1)].append(upload)  # noqa: DTZ001 - UTC without saying so
    rows = []
    for month, photos in months.items():
        damaged = [photo for photo in photos if _is_damaged(photo)]
        flagged = sum(_is_damaged(photo) is not None for photo in photos)
        files, hit = ({photo["file_id"] for photo in some} for some in (photos, damaged))
        rows.append(
            {"month": month, "photos": len(photos), "with_damage": len(damaged)}
            | {"damage_ratio": len(damaged) / flagged if flagged else None}
            | {"files": len(files), "files_with_damage": len(hit)}
        )
    return rows


def _addresses(geocoding: str | None) -> list[Any]:
    found = json.loads(geocoding or "null")
    return found.get("addresses", []) if isinstance(found, dict) else []


def _is_damaged(upload: Row) -> bool | None:
    return {"1": True, "true": True, "0": False, "false": False}.get(upload["has_damage"] or "")


def _is_filled(value: Any) -> bool:
    """Return whether a value says anything: null, an empty text, one of spaces, and an empty list do not."""
    return bool(value.strip(" ")) if isinstance(value, str) else value is not None and value not in ([], {})


def _time(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC).replace(tzinfo=None)
