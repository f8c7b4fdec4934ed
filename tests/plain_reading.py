"""A plain reading of the service: its lists and details over HTTP, flattened by the interface's text alone.

It imports nothing of scanlake, not even the emulator, and keeps every value as it was sent. `tests.oracle` starts from
the emulator's memory; this module starts from what a client is told.
"""

from __future__ import annotations

import gzip
import json
import urllib.request
from collections import Counter, defaultdict, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

Row = dict[str, Any]
INCLUDES: Final = ("uploads", "geocoding", "forms", "fields", "locations", "workflows")
# Section 2 of the interface and "Shapes beyond the document" of the field notes, by table. Other keys are unknown.
KNOWN_KEYS: Final = {
    "files": "id scan_code scan_code_format closed created_at updated_at uploads form_submits fields locations"
    " workflow_runs recent_snap_id snap_count snap_count_with_damage file_id",
    "uploads": "id device_id created_at scan_date_time upload_type damage_type_desc has_damage document_type_desc"
    " latitude longitude image_name image_mime comment image_path image_url image_thumb workflow_id"
    " workflow_description workflow_step_id workflow_step_description file_id tenant_id device_nick damage_type_id"
    " document_type_id geocoding",
    "fields": "id field_id donotuse name value snap_id file_id created_at updated_at",
    "locations": "id location",
    "workflow_runs": "id workflow_id file_id submit_date_time created_at updated_at completed_at workflow"
    " workflow_run_steps client_key tenant_id deleted_at started_on_device_at finished_on_device_at",
    "workflow_run_steps": "id entity_type status entity_ids device_id workflow_step_id workflow_run_id"
    " submit_date_time created_at updated_at",
}


@dataclass
class Reading:
    """Everything that the service told of its files: rows by table, definitions by content."""

    rows: defaultdict[str, list[Row]] = field(default_factory=lambda: defaultdict(list))
    definitions: dict[str, Row] = field(default_factory=dict)


def read_service(base_url: str, token: str) -> Reading:
    """Read every list page and every detail, one after the other. The world must not change meanwhile."""
    reading = Reading()
    for item in _pages(base_url, token):
        detail = _get(f"{base_url}/api/v2/files/{item['id']}", token, [])
        detail = detail.get("data", detail)
        _file(reading, item, detail)
    return reading


def _pages(base_url: str, token: str) -> Iterator[Row]:
    seen: set[Any] = set()
    for page in range(1, 10_000):
        asked = [("limit", "50"), ("page", str(page)), *(("include[]", name) for name in INCLUDES)]
        data = _get(f"{base_url}/api/v2/files", token, asked)["data"]
        if not data:
            return
        for item in data:
            if item["id"] not in seen:
                seen.add(item["id"])
                yield item


def _get(url: str, token: str, parameters: list[tuple[str, str]]) -> Any:
    full = f"{url}?{urlencode([*parameters, ('token', token)])}"
    with urllib.request.urlopen(urllib.request.Request(full, headers={"token": token}), timeout=300) as answer:
        body = answer.read()
        return json.loads(gzip.decompress(body) if answer.headers.get("Content-Encoding") == "gzip" else body)


def _file(reading: Reading, item: Row, detail: Row) -> None:
    rows, document = reading.rows, {**item, **{key: value for key, value in detail.items() if value is not None}}
    owner = {"file_id": int(item["id"])}
    rows["files"].append(owner | {"scan_code": document["scan_code"], "extra": _unknown("files", document)})
    for position, upload in enumerate(_children(item, detail, "uploads", lambda child: str(child["id"]))):
        told, listed = upload
        row = {**listed, **told}
        if listed.get("geocoding"):  # asked for by an include, which the detail does not have
            row["geocoding"] = told.get("geocoding") or listed["geocoding"]
        rows["uploads"].append(_texts(row) | owner | {"position": position, "extra": _unknown("uploads", row)})
    for key in ("locations", "fields"):
        for position, child in enumerate(document.get(key) or []):
            rows[key].append(_texts(child) | owner | {"position": position, "extra": _unknown(key, child)})
    for position, submit in enumerate(detail.get("form_submits") or item.get("form_submits") or []):
        _submission(rows, owner, position, submit)
    for position, run in enumerate(document.get("workflow_runs") or []):
        _run(reading, owner, position, run)


def _children(item: Row, detail: Row, name: str, key: Callable[[Row], str]) -> list[tuple[Row, Row]]:
    listed: defaultdict[str, deque[Row]] = defaultdict(deque)
    for child in item.get(name) or []:
        listed[key(child)].append(child)
    told = detail[name] if detail.get(name) is not None else item.get(name) or []
    return [(child, listed[key(child)].popleft() if listed[key(child)] else {}) for child in told]


def _unknown(table: str, source: Row) -> str | None:
    """The keys that nobody has told of, with their values, as JSON."""
    known = KNOWN_KEYS[table].split()
    unknown = {key: value for key, value in source.items() if key not in known}
    return json.dumps(unknown, sort_keys=True) if unknown else None


def _texts(source: Row) -> Row:
    return {name: None if value is None else _text(value) for name, value in source.items()}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, ensure_ascii=False)


def _submission(rows: defaultdict[str, list[Row]], owner: Row, position: int, submit: Row) -> None:
    form = submit.get("form") or {}
    form_id = submit["form_id"] if "form_id" in submit else form.get("id")
    rows["form_submits"].append(owner | {"id": submit.get("id"), "form_id": form_id, "position": position})
    answers: defaultdict[str, deque[Any]] = defaultdict(deque)
    for answer in submit.get("answers") or form.get("answers") or []:
        answers[str(answer["id"])].append(answer["value"])
    for place, question in enumerate(submit.get("fields") or form.get("fields") or []):
        value = question["value"] if "value" in question else answers[str(question["id"])].popleft()
        rows["form_answers"].append(
            owner
            | {"form_submit_id": submit.get("id"), "submit_position": position, "position": place}
            | {"question_id": str(question["id"]), "value": value}
            | {"label": question["label"] if "label" in question else question["name"]}
        )


def _run(reading: Reading, owner: Row, position: int, run: Row) -> None:
    definition = run["workflow"]
    name = json.dumps(_without_spelling(definition), sort_keys=True)
    reading.definitions.setdefault(name, definition)
    steps = {str(step["id"]) for step in definition["steps"] if not step.get("deleted_at")}
    taken: defaultdict[str, set[str]] = defaultdict(set)
    for step in run["workflow_run_steps"]:
        taken[str(step["workflow_step_id"])].add(str(step["status"]).lower())
    skipped = {step for step, states in taken.items() if states == {"skipped"}}
    reading.rows["workflow_runs"].append(
        owner
        | {"id": int(run["id"]), "position": position, "definition": name, "removed": bool(run.get("deleted_at"))}
        | {"steps": len(steps), "skipped": len(steps & skipped), "done": len(steps & set(taken) - skipped)}
        | {"open": len(steps - set(taken)), "other_steps": len(set(taken) - steps), "missing": steps - set(taken)}
        | {"undefined": _undefined(run, definition), "completed": bool(run["completed_at"])}
        | {"started_at": run.get("started_on_device_at") or run["submit_date_time"] or run["created_at"]}
        | {"extra": _unknown("workflow_runs", run)}
    )
    reading.rows["workflow_run_steps"] += [
        owner
        | {"id": int(step["id"]), "workflow_step_id": int(step["workflow_step_id"]), "position": place}
        | {"extra": _unknown("workflow_run_steps", step)}
        for place, step in enumerate(run["workflow_run_steps"])
    ]


def _undefined(run: Row, definition: Row) -> int:
    """Steps of a run that its definition does not have: references dangle."""
    known = {str(step["id"]) for step in definition["steps"]}
    return sum(str(step["workflow_step_id"]) not in known for step in run["workflow_run_steps"])


def _without_spelling(definition: Any) -> Any:
    """A definition apart from how its times, ids and flags are written: two spellings are one version."""
    if isinstance(definition, dict):
        return {key: _without_spelling(value) for key, value in definition.items() if not key.endswith("_at")}
    if isinstance(definition, list):
        return [_without_spelling(value) for value in definition]
    return str(int(definition)) if isinstance(definition, bool) else None if definition == "" else str(definition)


def count(rows: Iterable[Row], names: Iterable[str]) -> Counter[str]:
    """Rows as a multiset of what they say in the columns named."""
    columns = list(names)
    return Counter(repr([row.get(name) for name in columns]) for row in rows)
