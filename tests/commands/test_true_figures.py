"""What people conclude from a run: figures, warnings and records that say what is so."""

from __future__ import annotations

from typing import TYPE_CHECKING

import duckdb

from pipeline.emulator import Emulator, make_quirks
from tests.commands.cli_process import called, variables
from tests.constants import set_run_constants

if TYPE_CHECKING:
    from pathlib import Path

SEED = 23


def asked(folder: Path, sql: str) -> list[tuple[object, ...]]:
    """The rows of a query on the folder's lake, as a stock client reads them."""
    with duckdb.connect(str(folder / "lake" / "catalog.duckdb"), read_only=True) as db:
        return db.execute(sql).fetchall()


async def test_a_sync_says_what_came_in(tmp_path: Path) -> None:
    """In every mode summary, JSON and meta.runs count the files that came in: added and changed are its versions."""
    async with Emulator(70, seed=SEED) as emulator:
        given = variables(emulator)
        first = await called(tmp_path, "sync", **given, SCANLAKE_FETCH_DETAILS="never")
        assert "70 files fetched (70 new), 0 unchanged" in " ".join(first.out.split())
        counted = [(70, 0)]
        for mode, created in (("never", 0), ("changed", 3), ("always", 2)):
            emulator.world.update(emulator.world.pick_random(7))
            emulator.world.create(created)
            result = (await called(tmp_path, "sync", "--json", **given, SCANLAKE_FETCH_DETAILS=mode)).json
            stored, delta = result["files_stored"], result["delta"]
            assert delta["added"] + delta["changed"] == stored
            assert mode != "never" or (stored, delta["changed"], result["details_fetched"]) == (7, 7, 0)
            assert asked(tmp_path, f"SELECT count(*) FROM files WHERE _run_id = '{result['run_id']}'") == [(stored,)]
            counted.append((stored, result["details_fetched"]))
    assert asked(tmp_path, "SELECT files_stored, details_fetched FROM meta.runs ORDER BY started_at") == counted


async def test_a_sync_says_what_did_not_come_in(tmp_path: Path) -> None:
    """Files that cannot be fetched are counted by reason; a verification that was due says what it has found."""
    async with Emulator(8, seed=SEED) as emulator:
        given = variables(emulator) | set_run_constants(max_attempts=1)
        emulator.set_faults(poison=(emulator.world.keys()[0],))
        first = await called(tmp_path, "sync", **given)
        emulator.set_faults(poison=())
        (gone,) = emulator.world.delete(emulator.world.keys()[:1])
        second = await called(tmp_path, "sync", **given, SCANLAKE_VERIFY_EVERY_DAYS="0.000001")
    assert (first.code, second.code) == (4, 0), first.err + second.err
    assert f"\nrejects    1; 1 x detail: GET /files/{gone}: HTTP 500: Error 500 (after 1 attempt).\n" in first.out
    assert '\nnext       scanlake query "FROM meta.rejects" lists the rejects; every run retries files\n' in first.out
    assert "\nverify (due every 1e-06 days):\n7 files in the service's list, 7 in the lake\n" in second.out
    assert f"  1 deleted in the service (now in deleted_files): {gone}\n" in second.out


async def test_a_sync_says_what_it_could_not_see(tmp_path: Path) -> None:
    """Files that the list counts and no page shows: exit code 4, the status names them, and the watermark waits."""
    quirks = make_quirks("seen", {"order": "shuffled", "list_cache_seconds": 1e6})  # pages that never fit together
    async with Emulator(120, seed=SEED, quirks=quirks) as emulator:
        given = variables(emulator)
        hidden, untimed = emulator.world.keys()[:50], emulator.world.keys()[50:52]
        emulator.world.lose_index(hidden)
        first = await called(tmp_path, "sync", "--json", **given)
        status = (await called(tmp_path, "status", **given)).out
        count = first.json["unproven"]
        assert (first.code, first.json["watermark"], count > 0) == (4, None, True)
        told = f"The service's list counts {count} files that are on none of its pages; the watermark waits."
        assert told in status.splitlines()
        assert "Everything updated before" not in status
        emulator.set_quirks(list_cache_seconds=0.0)
        emulator.world.lose_times(untimed)
        second = await called(tmp_path, "sync", "--json", **given)
        status = (await called(tmp_path, "status", **given)).out
    assert (second.code, second.json["unproven"]) == (0, 0)
    assert "Everything updated before" in status
    assert "none of its pages" not in status
    assert "\n2 files may have changed since the fetch: the next syncs fetch them again.\n" in status


async def test_shares_and_reports_take_no_snapshot(tmp_path: Path) -> None:
    """Links and reports are in meta at once, and push no snapshot out: rollback reaches as far as before."""
    async with Emulator(12, seed=SEED) as emulator:
        given = variables(emulator) | {"SCANLAKE_KEEP_SNAPSHOTS": "2", "SCANLAKE_RETENTION_HOURS": "0"}
        await called(tmp_path, "sync", **given)
        emulator.world.update(emulator.world.pick_random(2))
        await called(tmp_path, "sync", **given)
        before = asked(tmp_path, "SELECT snapshot FROM meta.freshness")
        earlier = sorted(path.name for path in (tmp_path / "lake" / "snapshots").iterdir())
        ((reference,),) = asked(tmp_path, "SELECT min(scan_code) FROM files")
        assert (await called(tmp_path, "share", str(reference), **given)).code == 0
        report = await called(tmp_path, "report", "--where", "TRUE", "--out", "audit", **given)
        assert report.code == 0, report.err
        assert asked(tmp_path, "SELECT snapshot FROM meta.freshness") == before
        assert sorted(path.name for path in (tmp_path / "lake" / "snapshots").iterdir()) == earlier
        assert asked(tmp_path, "SELECT count(*) FROM meta.shares") == [(1,)]
        assert asked(tmp_path, "SELECT count(*) FROM meta.report_files") == [(12,)]
        check = await called(tmp_path, "check", **given)
        assert check.code == 0, check.out + check.err
        oldest = int(earlier[0].partition(".")[0])
        assert (await called(tmp_path, "rollback", str(oldest), "--yes", **given)).code == 0
