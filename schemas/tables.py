"""Our tables: columns, Arrow types, comments, keys, parents. The only place a column is spelled.

A table takes its columns from the wire model it holds, in the model's order, under the model's names but
for the renames given here, between the columns that are ours: the parents' keys before, `extra` and the
marks of the fetch behind.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import pyarrow as pa

from schemas import kinds, wire

_ARROW: Final = {
    kinds.ID: pa.int64(),
    kinds.COUNT: pa.int64(),
    kinds.INSTANT: pa.timestamp("us"),
    kinds.FLAG: pa.bool_(),
    kinds.TEXT: pa.string(),
    kinds.NUMBER: pa.float64(),
    kinds.JSON: pa.string(),
}


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its name, kind, comment, and the wire key it is read from ('' for a column of ours)."""

    name: str
    kind: kinds.Kind
    comment: str
    wire_key: str = ""

    @property
    def arrow(self) -> pa.DataType:
        """The Arrow type, which is also the Parquet type."""
        return _ARROW[self.kind]


@dataclass(frozen=True)
class Table:
    """A table. `key` names the columns that tell its rows apart; `parent` the table its rows hang from."""

    name: str
    comment: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    parent: str = ""
    by_file: bool = True
    model: type[wire.Wire] | None = None
    not_taken: frozenset[str] = frozenset()

    @cached_property
    def arrow(self) -> pa.Schema:
        """The schema of the table's parts: its columns and `_seq`, the version the row belongs to."""
        fields = [pa.field(column.name, column.arrow) for column in self.columns]
        return pa.schema([*fields, pa.field(SEQ, pa.int64(), nullable=False)])

    @cached_property
    def from_wire(self) -> tuple[Column, ...]:
        """The columns that are read from a wire object, in order."""
        return tuple(column for column in self.columns if column.wire_key)

    @cached_property
    def known_keys(self) -> frozenset[str]:
        """Every wire key this table or one of its children takes, or leaves on purpose."""
        fields = self.model.model_fields if self.model else [column.wire_key for column in self.from_wire]
        return self.not_taken.union(fields)


SEQ: Final = "_seq"
_FILE_ID: Final = Column("file_id", kinds.ID, "The file. Joins every table to `files`.")
_POSITION: Final = Column("position", kinds.COUNT, "Place in the list as sent, from 0.")
_EXTRA: Final = Column(
    "extra", kinds.JSON, "Keys scanlake does not know, and values that did not fit their column, as sent."
)
_MARKS: Final = (
    Column("_fetched_at", kinds.INSTANT, "Fetched from the service (UTC, the service's clock where it has one)."),
    Column("_run_id", kinds.TEXT, "Run that fetched it; see meta.runs."),
)


def _id(name: str, comment: str) -> Column:
    return Column(name, kinds.ID, comment)


def _take(model: type[wire.Wire], renamed: dict[str, str] | None = None) -> tuple[Column, ...]:
    names = renamed or {}
    columns = []
    for key, field in model.model_fields.items():
        kind = wire.kind_of(model, key)
        if kind is not None:
            columns.append(Column(names.get(key, key), kind, field.description or "", key))
    return tuple(columns)


FILES: Final = Table(
    "files",
    "One row a file: its latest version.",
    (
        _FILE_ID,
        *_take(wire.File, {"file_id": "instance_file_id"}),
        Column("_expanded", kinds.FLAG, "The detail call answered; false: only the list's part is here."),
        _EXTRA,
        *_MARKS,
    ),
    ("file_id",),
    model=wire.File,
)
UPLOADS: Final = Table(
    "uploads",
    "One row an image or document scan.",
    (_FILE_ID, *_take(wire.Upload), _POSITION, _EXTRA, *_MARKS),
    ("file_id", "id", "position"),
    "files",
    model=wire.Upload,
    not_taken=frozenset({"file_id"}),
)
FORM_SUBMITS: Final = Table(
    "form_submits",
    "One row a submitted form.",
    (_FILE_ID, *_take(wire.FormSubmit), _POSITION, _EXTRA, *_MARKS),
    ("file_id", "id", "position"),
    "files",
    model=wire.FormSubmit,
)
FORM_ANSWERS: Final = Table(
    "form_answers",
    "One row a question of a submitted form, with its answer.",
    (
        _FILE_ID,
        Column("form_submit_id", kinds.TEXT, "Submission; see form_submits.id."),
        _id("form_id", "Form that was filled in."),
        *_take(wire.FormAnswer, {"id": "question_id"}),
        _POSITION,
        _EXTRA,
        *_MARKS,
    ),
    ("file_id", "form_submit_id", "position"),
    "form_submits",
    model=wire.FormAnswer,
    not_taken=frozenset({"name"}),
)
FIELDS: Final = Table(
    "fields",
    "One row a value of a custom field; a field can be scanned several times.",
    (_FILE_ID, *_take(wire.CustomField, {"id": "deprecated_id"}), _POSITION, _EXTRA, *_MARKS),
    ("file_id", "field_id", "snap_id", "position"),
    "files",
    model=wire.CustomField,
    not_taken=frozenset({"file_id", "donotuse"}),
)
LOCATIONS: Final = Table(
    "locations",
    "One row a location setting of the devices that created the file.",
    (_FILE_ID, *_take(wire.Location), _POSITION, _EXTRA, *_MARKS),
    ("file_id", "id", "position"),
    "files",
    model=wire.Location,
)
WORKFLOW_RUNS: Final = Table(
    "workflow_runs",
    "One row a workflow carried out on a file.",
    (_FILE_ID, *_take(wire.WorkflowRun), _POSITION, _EXTRA, *_MARKS),
    ("file_id", "id", "position"),
    "files",
    model=wire.WorkflowRun,
    not_taken=frozenset({"file_id"}),
)
WORKFLOW_RUN_STEPS: Final = Table(
    "workflow_run_steps",
    "One row a step of a workflow run, executed or skipped.",
    (
        _FILE_ID,
        *_take(wire.WorkflowRunStep),
        _id("workflow_id", "Workflow of the run."),
        _POSITION,
        _EXTRA,
        *_MARKS,
    ),
    ("file_id", "workflow_run_id", "id", "position"),
    "workflow_runs",
    model=wire.WorkflowRunStep,
)
WORKFLOW_RUN_STEP_ITEMS: Final = Table(
    "workflow_run_step_items",
    "One row an item (such as an upload) of an executed step.",
    (
        _FILE_ID,
        _id("workflow_run_id", "Run; see workflow_runs.id."),
        _id("workflow_run_step_id", "Executed step; see workflow_run_steps.id."),
        Column("entity_id", kinds.ID, "The item, for example uploads.id. May not have arrived yet.", "entity_id"),
        Column("entity_type", kinds.TEXT, "What the item is, for example uploads."),
        _POSITION,
        _EXTRA,
        *_MARKS,
    ),
    ("file_id", "workflow_run_id", "workflow_run_step_id", "position"),
    "workflow_run_steps",
)
_HASH: Final = Column("_content_hash", kinds.TEXT, "Hash of the whole definition, steps included.")
WORKFLOWS: Final = Table(
    "workflows",
    "One row a workflow: its latest known definition.",
    (*_take(wire.Workflow), _EXTRA, _HASH, *_MARKS),
    ("id",),
    by_file=False,
    model=wire.Workflow,
)
WORKFLOW_STEPS: Final = Table(
    "workflow_steps",
    "One row a step of a workflow's latest known definition.",
    (*_take(wire.WorkflowStep), _POSITION, _EXTRA, _HASH, *_MARKS),
    ("workflow_id", "id", "position"),
    "workflows",
    by_file=False,
    model=wire.WorkflowStep,
)
DELETED_FILES: Final = Table(
    "deleted_files",
    "One row a file that the service no longer has.",
    (
        _FILE_ID,
        Column("scan_code", kinds.TEXT, "Its reference, as last seen."),
        Column("updated_at", kinds.INSTANT, "Its last update, as last seen."),
        Column("found_gone_at", kinds.INSTANT, "When it was found to be gone."),
        Column("witness", kinds.TEXT, "What showed that it is gone."),
        *_MARKS,
    ),
    ("file_id",),
)

TABLES: Final = (
    FILES,
    UPLOADS,
    FORM_SUBMITS,
    FORM_ANSWERS,
    FIELDS,
    LOCATIONS,
    WORKFLOW_RUNS,
    WORKFLOW_RUN_STEPS,
    WORKFLOW_RUN_STEP_ITEMS,
    WORKFLOWS,
    WORKFLOW_STEPS,
    DELETED_FILES,
)
"""Every table of `main`, parents before children."""

BY_NAME: Final = {table.name: table for table in TABLES}

RAW: Final = pa.schema(
    [
        pa.field("file_id", pa.int64(), nullable=False),
        pa.field("list_item", pa.binary()),
        pa.field("detail", pa.binary()),
        pa.field("updated_at", pa.timestamp("us")),
        pa.field("_fetched_at", pa.timestamp("us")),
        pa.field("_run_id", pa.string()),
        pa.field(SEQ, pa.int64(), nullable=False),
    ]
)
"""Raw documents as received: the list item and the detail of each version of a file."""
