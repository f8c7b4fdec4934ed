"""Which snapshots stay, and that their parts do."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import duckdb
from hypothesis import given
from hypothesis import strategies as st

from pipeline.lake.lake import Lake
from pipeline.lake.retention import expire_snapshots, select_kept
from pipeline.lake.storage.layout import list_part_files, list_snapshots
from pipeline.settings.settings import Settings
from schemas.timestamps import SECOND, from_datetime, to_datetime
from tests.lake.lake_builder import AT, commit
from tests.lake.operations import compact_all, told

if TYPE_CHECKING:
    from pathlib import Path

_DAY = 24 * 3_600
_START = from_datetime(datetime(2026, 1, 1, tzinfo=UTC)) // SECOND
_NOW = _START + 800 * _DAY
_COUNTS = st.integers(0, 9)
_RULES = st.builds(
    Settings,
    keep_snapshots=st.integers(1, 9),
    keep_daily=_COUNTS,
    keep_weekly=_COUNTS,
    keep_monthly=_COUNTS,
)
_HISTORIES = st.lists(st.integers(_START, _NOW), max_size=40, unique=True).map(
    lambda seconds: [(number, at * SECOND) for number, at in enumerate(sorted(seconds), 1)]
)


@given(_HISTORIES, _RULES)
def test_the_rules_keep_what_they_say(history: list[tuple[int, int]], rules: Settings) -> None:
    """The newest stay, and the newest of each period."""
    kept, newest = select_kept(history, rules), rules.keep_snapshots
    assert list(kept) == sorted(kept)
    assert all(kept.values())
    assert {number for number, why in kept.items() if "newest" in why} == {n for n, _ in history[-newest:]}
    assert {number for number, why in kept.items() if "current" in why} == {n for n, _ in history[-1:]}
    for reason, spelled, count in (
        ("daily", "%Y-%m-%d", rules.keep_daily),
        ("weekly", "%G-%V", rules.keep_weekly),
        ("monthly", "%Y-%m", rules.keep_monthly),
    ):
        last_of = {f"{to_datetime(at):{spelled}}": number for number, at in history}
        expected = sorted(last_of.values(), reverse=True)[:count]
        assert {number for number, why in kept.items() if reason in why} == set(expected)


@given(_HISTORIES, _RULES, st.integers(0, 40))
def test_a_snapshot_that_went_is_not_missed_later(history: list[tuple[int, int]], rules: Settings, end: int) -> None:
    """Deleting early changes nothing: what the rules keep of the rest is what they would keep of all."""
    early = history[:end]
    kept_early = select_kept(early, rules)
    rest = [item for item in history if item[0] in kept_early or item not in early]
    assert set(select_kept(rest, rules)) == set(select_kept(history, rules))


@given(_HISTORIES, _RULES)
def test_more_to_keep_deletes_nothing(history: list[tuple[int, int]], rules: Settings) -> None:
    """Calendar rules only add to what stays without them."""
    plain = Settings(keep_snapshots=rules.keep_snapshots, keep_daily=0)
    assert set(select_kept(history, plain)) <= set(select_kept(history, rules))


def test_the_newest_of_days_and_months_can_be_read_and_purged(tmp_path: Path) -> None:
    """Daily and monthly snapshots stay, the parts that only they name go, and a purge removes all."""
    lake, day = tmp_path / "lake", _DAY * SECOND
    october = from_datetime(datetime(2026, 10, 12, 12, tzinfo=UTC))
    with Lake(lake, doing="test") as made:
        for number, days in enumerate((0, 0.1, 20, 20.1, 40, 40.1), 1):
            commit(made, {9: number, number: 0})
            made.publish("", at=int(october + days * day), complete=True, watermark=AT)
            compact_all(made, Settings(keep_snapshots=99, keep_raw_versions=1))
        rules = Settings(keep_snapshots=1, retention_hours=0, keep_daily=2, keep_monthly=3)
        expire_snapshots(made.layout, made.ledger, rules)
        layout = made.layout
        kept = [number for number, _ in list_snapshots(layout)]
        assert kept == [2, 4, 6]  # the newest of October 12, November 1 and November 21
        named = {part.name for part in made.ledger.parts()}
        for number in kept:
            with duckdb.connect(str(layout.snapshot_path(number)), read_only=True) as db:
                assert db.sql("SELECT count(*) FROM files").fetchall() == [(number + 1,)]
    with Lake(lake, doing="test") as made:  # which deletes what was replaced
        assert {layout.part_name(path) for path in list_part_files(layout)} == named == made.ledger.part_names()
    rules_now: dict[str, Any] = {
        "SCANLAKE_KEEP_MONTHLY": "2",
        "SCANLAKE_KEEP_SNAPSHOTS": "1",
        "SCANLAKE_KEEP_DAILY": "0",
    }
    listed = json.loads(told(lake, "snapshots", "--json", **rules_now))["snapshots"]
    reasons = {row["snapshot"]: row["kept_as"] for row in listed}
    assert reasons == {1: None, 2: ["monthly"], 3: None, 4: [], 5: None, 6: ["current", "newest", "monthly"]}
    words = told(lake, "snapshots", COLUMNS="100", **rules_now)
    assert re.search(r"^ *2 .* kept +monthly ", words, re.MULTILINE)
    assert re.search(r"^ *4 .* kept +until the next sync ", words, re.MULTILINE)
    assert re.search(r"^ *6 .* kept +current, monthly ", words, re.MULTILINE)
    told(lake, "purge", "9", "--yes", SCANLAKE_KEEP_MONTHLY="2")
    assert len(list_snapshots(layout)) == 1
    assert named.isdisjoint(layout.part_name(path) for path in list_part_files(layout))
