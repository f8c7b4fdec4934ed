"""The pure parts of a verify, with values."""

from __future__ import annotations

from pipeline.crawl.windows import ALL_TIME, Window
from pipeline.sync.differences import SeenFiles, plan_repair_windows, select_rotating_share
from schemas.timestamps import SECOND
from tests.rows import every


@every("share", [0.1, 0.25, 0.3, 0.999])
def test_rotating_shares_select_every_file(share: float) -> None:
    """Calls that pass the position on select all files before the rotation begins again."""
    files, seen, position = range(1, 5_000), set(), 0
    for _ in range(-(-1_000 // round(share * 1_000))):
        selected, position = select_rotating_share(files, position=position, share=share)
        assert len(selected) <= len(files)
        seen |= set(selected)
    assert seen == set(files)


def test_a_share_continues_at_its_position_and_wraps() -> None:
    """A share begins at the position, continues at bucket 0 after the last one, and keeps the order of the files."""
    selected, position = select_rotating_share([1_050, 950, 10, 500], position=900, share=0.2)
    assert (selected, position) == ([1_050, 950, 10], 100)


def test_a_full_share_ignores_the_position() -> None:
    """All files are selected, from any position."""
    assert select_rotating_share([1, 999, 500], position=700, share=1.0)[0] == [1, 999, 500]


def test_seen_files_counts_each_file_once() -> None:
    """A file that is listed twice counts once; unknown files do not count."""
    files = SeenFiles([2, 4, 6])
    for file_id in (4, 4, 5, 6):
        files.mark_seen(file_id)
    assert (len(files), files.seen_count, files.list_unseen()) == (3, 2, [2])


def test_repair_windows_merge_close_updates() -> None:
    """Updates at most three seconds apart share a window; too many windows, or an unknown time, become all time."""
    updates = [10 * SECOND, 12 * SECOND + 5, 100 * SECOND]
    assert plan_repair_windows(updates, max_windows=2) == [Window(10, 13), Window(100, 101)]
    assert plan_repair_windows(updates, max_windows=1) == [ALL_TIME]
    assert plan_repair_windows([10 * SECOND, None], max_windows=9) == [ALL_TIME]
    assert plan_repair_windows([], max_windows=1) == []
