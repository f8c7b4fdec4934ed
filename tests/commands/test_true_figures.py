"""What people conclude from a run: figures, warnings and records that say what is so."""

from __future__ import annotations

from typing import TYPE_CHECKING

import duckdb
import pytest

from pipeline.emulator import Emulator, make_quirks
from tests.commands.cli_process import called, variables

if TYPE_CHECKING:
    from pathlib import Path

SEED = 23


def asked(folder: Path, sql: str) -> list[tuple[object, ...]]:
    """The rows of a query on the folder's lake, as a stock client reads them."""
    with duckdb.connect(str(folder / "lake" / "catalog.duckdb"), read_only=True) as db:
        return db.execute(sql).fetchall()


async def test_a_list_only_sync_says_what_came_in(tmp_path: Path) -> None:
    """With fetch_details = "never" summary, JSON, status and meta.runs count the files that came in."""
    async with Emulator(70, seed=SEED) as emulator:
        given = variables(emulator) | {"SCANLAKE_FETCH_DETAILS": "never"}
        first = await called(tmp_path, "sync", **given)
        assert "70 files fetched (70 new), 0 unchanged" in " ".join(first.out.split())
        emulator.world.update(emulator.world.pick_random(7))
        second = await called(tmp_path, "sync", "--json", **given)
    counts = {name: second.json[name] for name in ("files_stored", "details_fetched")}
    assert counts == {"files_stored": 7, "details_fetched": 0}
    assert (second.json["delta"]["added"], second.json["delta"]["changed"]) == (0, 7)
    assert asked(tmp_path, "SELECT files_stored, details_fetched FROM meta.runs ORDER BY started_at") == [
        (70, 0),
        (7, 0),
    ]


async def test_added_and_changed_are_the_versions_of_the_run(tmp_path: Path) -> None:
    """In every mode, added and changed files together are the versions that the run stored."""
    async with Emulator(40, seed=SEED) as emulator:
        for mode in ("changed", "never", "always"):
            emulator.world.update(emulator.world.pick_random(5))
            emulator.world.create(3)
            result = await called(
                tmp_path, "sync", "--json", **variables(emulator), SCANLAKE_FETCH_DETAILS=mode, SCANLAKE_LAKE="lake"
            )
            stored, delta = result.json["files_stored"], result.json["delta"]
            assert delta["added"] + delta["changed"] == stored
            run = result.json["run_id"]
            assert asked(tmp_path, f"SELECT count(*) FROM files WHERE _run_id = '{run}'") == [(stored,)]


async def test_shares_and_reports_take_no_snapshot(tmp_path: Path) -> None:
    """Links and reports are in meta at once, and push no snapshot out: rollback reaches as far as before."""
    async with Emulator(12, seed=SEED) as emulator:
        given = variables(emulator) | {"SCANLAKE_KEEP_SNAPSHOTS": "2", "SCANLAKE_RETENTION_HOURS": "0"}
        await called(tmp_path, "sync", **given)
        emulator.world.update(emulator.world.pick_random(2))
        await called(tmp_path, "sync", **given)
        before = asked(tmp_path, "SELECT snapshot FROM meta.freshness")
        earlier = sorted(path.name for path in (tmp_path / "lake" / "snapshots").iterdir())
        references = [row[0] for row in asked(tmp_path, "SELECT DISTINCT scan_code FROM files ORDER BY ALL LIMIT 3")]
        for reference in references:
            assert (await called(tmp_path, "share", str(reference), **given)).code == 0
        report = await called(tmp_path, "report", "--where", "TRUE", "--out", "audit", **given)
        assert report.code == 0, report.err
        assert asked(tmp_path, "SELECT snapshot FROM meta.freshness") == before
        assert sorted(path.name for path in (tmp_path / "lake" / "snapshots").iterdir()) == earlier
        assert asked(tmp_path, "SELECT count(*) FROM meta.shares") == [(3,)]
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
        complete = await called(tmp_path, "sync", "--full", **variables(emulator))
        assert "include.left_out" not in complete.err
        assert asked(tmp_path, "SELECT missing_includes FROM meta.freshness") == [(None,)]


async def test_forms_of_the_detail_are_not_missing(tmp_path: Path) -> None:
    """A left-out include that details make up for is no warning."""
    async with Emulator(30, seed=SEED, quirks=make_quirks("seen", {"detail_forms": "yes"})) as emulator:
        await called(tmp_path, "sync", **variables(emulator), SCANLAKE_INCLUDES="uploads,geocoding")
    assert asked(tmp_path, "SELECT missing_includes FROM meta.freshness") == [(None,)]
    ((forms,),) = asked(tmp_path, "SELECT count(*) FROM form_submits")
    assert forms


async def test_strict_ends_a_run_at_the_first_new_misfit(tmp_path: Path) -> None:
    """With --strict a value that does not fit ends the run by name; a kind that the lake knows does not."""
    async with Emulator(30, seed=SEED) as emulator:
        given = variables(emulator)
        assert (await called(tmp_path, "sync", "--set", "strict=true", **given)).code == 0
        emulator.set_quirks(flags="string")
        emulator.world.update(emulator.world.pick_random(5))
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


@pytest.mark.parametrize("zone", ["America/Los_Angeles", "Asia/Tokyo"])
async def test_utc_now_is_utc_everywhere(tmp_path: Path, zone: str) -> None:
    """utc_now() gives the same time in every session's zone, and fits the lake's columns."""
    async with Emulator(2, seed=SEED) as emulator:
        await called(tmp_path, "sync", **variables(emulator))
    with duckdb.connect(str(tmp_path / "lake" / "catalog.duckdb"), read_only=True) as db:
        db.execute(f"SET TimeZone = '{zone}'")
        ((seconds, kind),) = db.execute("SELECT abs(epoch(utc_now()) - epoch(now())), typeof(utc_now())").fetchall()
    assert seconds < 5
    assert kind == "TIMESTAMP"
