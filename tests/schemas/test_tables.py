"""Our tables against the interface and the field notes; field ids that stay; digests of documents."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import pyarrow as pa

from schemas import tables
from schemas.file_versions import CONTENT_DIGEST_BYTES, content_digest, same_content, version_digest
from schemas.tables import BY_NAME, COMMIT_SEQ_COLUMN, FIELD_ID_KEY, RAW, SCHEMA_VERSION, TABLES, Table
from tests.plain_reading import KNOWN_KEYS
from tests.rows import every

# Section 2 of the interface, then "Shapes beyond the document" of the field notes.
FIELDS: Final = KNOWN_KEYS | {
    "form_submits": "id form_id title form fields answers",
    "form_answers": "id label name value",
    "workflow_definitions": "id name type created_at updated_at steps force order language location_filter"
    " close_file_after_completion info_url",
    "workflow_definition_steps": "id workflow_id order description type allow_skip platform_description data"
    " deleted_at",
}
WITHOUT_COLUMN: Final[dict[tuple[str, str], str]] = {
    **{("files", name): f"rows of {name}" for name in "uploads form_submits fields locations workflow_runs".split()},
    **{(name, "file_id"): "the row's own, in extra if another" for name in ("uploads", "fields", "workflow_runs")},
    ("form_submits", "form"): "taken apart into form_id and title; the rest is kept in extra",
    **{("form_submits", name): "rows of form_answers" for name in ("fields", "answers")},
    ("form_answers", "name"): "the label, in one of three spellings",
    ("fields", "donotuse"): "clients must not use it",
    ("workflow_runs", "workflow"): "a row of workflow_definitions",
    ("workflow_runs", "workflow_run_steps"): "rows of workflow_run_steps",
    ("workflow_run_steps", "entity_ids"): "rows of workflow_run_step_items",
    ("workflow_definitions", "steps"): "rows of workflow_definition_steps",
}
each_table: Final = every("table", TABLES)


@every(("name", "keys"), FIELDS.items())
def test_every_field_has_a_column_or_a_reason(name: str, keys: str) -> None:
    """Each field of the interface and of the field notes has a column, or stands here with the reason why not.

    No column is invented: each is of such a field, or is derived from one.
    """
    table = BY_NAME[name]
    taken = {column.wire_key for column in table.from_wire}
    for key in keys.split():
        assert (key in taken) != ((name, key) in WITHOUT_COLUMN), key
        assert key in table.declared_keys, key
    assert taken - ({"value_json"} if name == "form_answers" else set()) <= set(keys.split())


@each_table
def test_every_table_and_column_says_what_it_is(table: Table) -> None:
    """Every table and column has a comment and a plain, unique name."""
    names = [column.name for column in table.columns]
    assert len(set(names)) == len(names)
    assert all(name.isascii() and name.islower() and name.isidentifier() for name in [*names, table.name])
    assert all(line.strip().endswith(".") for line in [table.comment, *(column.comment for column in table.columns)])


@each_table
def test_keys_and_parents_exist(table: Table) -> None:
    """Keys are columns; a parent is a table that stands before its children; a child has its file."""
    assert table.key
    assert set(table.key) <= {column.name for column in table.columns} - {"position"}
    before = [each.name for each in TABLES[: TABLES.index(table)]]
    assert table.parent in ["", *before]
    assert ("file_id" in table.arrow.names) == table.is_per_file
    assert table in {tables.DELETED_FILES, tables.MISFITS} or "extra" in table.arrow.names


@each_table
def test_what_cannot_be_missing_is_declared_so(table: Table) -> None:
    """A row's commit, and that of a file or definition the time of its fetch and its run: never NULL."""
    marks = {COMMIT_SEQ_COLUMN} if table.parent else {"_fetched_at", "_run_id", COMMIT_SEQ_COLUMN}
    assert marks == {"_fetched_at", "_run_id", COMMIT_SEQ_COLUMN} & set(table.arrow.names)
    needed = {field.name for field in table.arrow if not field.nullable}
    assert needed >= marks | {"file_id", "position"} & set(table.arrow.names)


KEYWORDS: Final = frozenset(
    "all and any as asc between by case cast check column create default delete desc distinct do else end except exists"
    " false for foreign from group having in index insert intersect into is join key limit not null on or order primary"
    " references select set table then to true union unique update user using values view when where with".split()
)


@each_table
def test_every_reader_knows_names_and_types(table: Table) -> None:
    """No column is a keyword; types are 64-bit integers, doubles, booleans, text, or microseconds without a zone."""
    assert not KEYWORDS & {column.name for column in table.columns}
    assert set(table.arrow.types) <= {pa.int64(), pa.float64(), pa.bool_(), pa.string(), pa.timestamp("us")}


def test_identifiers_that_are_no_numbers_fit() -> None:
    """Where the interface says identifier the column is text, of a device in every table; an integer is a number."""
    types = {name: {field.name: field.type for field in BY_NAME[name].arrow} for name in BY_NAME}
    for name in ("device_id", "workflow_id", "workflow_step_id"):
        assert types["uploads"][name] == pa.string()
    assert types["workflow_run_steps"]["device_id"] == pa.string()
    assert types["workflow_runs"]["workflow_id"] == types["workflow_runs"]["id"] == pa.int64()
    assert "deprecated_id" in types["fields"].keys() - {"id", *tables.FIELDS.key}, "the service maps it wrongly"


# {table: {column: "id type[ required]"}}: readers of published parts find a column by its id alone. A column that is
# removed keeps its line, so that no other column takes its id. A new column is a new line.
GOLDEN: Final[dict[str, dict[str, str]]] = json.loads(Path(__file__).with_name("field_ids.json").read_text())
SCHEMAS: Final = {table.name: table.arrow for table in TABLES} | {"raw": RAW}


def describe(field: pa.Field) -> str:
    """Return a column's line in the golden file."""
    return f"{int(field.metadata[FIELD_ID_KEY])} {field.type}{'' if field.nullable else ' required'}"


def test_no_field_id_changes() -> None:
    """Every column of every part has the id, the type and the requiredness that earlier parts have."""
    current = {name: {field.name: describe(field) for field in schema} for name, schema in SCHEMAS.items()}
    assert current.keys() == GOLDEN.keys()
    assert (len(current), list(BY_NAME), RAW.names[0]) == (len(TABLES) + 1, [table.name for table in TABLES], "file_id")
    for name, columns in current.items():
        assert columns == {column: GOLDEN[name].get(column) for column in columns}, name


def test_the_schema_version_grows_with_the_columns() -> None:
    """It is the number of the columns that there have ever been: an older program has a smaller one."""
    assert sum(map(len, GOLDEN.values())) == SCHEMA_VERSION


def test_no_field_id_is_used_twice() -> None:
    """Within a table every column, removed ones included, has an id of its own, apart from Iceberg's reserved ids."""
    for name, columns in GOLDEN.items():
        ids = [int(line.split()[0]) for line in columns.values()]
        assert len(set(ids)) == len(ids), name
        assert 0 < min(ids) <= max(ids) < 1_000, name


@every(
    ("one", "other"),
    [
        *(
            (b'"2026-01-02T03:04:05%b"' % spelled, b'"2026-01-02T03:04:05"')
            for spelled in (b"Z", b"+00:00", b".000000Z", b".Z")
        ),
        (b'"2026-01-02T03:04:05.727000Z"', b'"2026-01-02T03:04:05.727+00:00"'),
        (b'"2026-01-02T03:04:00.000Z"', b'"2026-01-02T03:04:00"'),
        (b'"2026-01-02 03:04:05.500000"', b'"2026-01-02 03:04:05.5Z"'),
        (b'["2026-01-02T03:04:05Z","2026-01-02T03:04:05.10Z"]', b'["2026-01-02T03:04:05","2026-01-02T03:04:05.1"]'),
        (b'{"image_url":"https:\\/\\/x\\/a.jpg?sig=2","n":"a"}', b'{"image_url":"https://x/a.jpg?sig=1","n":"a"}'),
    ],
)
def test_the_same(one: bytes, other: bytes) -> None:
    """Another signature of an image and another spelling of an instant make no other digest."""
    assert same_content(one, other)
    assert content_digest(one) == content_digest(other)


_COMMENTS: Final = (
    *((b"ABCZ", b"ABC"), (b"52.000000", b"52"), (b'\\"image_url\\":\\"a\\"', b'\\"image_url\\":\\"b\\"')),
    *(
        (b"2026-01-02T03:04:05%b" % one, b"2026-01-02T03:04:05%b" % other)
        for one, other in ((b"Z.", b"."), (b".500 h", b".5 h"))
    ),
)
_INSTANTS: Final = (
    *((b"05Z", b"06Z"), (b"05.727000Z", b"05.728Z"), (b"50Z", b"5Z"), (b"00.000Z", b""), (b"05+01:00", b"05+00:00")),
)


@every(
    ("one", "other"),
    [
        *((b'{"comment":"%b"}' % one, b'{"comment":"%b"}' % other) for one, other in _COMMENTS),
        *((b'{"at":"2026-01-02T03:04:%b"}' % one, b'{"at":"2026-01-02T03:04:%b"}' % other) for one, other in _INSTANTS),
        (b'{"image_name":"a"}', b'{"image_name":"b"}'),
        (b'{"uploads":[]}', b'{"uploads":[{}]}'),
        (b'{"a":1,"image_url":"https://x/a"}', b'{"a":1}'),
        *(
            (b'{"image_url":"https://x/a"}', other)
            for other in (b'{"image_url":null}', b'{"image_thumb":"https://x/a"}')
        ),
        (b'{"page_url":"https://x/a"}', b'{"page_url":"https://x/b"}'),
    ],
)
def test_another(one: bytes, other: bytes) -> None:
    """Whatever a person could notice makes another digest."""
    assert content_digest(one) != content_digest(other)


def test_renewed_links() -> None:
    """Another signature makes another digest of a version, of which the content has the same part."""
    one, other = (b'{"image_url" : "https://x/a?%d","image_thumb":"https://x/b"}' % number for number in (1, 2))
    assert version_digest(one) != version_digest(other)
    assert version_digest(one)[:CONTENT_DIGEST_BYTES] == version_digest(other)[:CONTENT_DIGEST_BYTES]
    assert version_digest(one)[:CONTENT_DIGEST_BYTES] == content_digest(other)
