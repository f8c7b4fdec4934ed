"""The version of scanlake."""

__version__ = "0.1.0"
