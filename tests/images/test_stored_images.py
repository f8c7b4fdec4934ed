"""Images in the lake: their table, proof of them, and what a lost ledger costs."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any

import duckdb

from pipeline.errors import ExitCode
from pipeline.lake.storage.atomic_files import temp_name
from pipeline.output.findings import Severity
from tests.findings import printed_lines
from tests.images.image_harness import (
    files_in,
    published_rows,
    recorded_rows,
    require_whole,
    rows_of,
    scene,
    states_of,
    stored,
)
from tests.lake.operations import called

if TYPE_CHECKING:
    from pathlib import Path

    from tests.images.image_harness import PicturedLakes


def _query(path: Path, sql: str) -> list[Any]:
    with closing(duckdb.connect(str(path), read_only=True)) as db:
        return db.execute(sql).fetchall()


def test_the_table_has_the_rows_of_the_ledger(pictured: PicturedLakes, lake: Path) -> None:
    """After each run the published table equals the ledger, also in the snapshot that it is; it is described."""
    assert _query(pictured.bare / "catalog.duckdb", "FROM images") == []
    for made in (pictured.half, pictured.whole):
        assert published_rows(made) == recorded_rows(made)
        assert {row[3] for row in published_rows(made)} == {"stored"}
        for snapshot in (made / "snapshots").iterdir():
            assert _query(snapshot, "FROM images") == _query(made / "catalog.duckdb", "FROM images")
    described = _query(lake / "catalog.duckdb", "SELECT * FROM meta.data_dictionary WHERE table_name = 'images'")
    assert len(described) == 10
    assert all(row[3] for row in described)
    assert "SHA-256 of the image" in called(lake, "tables", "images").out


def _damage(lake: Path) -> dict[str, str]:
    """Remove one picture, cut another, and flip a bit of a third. Return what each file suffers from."""
    names = sorted({row["path"] for row in rows_of(lake).values()})[:3]
    missing, cut, flipped = (lake / name for name in names)
    for path in (cut, flipped):
        path.chmod(0o644)
    missing.unlink()
    cut.write_bytes(cut.read_bytes()[:-1])
    content = bytearray(flipped.read_bytes())
    content[len(content) // 2] ^= 1
    flipped.write_bytes(content)
    return dict(zip(names, ("missing", "bytes", "sha256 differs"), strict=True))


async def test_repair_names_damage_and_the_next_run_brings_it_back(tmp_path: Path) -> None:
    """Missing and damaged pictures are one finding each, of exit code 9, then 4; a strange file is only named."""
    async with scene(tmp_path, 3) as here:
        assert (await here.fetch()).code == ExitCode.OK
        damage, before = _damage(here.lake), rows_of(here.lake)
        strange = here.lake / "images" / "ab" / "notes.txt"
        strange.parent.mkdir(exist_ok=True)
        strange.write_text("mine")
        checked = called(here.lake, "check", "--read-data", "--json")
        assert rows_of(here.lake) == before
        answer = called(here.lake, "repair", "--read-data", "--json")
        assert (checked.code, answer.code) == (ExitCode.DAMAGE, ExitCode.REJECTS)
        for result, severity in ((checked, Severity.ERROR), (answer, Severity.REPAIRED)):
            findings = dict(line.split(": ", 1) for line in printed_lines(result.json, "lake", severity))
            assert findings.keys() == damage.keys()
            assert all(damage[name] in problem for name, problem in findings.items())
            warnings = printed_lines(result.json, "lake", Severity.WARNING)
            assert warnings == ["images/ab/notes.txt: unknown file, not changed"]
        assert states_of(here.lake)["failed"] == 3
        assert (await here.fetch()).json["stored"] == 3
        assert strange.read_text() == "mine"
        strange.unlink()
        for moved in (here.lake / "images").rglob("*.damaged-*"):
            moved.unlink()
        require_whole(here.lake, here.truth())
        assert called(here.lake, "check", "--read-data").code == ExitCode.OK


def test_a_repair_that_reads_no_data_takes_what_it_sees(lake: Path) -> None:
    """Without --read-data a repair lets the missing and resized pictures be fetched, and leaves the changed one."""
    damage = _damage(lake)
    checked = called(lake, "check", "--json")
    assert (checked.code, checked.json["counts"]["error"]) == (ExitCode.DAMAGE, 2)
    failed = sum(row["path"] in list(damage)[:2] for row in rows_of(lake).values())
    answer = called(lake, "repair", "--json")
    assert (answer.code, answer.json["counts"]["repaired"]) == (ExitCode.REJECTS, 2)
    assert states_of(lake)["failed"] == failed


def test_what_a_stopped_run_did_not_commit_is_not_unlisted(pictured: PicturedLakes, lake: Path) -> None:
    """A complete picture whose row is not committed is no unknown file; the next run commits it without a call.

    One that a power loss has cut off is removed, as one in flight is; a file of others stays.
    """
    with closing(sqlite3.connect(lake / "ledger.sqlite")) as ledger, ledger:
        columns = "file_id, upload_id, kind, sha256, path"
        single = f"SELECT {columns} FROM image GROUP BY path HAVING count(*) = 1 AND kind = 'image' ORDER BY path"
        row = ledger.execute(single).fetchone()
        ledger.execute("DELETE FROM image WHERE path = ?", row[-1:])
    incoming = lake / "images" / "incoming" / ".".join(map(str, row[:4]))
    incoming.hardlink_to(lake / row[4])
    cut = incoming.with_name(f"1.1.image.{'0' * 64}")
    cut.write_bytes(incoming.read_bytes()[:-1])
    for name in (temp_name("download"), "notes.txt"):
        incoming.with_name(name).write_text("mine")
    answer = called(lake, "check", "--json")
    found = ["images/incoming/notes.txt: unknown file, not changed"]
    assert (answer.code, printed_lines(answer.json, "lake", Severity.WARNING)) == (ExitCode.OK, found)
    answer = called(lake, "images", "--set", "images_thumbnails=true", "--json", **pictured.service)
    assert (answer.code, answer.json["adopted"], answer.json["requests"]) == (ExitCode.OK, 1, {})
    assert stored(lake) == set(pictured.truth)
    assert [path.name for path in incoming.parent.iterdir()] == ["notes.txt"]


async def test_rows_that_only_the_ledger_had(tmp_path: Path) -> None:
    """Without ledger and catalog the rows of images are lost: the next run fetches all again, into the same files.

    Snapshots do not have them, and a repair says so.
    """
    async with scene(tmp_path, 3) as here:
        assert (await here.fetch()).code == ExitCode.OK
        keys, files = rows_of(here.lake).keys(), files_in(here.lake)
        for lost in ((), (here.lake / "snapshots").glob("*")):
            for path in (*here.lake.glob("ledger.sqlite*"), here.lake / "catalog.duckdb", *lost):
                path.unlink()
            repaired = await here.run("repair")
            assert repaired.code == ExitCode.OK
            assert "`scanlake images` fetches them again" in repaired.out
            assert repaired.out.count("unknown file, not changed") == len(files) > 0
            before = here.calls()[0]
            assert (await here.fetch()).code == ExitCode.OK
            assert here.calls()[0] - before == len(keys)
            assert (rows_of(here.lake).keys(), files_in(here.lake)) == (keys, files)
            assert len(published_rows(here.lake)) == len(keys)
