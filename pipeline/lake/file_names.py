"""Names of files: of parts and snapshots in a lake, in folders to hand over, safe ones for texts. Nothing is opened."""

from __future__ import annotations

import re
import unicodedata
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pipeline.lake.layout import LakeLayout

_PART_FOLDER_RE: Final = re.compile(r"documents|tables/\w+", re.ASCII)
_PART_NAME_RE: Final = re.compile(r"\d{12}-[0-9a-f]{6}(-\d{4})?\.parquet")
_MAX_PART_BYTES: Final = 150  # of 255: a number, the extension and the name of a temporary file need room
_MAX_PART_CHARACTERS: Final = 100
_RESERVED_NAMES: Final = frozenset(  # of Windows, with every suffix
    ["CON", "PRN", "AUX", "NUL", *(f"{name}{number}" for name in ("COM", "LPT") for number in "0123456789¹²³")]
)
_SNAPSHOT_NAME_RE: Final = re.compile(r"\d{6,}\.duckdb")
IMAGES: Final = "images"
"""Name of the folder in the lake."""
INCOMING: Final = "incoming"
"""Name of the folder in it where downloads arrive."""
_IMAGE: Final = re.compile(rf"{IMAGES}/[0-9a-f]{{2}}/[0-9a-f]{{62}}\.[a-z0-9]+")
COMPLETE: Final = re.compile(r"(-?\d{1,19})\.(-?\d{1,19})\.(image|thumbnail)\.([0-9a-f]{64})")
"""A complete download: file, upload, kind and hash."""
MANIFEST: Final = "manifest.csv"
"""Name of the list of the files in a folder that is handed over."""
SUMS: Final = "SHA256SUMS"
"""Name of their checksums."""


def list_files(layout: LakeLayout, *patterns: str) -> list[Path]:
    """Return the files below the lake's folder that match a pattern."""
    return [path for pattern in patterns for path in layout.root.glob(pattern)]


def list_part_files(layout: LakeLayout) -> list[Path]:
    """Return the files whose names are those of parts."""
    return [path for path in list_files(layout, "tables/*/*", "documents/*") if is_part_name(path.name)]


def is_part_name(name: str) -> bool:
    """Return whether a file has the name of a part."""
    return _PART_NAME_RE.fullmatch(name) is not None


def is_part_path(path: str) -> bool:
    """Return whether a path below the lake's folder is that of a part. No such path leads out of the folder."""
    folder, _, name = path.rpartition("/")
    return _PART_FOLDER_RE.fullmatch(folder) is not None and is_part_name(name)


def list_snapshots(layout: LakeLayout) -> list[tuple[int, Path]]:
    """Return the kept snapshots with their numbers, oldest first."""
    files = [path for path in layout.root.glob("snapshots/*.duckdb") if _SNAPSHOT_NAME_RE.fullmatch(path.name)]
    return sorted((int(path.stem), path) for path in files)


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


# Pictures


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
