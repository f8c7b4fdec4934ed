"""Files of the service as tables. Values that do not fit their type are shown as sent: a search never fails on one."""

import io
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from pipeline.flatten.forms import parse_submission
from pipeline.formatting import UNKNOWN, format_minute, pluralize
from pipeline.logs import to_one_line
from schemas.timestamps import to_datetime
from schemas.value_types import INSTANT, TypeMismatchError, encode_json
from schemas.wire import CustomField, File, Location, Upload, WireModel, WorkflowRun, WorkflowRunStep, kind_of

_UNLIMITED_WIDTH: Final = 1_000  # characters
SCALARS: Final = tuple(name for name in File.model_fields if kind_of(File, name) is not None)
COLLECTIONS: Final = {
    "uploads": "uploads",
    "forms": "form_submits",
    "fields": "fields",
    "locations": "locations",
    "workflows": "workflow_runs",
}
"""Keys of a file by the include that requests them."""

_SECTION_COLUMNS: Final[Mapping[str, tuple[type[WireModel], tuple[str, ...]]]] = {
    "uploads": (Upload, ("id", "upload_type", "scan_date_time", "damage_type_desc", "document_type_desc", "comment")),
    "fields": (CustomField, ("field_id", "name", "value", "snap_id")),
    "locations": (Location, ("id", "location")),
}


def to_cell(model: type[WireModel], key: str, value: object) -> Any:
    """Return a value of its type, an instant as text; a value of another type as sent."""
    kind = kind_of(model, key)
    try:
        converted = value if kind is None else kind.convert(value)
    except TypeMismatchError:
        return encode_json(value)
    if kind is INSTANT and isinstance(converted, int):
        return f"{to_datetime(converted):%Y-%m-%dT%H:%M:%S.%fZ}"
    return converted


def list_children(file: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    """Return the children of a file or run under `key` that are objects."""
    sent = file.get(key)
    return [child for child in sent if isinstance(child, dict)] if isinstance(sent, list) else []


def render_text(draw: Callable[[Console], None]) -> str:
    """Return what `draw` prints, as wide as the terminal, or with unwrapped lines without one."""
    page = io.StringIO()
    draw(Console(file=page, force_terminal=True) if sys.stdout.isatty() else Console(file=page, width=_UNLIMITED_WIDTH))
    return "\n".join(line.rstrip() for line in page.getvalue().splitlines()) + "\n"


def build_list_table(files: Iterable[Mapping[str, Any]], includes: Sequence[str]) -> Table:
    """Return a table of files that fits 80 columns; with includes it counts the children."""
    collections = [name for name in COLLECTIONS if name in includes]
    table = Table(box=None, pad_edge=False)
    table.add_column("id", no_wrap=True)
    table.add_column("scan_code", overflow="fold", ratio=1)
    table.add_column("state", no_wrap=True)
    table.add_column("contents" if collections else "created (UTC)", no_wrap=not collections)
    table.add_column("updated (UTC)", no_wrap=True)
    for file in files:
        contents = ", ".join(_count_children(file, name) for name in collections if list_children(file, _key(name)))
        table.add_row(
            _to_text(File, "id", file.get("id")),
            _to_text(File, "scan_code", file.get("scan_code")),
            _format_state(file),
            Text(contents or UNKNOWN) if collections else _to_text(File, "created_at", file.get("created_at")),
            _to_text(File, "updated_at", file.get("updated_at")),
        )
    return table


def _key(include: str) -> str:
    return COLLECTIONS[include]


def _count_children(file: Mapping[str, Any], include: str) -> str:
    return pluralize(len(list_children(file, _key(include))), include.removesuffix("s"))


def _format_state(file: Mapping[str, Any]) -> str:
    closed = to_cell(File, "closed", file.get("closed"))
    return {True: "closed", False: "open", None: UNKNOWN}[closed] if closed in {True, False, None} else str(closed)


def _to_text(model: type[WireModel], key: str, value: object) -> Text:
    cell = to_cell(model, key, value)
    if cell is None:
        return Text(UNKNOWN, "dim")
    if kind_of(model, key) is INSTANT and isinstance(value, str):
        instant = INSTANT.convert(value) if cell != encode_json(value) else None
        cell = format_minute(to_datetime(instant)) if isinstance(instant, int) else cell
    return Text(to_one_line(str(cell)))


# One file


def print_file(console: Console, file: Mapping[str, Any]) -> None:
    """Print a file: its own values, then its children in sections."""
    values = [(name, _to_text(File, name, file[name])) for name in SCALARS if file.get(name) is not None]
    values = [(name, Text(_format_state(file)) if name == "closed" else value) for name, value in values]
    _print_pairs(console, f"file {to_cell(File, 'id', file.get('id'))}", values)
    for key, (model, columns) in _SECTION_COLUMNS.items():
        _print_children(console, model, key, columns, list_children(file, key))
    for form in list_children(file, "form_submits"):
        _print_form(console, form)
    for run in list_children(file, "workflow_runs"):
        _print_run(console, run)


def _print_pairs(console: Console, title: str, pairs: Iterable[tuple[str, Text]]) -> None:
    console.print(Text(title, "bold"))
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(max_width=36, overflow="fold")
    table.add_column(overflow="fold")
    for name, value in pairs:
        table.add_row(Text(to_one_line(name)), value)
    console.print(Padding(table, (0, 0, 0, 2), expand=False))


def _print_children(
    console: Console, model: type[WireModel], title: str, keys: Sequence[str], children: Sequence[Mapping[str, Any]]
) -> None:
    if not children:
        return
    present = [key for key in keys if any(child.get(key) not in (None, "") for child in children)]
    console.print(Text(f"\n{title} ({len(children)})", "bold"))
    table = Table(box=None, pad_edge=False)
    for key in present:
        table.add_column(key, overflow="fold")
    for child in children:
        table.add_row(*(_to_text(model, key, child.get(key)) for key in present))
    console.print(table)


def _print_form(console: Console, sent: dict[str, Any]) -> None:
    form = parse_submission(sent)
    title = to_one_line(str(form.header.get("title") or UNKNOWN))
    pairs = [(str(answer.get("label")), _format_answer(answer.get("value"))) for answer in form.answers]
    _print_pairs(console, f"\nform_submits: {title} (form {form.header.get('form_id')})", pairs)


def _format_answer(value: object) -> Text:
    text = value if isinstance(value, str) else UNKNOWN if value is None else encode_json(value)
    return Text(to_one_line(text))


def _print_run(console: Console, run: Mapping[str, Any]) -> None:
    workflow = run.get("workflow") if isinstance(run.get("workflow"), dict) else {}
    names = {step.get("id"): step.get("description") for step in list_children(workflow or {}, "steps")}
    name = to_one_line(str((workflow or {}).get("name") or UNKNOWN))
    completed = _to_text(WorkflowRun, "completed_at", run.get("completed_at")).plain
    state = "open" if run.get("completed_at") is None else f"completed {completed} UTC"
    console.print(Text(f"\nworkflow_runs: {name}, {state}", "bold"))
    table = Table("step", "status", "items", "submitted (UTC)", box=None, pad_edge=False)
    for step in list_children(run, "workflow_run_steps"):
        items = step.get("entity_ids")
        table.add_row(
            Text(to_one_line(str(names.get(step.get("workflow_step_id")) or step.get("workflow_step_id")))),
            _to_text(WorkflowRunStep, "status", step.get("status")),
            str(len(items) if isinstance(items, list) else 0),
            _to_text(WorkflowRunStep, "submit_date_time", step.get("submit_date_time")),
        )
    console.print(table)
