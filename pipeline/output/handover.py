"""A folder that is handed over: its list of files, their checksums, and names for every system."""

from __future__ import annotations

import re
import unicodedata
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

_MAX_PART_BYTES: Final = 150  # of 255: a number, the extension and the name of a temporary file need room
_MAX_PART_CHARACTERS: Final = 100
_RESERVED_NAMES: Final = frozenset(  # of Windows, with every suffix
    ["CON", "PRN", "AUX", "NUL", *(f"{name}{number}" for name in ("COM", "LPT") for number in "0123456789¹²³")]
)
MANIFEST: Final = "manifest.csv"
"""Name of the list of the files in a folder that is handed over."""
SUMS: Final = "SHA256SUMS"
"""Name of their checksums."""


def to_safe_part(text: str) -> str:
    """Return the text as a part of a path that is valid on every system; empty if nothing is left.

    Letters of any script stay. The part is short, not hidden, and no device of Windows.
    """
    composed = unicodedata.normalize("NFC", text)
    name = "".join(char if unicodedata.category(char)[0] in "LMN" or char in "._-" else "_" for char in composed)
    name = re.sub(r"\.{2,}", "_", re.sub("__+", "_", name))
    name = name[:_MAX_PART_CHARACTERS].encode()[:_MAX_PART_BYTES].decode("utf-8", "ignore").strip(".- ")
    return f"_{name}" if name.partition(".")[0].upper() in _RESERVED_NAMES else name


def format_sums(sums: Mapping[str, str]) -> str:
    """Return SHA256SUMS of files by name."""
    return "".join(f"{sha256}  {name}\n" for name, sha256 in sorted(sums.items()))
