"""Numbers in sentences."""

from __future__ import annotations


def many(count: int, word: str) -> str:
    """`1 file`, `2,000 files`; `word` is the singular."""
    return f"{count:,} {word}" if count == 1 else f"{count:,} {word}s"
