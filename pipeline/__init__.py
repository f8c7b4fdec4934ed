"""scanlake: a complete, queryable, provable copy of everything a file and scan service holds."""

__version__ = "0.1.0"
