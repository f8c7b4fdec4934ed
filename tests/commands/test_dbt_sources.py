"""`tables --format dbt`: a sources file of the declared tables."""

from __future__ import annotations

import yaml

from pipeline.lake.dbt_sources import format_dbt_sources
from schemas.tables import TABLES


def test_every_column_is_a_source_of_dbt() -> None:
    """The sources file is YAML with every table of main, its columns, types and descriptions, and tests of keys."""
    (source,) = yaml.safe_load(format_dbt_sources())["sources"]
    tables = {table["name"]: table for table in source["tables"]}
    declared = {table.name: table for table in TABLES if table.schema == "main"}
    assert tables.keys() == declared.keys()
    for name, table in declared.items():
        columns = {column["name"]: column for column in tables[name]["columns"]}
        assert list(columns) == [column.name for column in table.columns]
        for column in table.columns:
            assert columns[column.name]["description"] == column.comment
            assert columns[column.name]["data_type"] == column.kind.sql
            assert ("not_null" in columns[column.name].get("data_tests", ())) is not column.nullable
    files = {column["name"]: column for column in tables["files"]["columns"]}
    assert files["file_id"]["data_tests"] == ["not_null", "unique"]
    uploads = {column["name"]: column for column in tables["uploads"]["columns"]}
    assert uploads["file_id"]["meta"] == {"refers_to": "files.file_id"}
