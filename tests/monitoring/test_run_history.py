"""What is remembered from run to run."""

from __future__ import annotations

import multiprocessing
import resource
import signal
from datetime import UTC, datetime, timedelta
from pathlib import Path

from pipeline.lake.lake_folder import RUN_STATS
from pipeline.lake.ledger import Ledger
from pipeline.monitoring.run_history import RunResult, read_run_stats, update_run_stats
from tests.lake.corruption import exhausted_descriptors

STARTED_AT = datetime(2026, 1, 1, tzinfo=UTC)
FAILED = RunResult(Path("lake"), code=7, reason="why")
WENT_WELL = {"requests": {"list": 2, "detail": 5}, "retries": 1, "files_stored": 5, "lake": {"files": 9}}


def count(lake: Path, *codes: int) -> None:
    """Count runs in, as a process of its own would."""
    for code in codes:
        told = {} if code else WENT_WELL
        with update_run_stats(lake) as record:
            run = RunResult(lake, code=code, reason="why", result=told, started_at=STARTED_AT, seconds=2.0)
            record.add_run(run)


def test_counts_go_on_from_process_to_process(tmp_path: Path) -> None:
    """Each process finds what the ones before have counted; facts of the last good run stay through failures."""
    count(tmp_path, 0, 1)
    count(tmp_path, 1, 5)
    record = read_run_stats(tmp_path)
    assert record.runs == {"0": 1, "1": 2, "5": 1}
    last_success = STARTED_AT + timedelta(seconds=2)
    assert (record.failures, record.reason, record.last_code, record.last_success) == (2, "why", 5, last_success)
    assert (record.requests, record.lake) == ({"list": 2, "detail": 5}, {"files": 9})
    count(tmp_path, 0)
    record = read_run_stats(tmp_path)
    assert (record.failures, record.reason, record.fetched, record.retries) == (0, "", 10, 2)


def test_processes_side_by_side_lose_no_count(tmp_path: Path) -> None:
    """A run that finds the lake busy counts itself while the other one ends."""
    (lake := tmp_path / "lake").mkdir()  # measured processes write files of their own beside it
    forked = multiprocessing.get_context("fork")
    processes = [forked.Process(target=count, args=(lake, *([5] * 50))) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert read_run_stats(lake).runs == {"5": 200}


def test_a_torn_file_costs_the_counts_alone(tmp_path: Path) -> None:
    """Whatever a run that was killed left in the file, the next one counts from where it can."""
    for torn in (b"", b'{"runs":{"0"', b"\0" * 9000, b'{"runs":7}'):
        (tmp_path / RUN_STATS).write_bytes(torn)
        count(tmp_path, 0)
        assert read_run_stats(tmp_path).runs == {"0": 1}, torn


def test_a_full_disk_can_be_remembered(tmp_path: Path) -> None:
    """Where no file may grow, what is there is written over: else each run would tell of the full disk anew."""
    count(tmp_path, 0)
    size = (tmp_path / RUN_STATS).stat().st_size
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        count(tmp_path, 7, 7)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    record = read_run_stats(tmp_path)
    assert (record.runs, record.failures) == ({"0": 1, "7": 2}, 2)
    assert (tmp_path / RUN_STATS).stat().st_size == size


def test_where_no_file_can_be_nothing_is_left(tmp_path: Path) -> None:
    """A lake that cannot be made leaves nothing behind, nor does one of which no file can be opened.

    A file of others stays as it is.
    """
    with update_run_stats(tmp_path / "none") as record:
        record.add_run(FAILED)
    assert record.failures == 1
    assert not list(tmp_path.iterdir())
    Ledger(tmp_path / "ledger.sqlite").close()
    with exhausted_descriptors(), update_run_stats(tmp_path) as record:
        record.add_run(FAILED)
    assert record.failures == 1
    assert not (tmp_path / RUN_STATS).exists()
    (tmp_path / RUN_STATS).write_text("mine")
    with update_run_stats(tmp_path) as record:
        record.add_run(FAILED)
    assert (record.failures, (tmp_path / RUN_STATS).read_text()) == (1, "mine")
