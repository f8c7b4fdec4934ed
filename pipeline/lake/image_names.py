"""Names of the pictures in a lake's folder. Nothing is opened."""

from __future__ import annotations

import re
from typing import Final

IMAGES: Final = "images"
"""Name of the folder in the lake."""
INCOMING: Final = "incoming"
"""Name of the folder in it where downloads arrive."""
_IMAGE: Final = re.compile(rf"{IMAGES}/[0-9a-f]{{2}}/[0-9a-f]{{62}}\.[a-z0-9]+")
COMPLETE: Final = re.compile(r"(-?\d{1,19})\.(-?\d{1,19})\.(image|thumbnail)\.([0-9a-f]{64})")
"""A complete download: file, upload, kind and hash."""


def name_image(sha256: str, extension: str) -> str:
    """Return the path of a picture below the lake's folder."""
    return f"{IMAGES}/{sha256[:2]}/{sha256[2:]}.{extension}"


def is_image_folder(name: str) -> bool:
    """Return whether a name in the folder of images is that of a folder of scanlake."""
    return name == INCOMING or re.fullmatch("[0-9a-f]{2}", name) is not None


def is_image_path(path: str) -> bool:
    """Return whether a path below the lake's folder is that of an image. No such path leads out of the folder."""
    return _IMAGE.fullmatch(path) is not None


def is_strange_incoming(name: str) -> bool:
    """Return whether a path below the lake's folder is where downloads arrive, but no complete download."""
    folder, _, file = name.rpartition("/")
    return folder == f"{IMAGES}/{INCOMING}" and COMPLETE.fullmatch(file) is None
