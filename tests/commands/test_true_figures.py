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
    assert '\nnext       scanlake query "FROM meta.rejects" lists the rejects; every run retries them\n' in first.out
    assert "\nverify (due every 1e-06 days):\n7 files in the service's list, 7 in the lake\n" in second.out
    assert f"  1 deleted in the service (now in deleted_files): {gone}\n" in second.out


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


async def test_a_left_out_include_is_said(tmp_path: Path) -> None:
    """Where forms are left out and only the list has them, sync warns, meta.freshness says so, and verify names it."""
    async with Emulator(15, seed=SEED) as emulator:
        given = variables(emulator) | {"SCANLAKE_INCLUDES": "uploads,fields,locations,workflows"}
        warned = await called(tmp_path, "sync", **given)
        assert "include.left_out" in warned.err
        assert "forms" in warned.err
        assert asked(tmp_path, "SELECT missing_includes FROM meta.freshness") == [("geocoding, forms",)]
        verified = await called(tmp_path, "verify", "--deep", "1", **given)
        assert "without geocoding and forms" in verified.out
        judged = await called(tmp_path, "verify", "--json", **given)
        assert judged.json["missing_includes"] == ["geocoding", "forms"]
        emulator.set_quirks(detail_forms="yes")  # now details make up for it
        complete = await called(tmp_path, "sync", "--full", **given | {"SCANLAKE_INCLUDES": "uploads,geocoding"})
        assert "include.left_out" not in complete.err
        found = asked(tmp_path, "SELECT missing_includes, (SELECT count(*) > 0 FROM form_submits) FROM meta.freshness")
        assert found == [(None, True)]


async def test_strict_ends_a_run_at_the_first_new_misfit(tmp_path: Path) -> None:
    """With --strict a value that does not fit ends the run by name; a kind that the lake knows does not."""
    async with Emulator(30, seed=SEED, quirks=make_quirks(settings={"flags": "string"})) as emulator:
        given = variables(emulator)
        assert (await called(tmp_path, "sync", "--set", "strict=true", **given)).code == 0
        emulator.set_quirks(decimals="comma")
        emulator.world.update(emulator.world.pick_random(5))
        refused = await called(tmp_path, "sync", "--set", "strict=true", **given)
        assert refused.code == 6
        assert "uploads.latitude" in refused.err
        assert "Run without strict" in refused.err
        assert (await called(tmp_path, "sync", **given)).code == 0
        misfits = "SELECT DISTINCT table_name, column_name, reason FROM meta.misfits WHERE contains(value, ',')"
        assert sorted(asked(tmp_path, misfits)) == [
            ("uploads", "latitude", "not a number"),
            ("uploads", "longitude", "not a number"),
        ]
        emulator.world.update(emulator.world.pick_random(5))
        known = await called(tmp_path, "sync", "--set", "strict=true", **given)
        assert known.code == 0, known.err
