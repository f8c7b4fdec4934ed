"""The parts and snapshots in a lake's folder, by their names. Nothing is opened."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

    from pipeline.lake.layout import LakeLayout

_PART_NAME_RE: Final = re.compile(r"\d{12}-[0-9a-f]{6}(-\d{4})?\.parquet")
_SNAPSHOT_NAME_RE: Final = re.compile(r"\d{6,}\.duckdb")


def list_files(layout: LakeLayout, *patterns: str) -> list[Path]:
    """Return the files below the lake's folder that match a pattern."""
    return [path for pattern in patterns for path in layout.root.glob(pattern)]


def list_part_files(layout: LakeLayout) -> list[Path]:
    """Return the files whose names are those of parts."""
    return [path for path in list_files(layout, "parts/*/*", "raw/*") if is_part_name(path.name)]


def is_part_name(name: str) -> bool:
    """Return whether a file has the name of a part."""
    return _PART_NAME_RE.fullmatch(name) is not None


def list_snapshots(layout: LakeLayout) -> list[tuple[int, Path]]:
    """Return the kept snapshots with their numbers, oldest first."""
    files = [path for path in layout.root.glob("snapshots/*.duckdb") if _SNAPSHOT_NAME_RE.fullmatch(path.name)]
    return sorted((int(path.stem), path) for path in files)
