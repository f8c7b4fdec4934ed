"""What the lake must show, told naively from the service's own truth.

A second reading of the interface that shares no code with scanlake, so that it cannot share its mistakes.
"""

from __future__ import annotations

import json
from collections import defaultdict, deque
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import duckdb

Row = dict[str, Any]

_TIMES: Final = frozenset(
    "created_at updated_at scan_date_time submit_date_time completed_at deleted_at started_on_device_at"
    " finished_on_device_at".split()
)
_FLAGS: Final = frozenset("closed has_damage allow_skip force close_file_after_completion".split())
_NUMBERS: Final = frozenset({"latitude", "longitude"})
_IDS: Final = frozenset(
    "id file_id tenant_id device_id workflow_id workflow_step_id workflow_run_id damage_type_id document_type_id"
    " field_id snap_id recent_snap_id snap_count snap_count_with_damage form_id order".split()
)
_IDENTIFIERS: Final = frozenset({"device_id", "workflow_id", "workflow_step_id"})
_SIGNED: Final = frozenset({"image_url", "image_thumb"})
_JSON: Final = frozenset({"geocoding", "value_json", "location_filter", "data"})
_UPLOAD: Final = (
    "id tenant_id device_id device_nick created_at scan_date_time upload_type damage_type_id damage_type_desc"
    " has_damage document_type_id document_type_desc latitude longitude image_name image_mime comment image_path"
    " image_url image_thumb workflow_id workflow_description workflow_step_id workflow_step_description geocoding"
).split()
_FILE: Final = (
    "id scan_code scan_code_format closed created_at updated_at recent_snap_id snap_count snap_count_with_damage"
).split()
_FIELD: Final = "field_id name value snap_id created_at updated_at".split()
_RUN: Final = (
    "id workflow_id tenant_id client_key submit_date_time created_at updated_at completed_at deleted_at"
    " started_on_device_at finished_on_device_at"
).split()
_STEP: Final = (
    "id workflow_run_id workflow_step_id entity_type status device_id submit_date_time created_at updated_at"
).split()
_WORKFLOW: Final = (
    "id name type force order language location_filter close_file_after_completion info_url created_at updated_at"
).split()
_WORKFLOW_STEP: Final = (
    "id workflow_id order description type allow_skip platform_description data deleted_at"
).split()


def expected(truth: Iterable[Row]) -> dict[str, list[Row]]:
    """Every row of every table, from the service's files as `Emulator.truth` gives them."""
    rows: defaultdict[str, list[Row]] = defaultdict(list)
    definitions: dict[str, Row] = {}
    for true in truth:
        _file(rows, true["key"], _together(true["item"], true["detail"]), definitions)
    latest: dict[int, tuple[datetime, Row]] = {}
    for workflow in definitions.values():
        _definition(rows, "workflow_definitions", "workflow_definition_steps", workflow)
        updated = _value("updated_at", workflow["updated_at"])
        if int(workflow["id"]) not in latest or latest[int(workflow["id"])][0] < updated:
            latest[int(workflow["id"])] = (updated, workflow)
    for _, workflow in latest.values():
        _definition(rows, "workflows", "workflow_steps", workflow)
    return rows


def _definition(rows: defaultdict[str, list[Row]], table: str, steps: str, workflow: Row) -> None:
    rows[table].append(_renamed(_pick(workflow, _WORKFLOW), {"order": "workflow_order"}))
    rows[steps] += [
        _renamed(_pick(step, _WORKFLOW_STEP), {"order": "step_order"}) | {"position": place}
        for place, step in enumerate(workflow["steps"])
    ]


def _renamed(row: Row, names: dict[str, str]) -> Row:
    return {names.get(name, name): value for name, value in row.items()}


def _file(rows: defaultdict[str, list[Row]], key: int, document: Row, definitions: dict[str, Row]) -> None:
    owner = {"file_id": key}
    rows["files"].append(owner | _renamed(_pick(document, _FILE), {"id": "service_id"}))
    for table, names in (("uploads", _UPLOAD), ("locations", ["id", "location"])):
        rows[table] += [
            owner | _pick(each, set(names) - _IDENTIFIERS) | _identifiers(each, names) | {"position": place}
            for place, each in enumerate(document[table])
        ]
    rows["fields"] += [
        owner | _pick(each, _FIELD) | {"position": place, "deprecated_id": _value("id", each["id"])}
        for place, each in enumerate(document["fields"])
    ]
    for place, submit in enumerate(document["form_submits"]):
        _form(rows, owner, place, submit)
    for place, run in enumerate(document["workflow_runs"]):
        _run(rows, owner, place, run)
        definitions.setdefault(json.dumps(run["workflow"], sort_keys=True), run["workflow"])


def _identifiers(child: Row, names: list[str]) -> Row:
    """The interface says "identifier" of these, not "integer", at least in one place."""
    return {
        name: None if child.get(name) in {None, ""} else str(child[name]) for name in _IDENTIFIERS.intersection(names)
    }


def _form(rows: defaultdict[str, list[Row]], owner: Row, place: int, submit: Row) -> None:
    form = submit.get("form") or {}
    form_id = _value("form_id", submit["form_id"] if "form_id" in submit else form.get("id"))
    reference = None if submit.get("id") is None else str(submit["id"])
    title = submit.get("title", form.get("title"))
    rows["form_submits"].append(owner | {"id": reference, "form_id": form_id, "title": title, "position": place})
    questions = submit.get("fields", form.get("fields")) or []
    answers: defaultdict[str, deque[Any]] = defaultdict(deque)
    for answer in submit.get("answers", form.get("answers")) or []:
        answers[str(answer["id"])].append(answer["value"])
    for number, question in enumerate(questions):
        label = question["label"] if "label" in question else question["name"]
        value = question["value"] if "value" in question else answers[str(question["id"])].popleft()
        rows["form_answers"].append(
            owner
            | {"form_submit_id": reference, "submit_position": place, "form_id": form_id}
            | {"question_id": str(question["id"]), "label": label, "value": _readable(value), "position": number}
            | {"value_json": _value("value_json", value if isinstance(value, list | dict) else None)}
        )


def _run(rows: defaultdict[str, list[Row]], owner: Row, place: int, run: Row) -> None:
    rows["workflow_runs"].append(owner | _pick(run, _RUN) | {"position": place})
    for number, step in enumerate(run["workflow_run_steps"]):
        of_run = {"workflow_id": _value("id", run["workflow_id"]), "position": number}
        rows["workflow_run_steps"].append(owner | _pick(step, _STEP) | _identifiers(step, ["device_id"]) | of_run)
        of_step = {"workflow_run_id": int(run["id"]), "workflow_run_step_id": int(step["id"])}
        rows["workflow_run_step_items"] += [
            owner | of_step | {"entity_id": int(entity), "entity_type": step["entity_type"], "position": at}
            for at, entity in enumerate(step["entity_ids"])
        ]


def _together(item: Row, detail: Row) -> Row:
    """The detail wins where both speak, but for what it cannot be asked for; what only the list says stays."""
    document = item | detail
    if not detail.get("form_submits"):
        document["form_submits"] = item.get("form_submits", [])
    keys: dict[str, Callable[[Row], Any]] = {
        "uploads": lambda each: str(each["id"]),
        "locations": lambda each: str(each["id"]),
        "workflow_runs": lambda each: str(each["id"]),
        "form_submits": lambda each: str(each["id"]),
        "fields": lambda each: (str(each["field_id"]), str(each["snap_id"])),
    }
    for name, key in keys.items():
        listed: defaultdict[Any, deque[Row]] = defaultdict(deque)
        for each in item.get(name, []):
            listed[key(each)].append(each)
        document[name] = [
            _with_geocoding(listed[key(each)].popleft() if listed[key(each)] else {}, each)
            for each in document.get(name, [])
        ]
    return document


def _with_geocoding(listed: Row, told: Row) -> Row:
    both = listed | told
    return both | {"geocoding": listed["geocoding"]} if listed.get("geocoding") and not told.get("geocoding") else both


def _readable(value: Any) -> str | None:
    """An answer as text; people tick several boxes."""
    if isinstance(value, list):
        return ", ".join(_readable(item) or "" for item in value)
    if isinstance(value, dict):
        named = [value[key] for key in ("label", "name", "title", "value", "text") if isinstance(value.get(key), str)]
        return named[0] if named else ", ".join(f"{key}: {_readable(item) or ''}" for key, item in value.items())
    return value if value is None or isinstance(value, str) else json.dumps(value)


def _pick(source: Row, names: Iterable[str]) -> Row:
    return {name: _value(name, source.get(name)) for name in names}


def _value(name: str, value: Any) -> Any:
    if value is None or (value == "" and name in _TIMES | _FLAGS | _NUMBERS | _IDS):
        return None
    if name in _TIMES:
        moment = datetime.fromisoformat(value)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC).replace(tzinfo=None)
    if name in _FLAGS:
        return {True: True, False: False, "1": True, "0": False}[value]
    if name in _NUMBERS:
        return float(value)
    if name in _IDS:
        return int(value)
    return json.dumps(value, sort_keys=True) if name in _JSON else value


def shown(db: duckdb.DuckDBPyConnection, table: str, columns: list[str]) -> list[list[Any]]:
    """The rows of a table of the lake, of the columns named."""
    spelled = ", ".join(f'"{name}"' for name in columns)
    documents = [place for place, name in enumerate(columns) if name in _JSON]
    rows = list(map(list, db.execute(f"SELECT {spelled} FROM {table}").fetchall()))
    for row in rows if documents else ():
        for place in documents:
            row[place] = None if row[place] is None else json.dumps(json.loads(row[place]), sort_keys=True)
    return rows


def differences(db: duckdb.DuckDBPyConnection, truth: Iterable[Row], *, history: bool = False) -> list[str]:
    """Where lake and service differ, a line each; empty when they are equal, table by table, value by value.

    With a `history` the lake may remember definitions that no file embeds any more: deleting a file removes none.
    """
    wanted = expected(truth)
    found: list[str] = []
    for table in TABLES:
        rows = wanted[table]
        if history and table.startswith("workflow_definition"):
            continue
        if history and table in {"workflows", "workflow_steps"}:
            known = {row[0] for row in shown(db, "workflows", ["id"])}
            found += [f"workflow {row['id']} is missing" for row in wanted["workflows"] if row["id"] not in known]
            continue
        names = list(rows[0]) if rows else ["file_id"] if table not in DEFINITIONS else ["id"]
        here = _spelled(names, shown(db, table, names))
        there = _spelled(names, [[row[name] for name in names] for row in rows])
        if here != there:
            only_here, only_there = set(here) - set(there), set(there) - set(here)
            found.append(f"{table}: {len(here)} rows here, {len(there)} there, of {', '.join(names)}")
            found += [f"{table} only here: {line}" for line in sorted(only_here)[:3]]
            found += [f"{table} only there: {line}" for line in sorted(only_there)[:3]]
    return found


DEFINITIONS: Final = frozenset("workflow_definitions workflow_definition_steps workflows workflow_steps".split())
TABLES: Final = (
    "files uploads form_submits form_answers fields locations workflow_runs workflow_run_steps"
    " workflow_run_step_items workflow_definitions workflow_definition_steps workflows workflow_steps"
).split()


def _spelled(names: list[str], rows: list[list[Any]]) -> list[str]:
    # Image addresses may be signed anew in every answer; what counts is the image that they name.
    for place in (place for place, name in enumerate(names) if name in _SIGNED):
        for row in rows:
            row[place] = row[place] and row[place].partition("?")[0]
    return sorted(map(repr, rows))
