"""What a run's end can say of the run and the lake, cheaply: from the ledger, without opening the catalog."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from pipeline.progress import Standing
from schemas.instants import SECOND

if TYPE_CHECKING:
    from pathlib import Path

    from pipeline.lake.lake import Lake
    from pipeline.progress import Stage

_REASONS: Final = 20


@dataclass(frozen=True, slots=True)
class Before:
    """How a lake stood before a run: files that readers saw, and the number of the next commit."""

    files: int
    seq: int

    @classmethod
    def of(cls, lake: Lake) -> Before:
        """The lake as it stands."""
        shown = lake.ledger.last_snapshot()
        return cls(0 if shown is None else shown.files, lake.ledger.next_seq())


@dataclass(frozen=True, slots=True)
class Brought:
    """What a run brought, and at which pace: `rate` in requests a second where there is a limit, and why."""

    added: int
    changed: int
    rows: dict[str, int]  # by table
    rejected: dict[str, int]  # documents and files that this run could not take, by reason
    throttled: int = 0
    rate: float | None = None
    concurrency: int = 0
    why: str = ""

    def as_json(self) -> dict[str, Any]:
        """As a plain dict."""
        return asdict(self)


def brought(lake: Lake, before: Before, *, run_id: str, fetched: int, last: Stage | None) -> Brought:
    """What the run that has just ended brought; `last` is what it last said of its progress."""
    ledger = lake.ledger
    shown = ledger.last_snapshot()
    rows = ledger.query(
        "SELECT table_name, sum(rows) AS n FROM part WHERE seq_low >= ? GROUP BY table_name ORDER BY table_name",
        (before.seq,),
    )
    reasons = ledger.query(
        "SELECT reason, count(*) AS n FROM reject WHERE run_id = ? GROUP BY reason ORDER BY n DESC, reason LIMIT ?",
        (run_id, _REASONS),
    )
    added = min(max(0, (0 if shown is None else shown.files) - before.files), fetched)
    pace = last if isinstance(last, Standing) else Standing()
    return Brought(
        added,
        fetched - added,
        {str(row["table_name"]): int(row["n"]) for row in rows},
        {str(row["reason"]): int(row["n"]) for row in reasons},
        pace.throttled,
        pace.pace,
        pace.at_once,
        pace.why,
    )


def lake_facts(lake: Lake) -> dict[str, Any]:
    """Of a lake that is held: files, rejects by reason, size in bytes, the last verify, the pace that was learned.

    Instants in seconds since 1970; what is not known is None.
    """
    ledger = lake.ledger
    shown = ledger.last_snapshot()
    deleted = ledger.query("SELECT count(*) AS n FROM file_version WHERE deleted")[0]["n"]
    reasons = ledger.query("SELECT reason, count(*) AS n FROM reject GROUP BY reason ORDER BY n DESC, reason")
    verify = ledger.query("SELECT verified_at, equal FROM verification ORDER BY verified_at DESC LIMIT 1")
    pace = ledger.fact("learned_pace") or {}
    return {
        "files": None if shown is None else shown.files,
        "deleted_files": int(deleted),
        "rejects": sum(int(row["n"]) for row in reasons),
        "rejects_by_reason": {str(row["reason"]): int(row["n"]) for row in reasons[:_REASONS]},
        "snapshot": None if shown is None else shown.snapshot,
        "horizon": None if shown is None or shown.horizon is None else shown.horizon / SECOND,
        "bytes": size_of(lake.layout.root),
        "verified_at": int(verify[0]["verified_at"]) / SECOND if verify else None,
        "verified_equal": bool(verify[0]["equal"]) if verify else None,
        "rate": pace.get("rate"),
        "concurrency": pace.get("concurrency"),
    }


def size_of(folder: Path) -> int:
    """Bytes that the files below a folder take; those that vanish meanwhile take none."""
    total, left = 0, [str(folder)]
    while left:
        try:
            with os.scandir(left.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        left.append(entry.path)
                    elif entry.is_file(follow_symlinks=False):
                        total += _bytes(entry)
        except OSError:
            continue
    return total


def _bytes(entry: os.DirEntry[str]) -> int:
    try:
        return entry.stat(follow_symlinks=False).st_size
    except OSError:
        return 0
