"""Folders of exported images, as their writer and the verification of an audit know them."""

from __future__ import annotations

import re
from typing import Final

MANIFEST: Final = "manifest.csv"
SUMS: Final = "SHA256SUMS"
STORED: Final = "stored"
NO_LINK: Final = "unlinked"
"""State of an upload that has no link to an image, so none can be downloaded."""
_LINE: Final = re.compile(r"([0-9a-f]{64})  (.+)")


def parse_sums(text: str) -> list[tuple[str, str]]:
    """Return name and SHA-256 of each line of SHA256SUMS. Other lines are left out."""
    lines = map(_LINE.fullmatch, text.split("\n"))
    return [(line[2], line[1]) for line in lines if line is not None]
