"""Names of the pictures in a lake's folder. Nothing is opened."""

from __future__ import annotations

import re
from typing import Final

IMAGES: Final = "images"
"""Name of the folder in the lake."""
INCOMING: Final = "incoming"
"""Name of the folder in it where downloads arrive."""
COMPLETE: Final = re.compile(r"(-?\d{1,19})\.(-?\d{1,19})\.(image|thumbnail)\.([0-9a-f]{64})")
"""A complete download: file, upload, kind and hash."""
_STORED: Final = re.compile(r"images/[0-9a-f]{2}/[0-9a-f]{62}\.[a-z0-9]{1,8}")


def is_stored_name(name: str) -> bool:
    """Return whether a path below the lake's folder is that of a picture."""
    return _STORED.fullmatch(name) is not None


def is_incoming_name(name: str) -> bool:
    """Return whether a path below the lake's folder is a complete download of a killed run."""
    folder, _, file = name.rpartition("/")
    return folder == f"{IMAGES}/{INCOMING}" and COMPLETE.fullmatch(file) is not None
