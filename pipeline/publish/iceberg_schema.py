"""Iceberg schemas of the lake's tables: the same columns under the field ids that the parts carry. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.types import BooleanType, DoubleType, LongType, NestedField, StringType, TimestampType

from schemas.tables import COMMIT_SEQ_COLUMN, FIELD_ID_KEY
from schemas.value_types import INSTANT

if TYPE_CHECKING:
    from pyiceberg.types import PrimitiveType

    from schemas.tables import Table

_TYPES: Final[dict[pa.DataType, PrimitiveType]] = {
    pa.int64(): LongType(),
    pa.string(): StringType(),
    pa.bool_(): BooleanType(),
    pa.float64(): DoubleType(),
    pa.timestamp("us"): TimestampType(),  # without zone, as in the lake; the comment names UTC
}
_COMMIT_SEQ_COMMENT: Final = "Commit that wrote the version of the file that the row belongs to."
_UTC: Final = "(UTC)"

LAKE_PROPERTY: Final = "scanlake.lake"
"""Table property with the id of the lake that the table belongs to."""
SYNC_PROPERTY: Final = "scanlake.sync"
"""Table property with the tag of the sync that the table shows. `files`, which is committed last, has that of all."""
_FIXED_PROPERTIES: Final = {
    "gc.enabled": "false",  # the parts belong to the lake, which deletes them itself
    "write.delete.mode": "merge-on-read",
    "write.update.mode": "merge-on-read",
    "write.merge.mode": "merge-on-read",
    "write.metadata.previous-versions-max": "20",
    "write.metadata.compression-codec": "gzip",  # for others who write; `IcebergCatalog` obeys it itself
}


def to_iceberg_schema(table: Table, *, schema_id: int = 0) -> Schema:
    """Return the Iceberg schema of a table's parts."""
    comments = {column.name: _describe_column(column.comment, column.kind is INSTANT) for column in table.columns}
    comments[COMMIT_SEQ_COLUMN] = _COMMIT_SEQ_COMMENT
    fields = [
        NestedField(
            int(field.metadata[FIELD_ID_KEY]),
            field.name,
            _TYPES[field.type],
            required=not field.nullable,
            doc=comments[field.name],
        )
        for field in table.arrow
    ]
    return Schema(*fields, schema_id=schema_id)


def _describe_column(comment: str, is_instant: bool) -> str:  # noqa: FBT001
    return comment if not is_instant or _UTC in comment else f"{comment.removesuffix('.')} {_UTC}."


def table_properties(table: Table, lake_id: str) -> dict[str, str]:
    """Return the properties that a published table must have."""
    return {**_FIXED_PROPERTIES, "comment": table.comment, LAKE_PROPERTY: lake_id}
