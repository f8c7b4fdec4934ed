"""Runs: the place where crawl, flatten and lake meet."""

from pipeline.runs.session import make_client
from pipeline.runs.sync import Range, Summary, sync

__all__ = ["Range", "Summary", "make_client", "sync"]
