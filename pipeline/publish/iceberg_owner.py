"""Owner of a location: the one catalog of one lake whose Iceberg tables are below it.

Tables of two catalogs with the same names have the same folders, and a sweep of one would delete the files of the
other. So the first publish creates an object that names the owner, and every later one compares it.
"""

from __future__ import annotations

import os
import re
from hashlib import sha256
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from pipeline.errors import SettingsError
from pipeline.publish.store_records import FORMAT, encode_record, read_record, refuse_other_lake, require_lake
from pipeline.publish.target_layout import LATEST, OWNER

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pipeline.publish.iceberg_files import StoreFileIO

_USER: Final = re.compile(r"//[^/@]*@")
_SQLITE_PATH: Final = re.compile(r"(sqlite(?:\+\w+)?:///)([^?]+)")
_NO_PATH: Final = (":memory:", "file:")


class CatalogId(Struct, frozen=True):
    """A catalog: its kind, its namespace, and the digest of its URI without user and password."""

    catalog: str = "none"
    namespace: str = ""
    uri_digest: str = ""

    @classmethod
    def from_uri(cls, catalog: str, namespace: str, uri: str) -> CatalogId:
        """Return the id of a catalog at a URI. A relative path of SQLite is below the current folder."""
        uri = _SQLITE_PATH.sub(_to_absolute, _USER.sub("//", uri))
        return cls(catalog, namespace, sha256(uri.encode()).hexdigest()[:12])


def _to_absolute(uri: re.Match[str]) -> str:
    return uri[0] if uri[2].startswith(_NO_PATH) else uri[1] + os.path.realpath(uri[2])


class LocationOwner(Struct, frozen=True):
    """Content of `iceberg-owner.json`."""

    lake_id: str
    catalog: CatalogId
    format: int = FORMAT


def claim_locations(io: StoreFileIO, roots: Iterable[str], owner: LocationOwner) -> None:
    """Make `owner` the owner of each location (a URL), if it has none. Raises `SettingsError` if another has it."""
    for root in sorted(roots):
        store = io.open_root(root)
        existing, _ = read_record(store, OWNER, LocationOwner)
        if existing is None:
            require_lake(store, LATEST, owner.lake_id, "the mirror")  # its sweep deletes unknown parts
            if store.create(OWNER, encode_record(owner)):
                continue
            existing, _ = read_record(store, OWNER, LocationOwner)
        if existing is not None and existing != owner:
            refuse_other_lake(store, existing.lake_id, owner.lake_id, "Iceberg tables")
            named = f"{existing.catalog.catalog}, namespace {existing.catalog.namespace or '-'}"
            raise SettingsError(
                f"{root} has the Iceberg tables of another catalog ({named}).",
                hint=f"Use another iceberg_location; if only the catalog's address has changed, delete {OWNER} there.",
            )
