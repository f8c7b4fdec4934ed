"""Folders of images that are handed over, as their writer and the check of an audit know them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from msgspec import Struct, field

if TYPE_CHECKING:
    from collections.abc import Mapping

MANIFEST: Final = "manifest.csv"
SUMS: Final = "SHA256SUMS"
NO_LINK: Final = "unlinked"
"""State of an upload that has no link to an image, so none can be downloaded."""
_LINE: Final = re.compile(r"([0-9a-f]{64})  (.+)")


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


def parse_sums(text: str) -> dict[str, str]:
    """Return the SHA-256 by name in SHA256SUMS. Other lines are left out."""
    lines = map(_LINE.fullmatch, text.split("\n"))
    return {line[2]: line[1] for line in lines if line is not None}
