"""Paths that name the same folder whatever the current folder is."""

from __future__ import annotations

from pathlib import Path


def resolve_parents(path: Path) -> Path:
    """Return the path without `..`. Links before the last `..` are followed, later ones stay."""
    if ".." not in path.parts:
        return path
    end = len(path.parts) - path.parts[::-1].index("..")
    return Path(*path.parts[:end]).resolve().joinpath(*path.parts[end:])
