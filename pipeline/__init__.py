"""scanlake: a complete, queryable, provable copy of everything a file and scan service holds."""

from pipeline.version import __version__

__all__ = ["__version__"]
