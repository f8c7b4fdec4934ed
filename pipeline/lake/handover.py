"""Folders that are handed over: the names and the form of their manifest and checksums."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import Struct, field

if TYPE_CHECKING:
    from collections.abc import Mapping

MANIFEST: Final = "manifest.csv"
SUMS: Final = "SHA256SUMS"
NO_LINK: Final = "unlinked"
"""State of an upload that has no link to an image, so none can be downloaded."""


class ExportedImages(Struct):
    """The images in a folder. `missing` counts those that are not there, by state.

    Uploads without a link have no image, so they are in the folder's manifest.csv, but not counted as missing.
    """

    folder: str
    exported: int = 0
    bytes: int = 0
    missing: dict[str, int] = field(default_factory=dict)


def format_sums(sums: Mapping[str, str]) -> str:
    """Return SHA256SUMS of files by name."""
    return "".join(f"{sha256}  {name}\n" for name, sha256 in sorted(sums.items()))
