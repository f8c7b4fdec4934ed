"""Tables of the lake: columns, Arrow types, comments, keys and parents.

A table derives its columns from the keys of an object of the service (`wire`), in their order and with their names,
except for renames. The parents' keys precede these columns; `extra` and the columns of the fetch follow.

Each column has a field id, which its parts carry: readers such as Iceberg find a column by it. An id is never changed
and never used again. Columns of the lake have their ids beside their names, columns of the service theirs by the order
of the keys, so new keys go to the end of an object.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Final

import pyarrow as pa
from msgspec import Struct

from schemas import value_types, wire

SCHEMA_VERSION: Final = 197
"""Number of the columns that there have ever been. A program with fewer would drop some, and does not write."""
_ARROW: Final = {
    value_types.ID: pa.int64(),
    value_types.COUNT: pa.int64(),
    value_types.INSTANT: pa.timestamp("us"),
    value_types.BOOLEAN: pa.bool_(),
    value_types.TEXT: pa.string(),
    value_types.NUMBER: pa.float64(),
    value_types.JSON: pa.string(),
}
_REFERENCES: Final = {
    ("files", "recent_snap_id"): "uploads.id",
    ("form_answers", "form_submit_id"): "form_submits.id",
    ("fields", "snap_id"): "uploads.id",
    ("workflow_runs", "workflow_id"): "workflows.id",
    ("workflow_runs", "_definition_hash"): "workflow_definitions._definition_hash",
    ("workflow_run_steps", "workflow_run_id"): "workflow_runs.id",
    ("workflow_run_steps", "workflow_step_id"): "workflow_definition_steps.id",
    ("workflow_run_steps", "workflow_id"): "workflows.id",
    ("workflow_run_step_items", "workflow_run_id"): "workflow_runs.id",
    ("workflow_run_step_items", "workflow_run_step_id"): "workflow_run_steps.id",
    ("workflow_run_step_items", "entity_id"): "uploads.id",
    ("workflow_definition_steps", "_definition_hash"): "workflow_definitions._definition_hash",
    ("workflow_definition_steps", "workflow_id"): "workflows.id",
    ("workflow_progress", "workflow_run_id"): "workflow_runs.id",
    ("workflow_progress", "workflow_id"): "workflows.id",
    ("workflow_progress", "_definition_hash"): "workflow_definitions._definition_hash",
    ("open_workflow_runs", "workflow_run_id"): "workflow_runs.id",
    ("open_workflow_runs", "workflow_id"): "workflows.id",
    ("open_workflow_steps", "workflow_run_id"): "workflow_runs.id",
    ("open_workflow_steps", "workflow_id"): "workflows.id",
    ("open_workflow_steps", "workflow_step_id"): "workflow_definition_steps.id",
    ("form_answers_wide", "form_submit_id"): "form_submits.id",
    ("upload_addresses", "upload_id"): "uploads.id",
    ("images", "upload_id"): "uploads.id",
}
"""Table and column to the column whose row they name."""
_HAVE_OWN_FILES: Final = frozenset({"files", "deleted_files"})


class MergeRule(StrEnum):
    """Which of list item and detail speaks for a value. What only one of them has always stays."""

    DETAIL = "detail"  # the detail, also with null or an empty value: it is the full information
    FILLED = "filled"  # the detail if it has a value: it cannot be asked for what an include adds to the list
    BY_LANG = "by_lang"  # the detail, unless only the list heeds `lang`; then the list's text


class Column(Struct, frozen=True):
    """A column: name, type, field id, comment, wire key ('' if the service does not send it), merge rule.

    A column that is not `nullable` has a value in every row.
    """

    name: str
    kind: value_types.ValueType
    field_id: int
    comment: str
    wire_key: str = ""
    merge: MergeRule = MergeRule.DETAIL
    nullable: bool = True

    @property
    def arrow(self) -> pa.DataType:
        """The Arrow type, which is also the Parquet type."""
        return _ARROW[self.kind]


@dataclass(frozen=True)
class Table:
    """A table. `key` names the identifying columns, `parent` the parent table, `merge` who speaks for the collection.

    `position` separates rows with equal keys. `declared_keys` are the keys of the service that are not unknown: of the
    columns, of children, and those without a column. `schema` is the catalog's schema that shows the table.
    """

    name: str
    comment: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    parent: str = ""
    is_per_file: bool = True
    declared_keys: frozenset[str] = frozenset()
    merge: MergeRule = MergeRule.DETAIL
    schema: str = "main"

    @cached_property
    def arrow(self) -> pa.Schema:
        """The schema of the table's parts."""
        return pa.schema(
            [
                _part_field(column.name, column.arrow, column.field_id, nullable=column.nullable)
                for column in self.columns
            ]
        )

    @property
    def qualified_name(self) -> str:
        """The name with its schema, as queries name the table."""
        return f"{self.schema}.{self.name}"

    @cached_property
    def from_wire(self) -> tuple[Column, ...]:
        """The columns with a wire key, in order."""
        return tuple(column for column in self.columns if column.wire_key)


FIELD_ID_KEY: Final = b"PARQUET:field_id"
"""Key of an Arrow field's metadata under which Parquet writes the field id."""


def _part_field(name: str, arrow_type: pa.DataType, field_id: int, *, nullable: bool = True) -> pa.Field:
    return pa.field(name, arrow_type, nullable=nullable, metadata={FIELD_ID_KEY: str(field_id)})


COMMIT_SEQ_COLUMN: Final = "_seq"
_COMMIT_SEQ: Final = Column(COMMIT_SEQ_COLUMN, value_types.COUNT, 6, "Commit that wrote the row.", nullable=False)
_FIRST_WIRE_FIELD_ID: Final = 101  # up to 100: columns that scanlake adds
_FILE_ID: Final = Column("file_id", value_types.ID, 1, "The file. Joins every table to `files`.", nullable=False)
_POSITION: Final = Column("position", value_types.COUNT, 2, "Index in the list as sent, from 0.", nullable=False)
_EXTRA: Final = Column(
    "extra", value_types.JSON, 3, "Keys scanlake does not know, and values that did not fit their column, as sent."
)
_FETCH_COLUMNS: Final = (
    Column(
        "_fetched_at",
        value_types.INSTANT,
        4,
        "Fetched from the service (UTC, the service's clock where it has one).",
        nullable=False,
    ),
    Column("_run_id", value_types.TEXT, 5, "Run that fetched it; see meta.runs.", nullable=False),
    _COMMIT_SEQ,
)


def _id(name: str, field_id: int, comment: str) -> Column:
    return Column(name, value_types.ID, field_id, comment)


def _columns_of(
    keys: wire.WireKeys, renamed: dict[str, str] | None = None, merge: dict[str, MergeRule] | None = None
) -> tuple[Column, ...]:
    names, rules = renamed or {}, merge or {}
    return tuple(
        Column(names.get(key, key), value[0], field_id, value[1], key, rules.get(key, MergeRule.DETAIL))
        for field_id, (key, value) in enumerate(keys.items(), _FIRST_WIRE_FIELD_ID)
        if value is not None
    )


FILES: Final = Table(
    "files",
    "One row per file: its latest version.",
    (
        _FILE_ID,
        *_columns_of(wire.FILE, {"id": "service_id", "file_id": "instance_file_id"}),
        Column(
            "_has_detail", value_types.BOOLEAN, 11, "The row has the detail; false: only the list item.", nullable=False
        ),
        _EXTRA,
        *_FETCH_COLUMNS,
    ),
    ("file_id",),
    declared_keys=frozenset(wire.FILE),
)
UPLOADS: Final = Table(
    "uploads",
    "One row per image or document scan.",
    (
        _FILE_ID,
        *_columns_of(
            wire.UPLOAD,
            merge={
                "geocoding": MergeRule.FILLED,
                "damage_type_desc": MergeRule.BY_LANG,
                "document_type_desc": MergeRule.BY_LANG,
            },
        ),
        _POSITION,
        _EXTRA,
        _COMMIT_SEQ,
    ),
    ("file_id", "id"),
    "files",
    declared_keys=frozenset({*wire.UPLOAD, "file_id"}),
)
FORM_SUBMITS: Final = Table(
    "form_submits",
    "One row per submitted form.",
    (_FILE_ID, *_columns_of(wire.FORM_SUBMIT), _POSITION, _EXTRA, _COMMIT_SEQ),
    ("file_id", "id"),
    "files",
    declared_keys=frozenset(wire.FORM_SUBMIT),
    merge=MergeRule.FILLED,
)
FORM_ANSWERS: Final = Table(
    "form_answers",
    "One row per question of a submitted form, with its answer.",
    (
        _FILE_ID,
        Column("form_submit_id", value_types.TEXT, 11, "Submission; see form_submits.id."),
        Column(
            "submit_position", value_types.COUNT, 12, "Position of the submission; see form_submits.", nullable=False
        ),
        _id("form_id", 13, "Form that was filled in."),
        *_columns_of(wire.FORM_ANSWER, {"id": "question_id"}),
        _POSITION,
        _EXTRA,
        _COMMIT_SEQ,
    ),
    ("file_id", "form_submit_id", "question_id"),
    "form_submits",
    declared_keys=frozenset({*wire.FORM_ANSWER, "name"}),
)
FIELDS: Final = Table(
    "fields",
    "One row per value of a custom field; a field can be scanned several times.",
    (_FILE_ID, *_columns_of(wire.CUSTOM_FIELD, {"id": "deprecated_id"}), _POSITION, _EXTRA, _COMMIT_SEQ),
    ("file_id", "field_id", "snap_id"),
    "files",
    declared_keys=frozenset({*wire.CUSTOM_FIELD, "file_id", "donotuse"}),
)
LOCATIONS: Final = Table(
    "locations",
    "One row per location setting of the devices that created the file.",
    (_FILE_ID, *_columns_of(wire.LOCATION), _POSITION, _EXTRA, _COMMIT_SEQ),
    ("file_id", "id"),
    "files",
    declared_keys=frozenset({*wire.LOCATION, "file_id"}),
)
WORKFLOW_RUNS: Final = Table(
    "workflow_runs",
    "One row per workflow carried out on a file.",
    (
        _FILE_ID,
        *_columns_of(wire.WORKFLOW_RUN),
        Column(
            "_definition_hash",
            value_types.TEXT,
            11,
            "Definition that the run was made under; see workflow_definitions. NULL: the run has none.",
        ),
        _POSITION,
        _EXTRA,
        _COMMIT_SEQ,
    ),
    ("file_id", "id"),
    "files",
    declared_keys=frozenset({*wire.WORKFLOW_RUN, "file_id"}),
)
WORKFLOW_RUN_STEPS: Final = Table(
    "workflow_run_steps",
    "One row per step of a workflow run, executed or skipped.",
    (
        _FILE_ID,
        *_columns_of(wire.WORKFLOW_RUN_STEP),
        _id("workflow_id", 11, "Workflow of the run."),
        _POSITION,
        _EXTRA,
        _COMMIT_SEQ,
    ),
    ("file_id", "workflow_run_id", "id"),
    "workflow_runs",
    declared_keys=frozenset(wire.WORKFLOW_RUN_STEP),
)
WORKFLOW_RUN_STEP_ITEMS: Final = Table(
    "workflow_run_step_items",
    "One row per item (such as an upload) of an executed step.",
    (
        _FILE_ID,
        _id("workflow_run_id", 11, "Run; see workflow_runs.id."),
        _id("workflow_run_step_id", 12, "Executed step; see workflow_run_steps.id."),
        Column(
            "entity_id",
            value_types.ID,
            13,
            "The item, for example uploads.id. Can name an upload that does not exist yet.",
            "entity_id",
        ),
        Column("entity_type", value_types.TEXT, 14, "What the item is, for example uploads."),
        _POSITION,
        _EXTRA,
        _COMMIT_SEQ,
    ),
    ("file_id", "workflow_run_id", "workflow_run_step_id", "entity_id"),
    "workflow_run_steps",
    declared_keys=frozenset({"entity_id"}),
)
_HASH: Final = Column(
    "_definition_hash", value_types.TEXT, 11, "Hash of the definition, steps included.", nullable=False
)
WORKFLOW_DEFINITIONS: Final = Table(
    "workflow_definitions",
    "One row per version of a workflow's definition that the lake has ever seen.",
    (*_columns_of(wire.WORKFLOW, {"order": "workflow_order"}), _EXTRA, _HASH, *_FETCH_COLUMNS),
    ("_definition_hash",),
    is_per_file=False,
    declared_keys=frozenset(wire.WORKFLOW),
)
WORKFLOW_DEFINITION_STEPS: Final = Table(
    "workflow_definition_steps",
    "One row per step of each version of a workflow's definition.",
    (*_columns_of(wire.WORKFLOW_STEP, {"order": "step_order"}), _POSITION, _EXTRA, _HASH, _COMMIT_SEQ),
    ("_definition_hash", "id"),
    "workflow_definitions",
    is_per_file=False,
    declared_keys=frozenset(wire.WORKFLOW_STEP),
)
MISFITS: Final = Table(
    "misfits",
    "One row per value that did not fit its column, as sent; the column is NULL there.",
    (
        _FILE_ID,
        Column("table_name", value_types.TEXT, 11, "Table of the row.", nullable=False),
        Column("row_key", value_types.JSON, 12, "Key and position of the row in its table.", nullable=False),
        Column(
            "column_name", value_types.TEXT, 13, "Column, or key of the service where no column has it.", nullable=False
        ),
        Column("reason", value_types.TEXT, 14, "Why the value does not fit.", nullable=False),
        Column("value", value_types.TEXT, 15, "The value as sent; other than text as JSON."),
        _COMMIT_SEQ,
    ),
    ("file_id", "table_name", "row_key", "column_name"),
    "files",
    schema="meta",
)
DELETED_FILES: Final = Table(
    "deleted_files",
    "One row per file that the service no longer has.",
    (
        _FILE_ID,
        Column("scan_code", value_types.TEXT, 11, "Reference in the last stored version."),
        Column("updated_at", value_types.INSTANT, 12, "Update time in the last stored version (UTC)."),
        Column("deletion_detected_at", value_types.INSTANT, 13, "Detection of the deletion (UTC)."),
        Column("evidence", value_types.TEXT, 14, "Evidence of the deletion."),
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
    WORKFLOW_DEFINITIONS,
    WORKFLOW_DEFINITION_STEPS,
    DELETED_FILES,
    MISFITS,
)
"""Every table with parts, parents before children."""

BY_NAME: Final = {table.name: table for table in TABLES}

RAW: Final = pa.schema(
    [
        _part_field("file_id", pa.int64(), 1, nullable=False),
        _part_field("list_item", pa.binary(), 11),
        _part_field("detail", pa.binary(), 12),
        _part_field("updated_at", pa.timestamp("us"), 13),
        _part_field("_fetched_at", pa.timestamp("us"), 4),
        _part_field("_run_id", pa.string(), 5),
        _part_field(COMMIT_SEQ_COLUMN, pa.int64(), 6, nullable=False),
        _part_field("digest", pa.binary(), 14),
        _part_field("fetch_signature", pa.string(), 15),
        _part_field("is_stable", pa.bool_(), 16),
        _part_field("instance_id", pa.int64(), 17),
        _part_field("texts_from_list", pa.bool_(), 18),
        _part_field("kind", pa.string(), 19, nullable=False),
        _part_field("evidence", pa.string(), 20),
        _part_field("scan_code", pa.string(), 21),
    ]
)
"""What became of files, commit by commit: raw documents as received, and how they were fetched."""
FETCHED: Final = "fetched"
"""`kind` of a version that was fetched: list item and detail as received."""
RESTORED: Final = "restored"
"""`kind` of a copy of an earlier version, as rollbacks wrote it up to format 10."""
ABSENT: Final = "absent"
"""`kind` of a file without a version since a rollback, up to format 10."""
DELETED: Final = "deleted"
"""`kind` of a tombstone: no documents, the last reference, and the detection of the deletion as fetch."""


# References


def find_reference(table: str, column: str) -> str | None:
    """Return the column whose row a column names, as table.column; None if it names no row.

    Where both tables have `file_id`, a join needs it too: ids of children are unique within a file.
    """
    if column == "file_id" and table not in _HAVE_OWN_FILES:
        return "files.file_id"
    return _REFERENCES.get((table, column))
