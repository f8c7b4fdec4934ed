"""Owner of a location: the one catalog of one lake whose Iceberg tables are below it.

Tables of two catalogs with the same names have the same folders, and a sweep of one would delete the files of the
other. So the first publish creates an object that names the owner, and every later one compares it.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Final

import msgspec

from pipeline.errors import PublishError, SettingsError
from pipeline.publish.target_layout import LATEST, OWNER

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pipeline.publish.iceberg_files import StoreFileIO

_USER: Final = re.compile(r"//[^/@]*@")
_SQLITE_PATH: Final = re.compile(r"(sqlite(?:\+\w+)?:///)([^?]+)")
_NO_PATH: Final = (":memory:", "file:")


@dataclass(frozen=True, slots=True)
class CatalogId:
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


@dataclass(frozen=True, slots=True)
class LocationOwner:
    """Content of `iceberg-owner.json`."""

    lake_id: str
    catalog: CatalogId
    format: int = 1


@dataclass(frozen=True, slots=True)
class _LatestLake:
    lake_id: str


def claim_locations(io: StoreFileIO, roots: Iterable[str], owner: LocationOwner) -> None:
    """Make `owner` the owner of each location (a URL), if it has none. Raises `SettingsError` if another has it."""
    for root in sorted(roots):
        store, path = io.find_object(f"{root}/{OWNER}")
        stored = store.read_versioned(path)
        if stored is None:
            _check_mirror(io, root, owner.lake_id)
            if store.create(path, msgspec.json.format(msgspec.json.encode(owner), indent=1)):
                continue
            stored = store.read_versioned(path)
        if stored is not None and (existing := read_owner(stored[0], root)) != owner:
            raise _refuse(root, existing, owner)


def read_owner(content: bytes, root: str) -> LocationOwner:
    """Return the owner that an object names. Raises `PublishError` if it is not an object of scanlake."""
    try:
        return msgspec.json.decode(content, type=LocationOwner)
    except msgspec.DecodeError as error:
        raise PublishError(f"{root}/{OWNER} is not an object of scanlake.", hint="Use another location.") from error


def _check_mirror(io: StoreFileIO, root: str, lake_id: str) -> None:
    """Raise `SettingsError` if the location has the mirror of another lake, whose sweep deletes unknown parts."""
    store, path = io.find_object(f"{root}/{LATEST}")
    stored = store.read_versioned(path)
    if stored is None:
        return
    try:
        mirrored = msgspec.json.decode(stored[0], type=_LatestLake).lake_id
    except msgspec.DecodeError as error:
        raise PublishError(f"{root}/{LATEST} is not an object of scanlake.", hint="Use another location.") from error
    if mirrored != lake_id:
        raise SettingsError(
            f"{root} has the mirror of another lake ({mirrored[:8]}, not {lake_id[:8]}).",
            hint="Use another iceberg_location; each lake needs its own.",
        )


def _refuse(root: str, existing: LocationOwner, owner: LocationOwner) -> SettingsError:
    if existing.lake_id != owner.lake_id:
        return SettingsError(
            f"{root} has the Iceberg tables of another lake ({existing.lake_id[:8]}, not {owner.lake_id[:8]}).",
            hint="Use another iceberg_location; each lake needs its own.",
        )
    named = f"{existing.catalog.catalog}, namespace {existing.catalog.namespace or '-'}"
    return SettingsError(
        f"{root} has the Iceberg tables of another catalog ({named}).",
        hint=f"Use another iceberg_location; if only the catalog's address has changed, delete {OWNER} there.",
    )
