"""Tables of the lake: columns, Arrow types, comments, keys and parents.

A table derives its columns from a wire model, in the model's order and with the model's names, except for renames.
The parents' keys precede these columns; `extra` and the columns of the fetch follow.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import pyarrow as pa

from schemas import value_types, wire

_ARROW: Final = {
    value_types.ID: pa.int64(),
    value_types.COUNT: pa.int64(),
    value_types.INSTANT: pa.timestamp("us"),
    value_types.BOOLEAN: pa.bool_(),
    value_types.TEXT: pa.string(),
    value_types.NUMBER: pa.float64(),
    value_types.JSON: pa.string(),
}


@dataclass(frozen=True, slots=True)
class Column:
    """A column: name, type, comment and wire key ('' if the service does not send it)."""

    name: str
    kind: value_types.ValueType
    comment: str
    wire_key: str = ""

    @property
    def arrow(self) -> pa.DataType:
        """The Arrow type, which is also the Parquet type."""
        return _ARROW[self.kind]


@dataclass(frozen=True)
class Table:
    """A table. `key` names the identifying columns, `parent` the parent table."""

    name: str
    comment: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    parent: str = ""
    is_per_file: bool = True
    model: type[wire.WireModel] | None = None
    ignored_keys: frozenset[str] = frozenset()

    @cached_property
    def arrow(self) -> pa.Schema:
        """The schema of the table's parts: its columns and `_seq`, the version the row belongs to."""
        fields = [pa.field(column.name, column.arrow) for column in self.columns]
        return pa.schema([*fields, pa.field(COMMIT_SEQ_COLUMN, pa.int64(), nullable=False)])

    @cached_property
    def from_wire(self) -> tuple[Column, ...]:
        """The columns with a wire key, in order."""
        return tuple(column for column in self.columns if column.wire_key)

    @cached_property
    def declared_keys(self) -> frozenset[str]:
        """Every wire key of the table and its children, with the ignored keys."""
        fields = self.model.model_fields if self.model else [column.wire_key for column in self.from_wire]
        return self.ignored_keys.union(fields)


COMMIT_SEQ_COLUMN: Final = "_seq"
_FILE_ID: Final = Column("file_id", value_types.ID, "The file. Joins every table to `files`.")
_POSITION: Final = Column("position", value_types.COUNT, "Index in the list as sent, from 0.")
_EXTRA: Final = Column(
    "extra", value_types.JSON, "Keys scanlake does not know, and values that did not fit their column, as sent."
)
_FETCH_COLUMNS: Final = (
    Column("_fetched_at", value_types.INSTANT, "Fetched from the service (UTC, the service's clock where it has one)."),
    Column("_run_id", value_types.TEXT, "Run that fetched it; see meta.runs."),
)
_CHILD_COLUMNS: Final = (_POSITION, _EXTRA, *_FETCH_COLUMNS)


def _columns_from_model(model: type[wire.WireModel], renamed: dict[str, str] | None = None) -> tuple[Column, ...]:
    names = renamed or {}
    columns = []
    for key, field in model.model_fields.items():
        if (kind := wire.kind_of(model, key)) is not None:
            columns.append(Column(names.get(key, key), kind, field.description or "", key))
    return tuple(columns)


def _child_of_files(name: str, comment: str, model: type[wire.WireModel], *ignored_keys: str) -> Table:
    """Return the table of a list in a file, whose items have an id."""
    columns = (_FILE_ID, *_columns_from_model(model), *_CHILD_COLUMNS)
    key = ("file_id", "id", "position")
    return Table(name, comment, columns, key, FILES.name, model=model, ignored_keys=frozenset(ignored_keys))


FILES: Final = Table(
    "files",
    "One row per file: its latest version.",
    (
        _FILE_ID,
        *_columns_from_model(wire.File, {"file_id": "instance_file_id"}),
        Column("_has_detail", value_types.BOOLEAN, "The row has the detail; false: only the list item."),
        _EXTRA,
        *_FETCH_COLUMNS,
    ),
    ("file_id",),
    model=wire.File,
)
UPLOADS: Final = _child_of_files("uploads", "One row per image or document scan.", wire.Upload, "file_id")
FORM_SUBMITS: Final = _child_of_files("form_submits", "One row per submitted form.", wire.FormSubmit)
FORM_ANSWERS: Final = Table(
    "form_answers",
    "One row per question of a submitted form, with its answer.",
    (
        _FILE_ID,
        Column("form_submit_id", value_types.TEXT, "Submission; see form_submits.id."),
        Column("form_id", value_types.ID, "Form that was filled in."),
        *_columns_from_model(wire.FormAnswer, {"id": "question_id"}),
        *_CHILD_COLUMNS,
    ),
    ("file_id", "form_submit_id", "position"),
    "form_submits",
    model=wire.FormAnswer,
    ignored_keys=frozenset({"name"}),
)
FIELDS: Final = Table(
    "fields",
    "One row per value of a custom field; a field can be scanned several times.",
    (_FILE_ID, *_columns_from_model(wire.CustomField, {"id": "deprecated_id"}), *_CHILD_COLUMNS),
    ("file_id", "field_id", "snap_id", "position"),
    "files",
    model=wire.CustomField,
    ignored_keys=frozenset({"file_id", "donotuse"}),
)
LOCATIONS: Final = _child_of_files(
    "locations", "One row per location setting of the devices that created the file.", wire.Location
)
WORKFLOW_RUNS: Final = _child_of_files(
    "workflow_runs", "One row per workflow carried out on a file.", wire.WorkflowRun, "file_id"
)
WORKFLOW_RUN_STEPS: Final = Table(
    "workflow_run_steps",
    "One row per step of a workflow run, executed or skipped.",
    (
        _FILE_ID,
        *_columns_from_model(wire.WorkflowRunStep),
        Column("workflow_id", value_types.ID, "Workflow of the run."),
        *_CHILD_COLUMNS,
    ),
    ("file_id", "workflow_run_id", "id", "position"),
    "workflow_runs",
    model=wire.WorkflowRunStep,
)
_ENTITY_ID_COMMENT: Final = "The item, for example uploads.id. Can name an upload that does not exist yet."
WORKFLOW_RUN_STEP_ITEMS: Final = Table(
    "workflow_run_step_items",
    "One row per item (such as an upload) of an executed step.",
    (
        _FILE_ID,
        Column("workflow_run_id", value_types.ID, "Run; see workflow_runs.id."),
        Column("workflow_run_step_id", value_types.ID, "Executed step; see workflow_run_steps.id."),
        Column("entity_id", value_types.ID, _ENTITY_ID_COMMENT, "entity_id"),
        Column("entity_type", value_types.TEXT, "What the item is, for example uploads."),
        *_CHILD_COLUMNS,
    ),
    ("file_id", "workflow_run_id", "workflow_run_step_id", "position"),
    "workflow_run_steps",
)
_HASH: Final = Column("_content_hash", value_types.TEXT, "Hash of the definition, steps included.")
WORKFLOWS: Final = Table(
    "workflows",
    "One row per workflow: its latest known definition.",
    (*_columns_from_model(wire.Workflow), _EXTRA, _HASH, *_FETCH_COLUMNS),
    ("id",),
    is_per_file=False,
    model=wire.Workflow,
)
WORKFLOW_STEPS: Final = Table(
    "workflow_steps",
    "One row per step of a workflow's latest known definition.",
    (*_columns_from_model(wire.WorkflowStep), _POSITION, _EXTRA, _HASH, *_FETCH_COLUMNS),
    ("workflow_id", "id", "position"),
    "workflows",
    is_per_file=False,
    model=wire.WorkflowStep,
)
DELETED_FILES: Final = Table(
    "deleted_files",
    "One row per file that the service no longer has.",
    (
        _FILE_ID,
        Column("scan_code", value_types.TEXT, "Reference in the last stored version."),
        Column("updated_at", value_types.INSTANT, "Update time in the last stored version."),
        Column("deletion_detected_at", value_types.INSTANT, "Detection of the deletion (UTC)."),
        Column("evidence", value_types.TEXT, "Evidence of the deletion."),
        *_FETCH_COLUMNS,
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
        pa.field(COMMIT_SEQ_COLUMN, pa.int64(), nullable=False),
    ]
)
"""Raw documents as received: the list item and the detail of each version of a file."""
