"""Names of a lake's objects below its target. Pure."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Final

LATEST: Final = "latest.json"
"""Object that names the published snapshot. It is replaced last."""
OWNER: Final = "iceberg-owner.json"
"""Object that names the lake and the catalog whose Iceberg tables are below a location."""
RECORDS: Final = (LATEST, OWNER)
"""Objects that name the lake to which the place with them belongs."""
CATALOG: Final = "catalog.duckdb"
TABLES_PREFIX: Final = "tables"
DOCUMENTS_PREFIX: Final = "documents"
LEDGERS_PREFIX: Final = "ledgers"
"""Folder of the ledger's copy, which a target that is a backup has."""
PROBE_PREFIX: Final = "probe"
"""Folder of the objects with which a probe tests a store. A sweep removes what a killed probe left."""
FOLDERS: Final = (TABLES_PREFIX, DOCUMENTS_PREFIX, LEDGERS_PREFIX, PROBE_PREFIX)
"""The folders of a target but for its images; the objects outside of folders are OBJECTS."""
OBJECTS: Final = (CATALOG, OWNER, LATEST)

_HASH_LENGTH: Final = 12
_STEM: Final = rf"(?P<stem>\d{{12}}-[0-9a-f]{{6}}(-\d{{4}})?)-[0-9a-f]{{{_HASH_LENGTH}}}"
_PART_NAME: Final = re.compile(rf"{_STEM}\.parquet")
_OWN: Final = re.compile(
    rf"({DOCUMENTS_PREFIX}|{TABLES_PREFIX}/\w+/data)/{_STEM}\.parquet"
    rf"|{LEDGERS_PREFIX}/[0-9a-f]{{64}}\.sqlite|{PROBE_PREFIX}/[0-9a-f]{{32}}"
)
_TABLE_FILE: Final = re.compile(
    rf"data/{_STEM}(-deletes-[0-9a-f-]+)?\.parquet|metadata/(\d+-[^/]+\.metadata\.json|([0-9a-f-]{{36}}-m\d+|snap-\d+)\.avro)"
)


def to_target_path(part_name: str, sha256: str) -> str:
    """Return the path of a part, which the ledger names by its path below the lake's folder.

    It has the hash: a repaired part keeps its name in the lake, but what a target has under a name never changes.
    """
    return f"{to_unhashed_path(part_name).removesuffix('.parquet')}-{sha256[:_HASH_LENGTH]}.parquet"


def to_unhashed_path(part_name: str) -> str:
    """Return the path of a part without its hash."""
    path = PurePosixPath(part_name)
    folder = DOCUMENTS_PREFIX if path.parts[0] == DOCUMENTS_PREFIX else data_prefix(path.parts[1])
    return f"{folder}/{path.name}"


def remove_hash(path: str) -> str:
    """Return the path, or name, of a part without its hash; any other path as it is."""
    folder, slash, name = path.rpartition("/")
    match = _PART_NAME.fullmatch(name)
    return path if match is None else f"{folder}{slash}{match['stem']}.parquet"


def data_prefix(table_name: str) -> str:
    """Return the folder of a table's parts. The table's Iceberg location is the folder above."""
    return f"{TABLES_PREFIX}/{table_name}/data"


def is_table_file(path: str) -> bool:
    """Return whether a file has the name of one of an Iceberg table; the path is below the table's location."""
    return _TABLE_FILE.fullmatch(path) is not None


def is_own_path(path: str) -> bool:
    """Return whether an object has the name of a part, of a copy of the ledger, or of one that tests a store."""
    return _OWN.fullmatch(path) is not None


def to_ledger_path(sha256: str) -> str:
    """Return the path of a copy of the ledger."""
    return f"{LEDGERS_PREFIX}/{sha256}.sqlite"
