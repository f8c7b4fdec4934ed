"""Proof of stored images: what is missing, damaged or unlisted is named, and comes back."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from pipeline.errors import ExitCode
from pipeline.findings import Severity
from tests.findings import printed_lines
from tests.images.image_harness import disagreements, files_in, rows_of, scene, states_of, stored

if TYPE_CHECKING:
    from pathlib import Path

    from tests.images.image_harness import Scene


def _damage(here: Scene) -> dict[str, str]:
    """Remove one picture, cut another, and flip a bit of a third. Return what each file suffers from."""
    names = sorted(row["path"] for row in rows_of(here.lake).values())
    missing, cut, flipped = (here.lake / name for name in names[:3])
    for path in (missing, cut, flipped):
        path.chmod(0o644)
    missing.unlink()
    cut.write_bytes(cut.read_bytes()[:-1])
    content = bytearray(flipped.read_bytes())
    content[len(content) // 2] ^= 1
    flipped.write_bytes(content)
    return dict(zip(names[:3], ("missing", "bytes", "sha256 differs"), strict=True))


async def test_repair_names_damage_and_the_next_run_brings_it_back(tmp_path: Path) -> None:
    """Missing and damaged pictures are one finding each, of exit code 9, then 4; a strange file is only named."""
    async with scene(tmp_path, 15) as here:
        assert (await here.fetch()).code == ExitCode.OK
        assert (await here.run("repair", "--read-data", "--json")).json["ok"] is True
        damage = _damage(here)
        strange = here.lake / "images" / "ab" / "notes.txt"
        strange.parent.mkdir(exist_ok=True)
        strange.write_text("mine")
        checked = await here.run("check", "--read-data", "--json")
        answer = await here.run("repair", "--read-data", "--json")
        assert (checked.code, answer.code) == (ExitCode.DAMAGE, ExitCode.REJECTS)
        for result, severity in ((checked, Severity.ERROR), (answer, Severity.REPAIRED)):
            findings = dict(line.split(": ", 1) for line in printed_lines(result.json, "lake", severity))
            assert findings.keys() == damage.keys()
            assert all(damage[name] in problem for name, problem in findings.items())
            warnings = printed_lines(result.json, "lake", Severity.WARNING)
            assert warnings == ["images/ab/notes.txt: unknown file, not changed"]
        assert states_of(here.lake)["failed"] == 3
        assert (await here.fetch()).json["stored"] == 3
        assert stored(here.lake) == set(here.truth())
        assert strange.read_text() == "mine"
        strange.unlink()
        for moved in (here.lake / "images").rglob("*.damaged-*"):
            moved.unlink()
        assert disagreements(here.lake, here.truth()) == []
        assert (await here.run("check", "--read-data")).code == ExitCode.OK


async def test_what_a_stopped_run_did_not_commit_is_not_unlisted(tmp_path: Path) -> None:
    """A complete picture whose row is not committed is no unknown file; the next run commits it without a call."""
    async with scene(tmp_path, 10) as here:
        assert (await here.fetch()).code == ExitCode.OK
        with closing(sqlite3.connect(here.lake / "ledger.sqlite")) as ledger, ledger:
            row = ledger.execute("SELECT file_id, upload_id, kind, sha256, path FROM image ORDER BY path").fetchone()
            ledger.execute("DELETE FROM image WHERE path = ?", row[-1:])
        incoming = here.lake / "images" / "incoming" / ".".join(map(str, row[:4]))
        incoming.hardlink_to(here.lake / row[4])
        for command in ("repair", "check"):
            answer = await here.run(command, "--json")
            assert (answer.code, printed_lines(answer.json, "lake", Severity.WARNING)) == (ExitCode.OK, [])
        before = here.calls()
        assert (await here.fetch()).code == ExitCode.OK
        assert here.calls() == before
        assert stored(here.lake) == set(here.truth())


@pytest.mark.parametrize(("arguments", "count"), [((), 2), (("--read-data",), 3)])
async def test_check_covers_images(tmp_path: Path, arguments: tuple[str, ...], count: int) -> None:
    """Check finds missing and resized pictures, with --read-data changed ones too; repair lets them be fetched."""
    async with scene(tmp_path, 10) as here:
        assert (await here.fetch()).code == ExitCode.OK
        clean = await here.run("check", "--json", "--read-data")
        assert (clean.code, printed_lines(clean.json, "lake", Severity.WARNING)) == (ExitCode.OK, [])
        _damage(here)
        before = rows_of(here.lake)
        for command in (("check",), ("repair", "--dry-run")):
            found = await here.run(*command, "--json", *arguments)
            assert (found.code, found.json["counts"]["error"]) == (ExitCode.DAMAGE, count)
        assert rows_of(here.lake) == before
        answer = await here.run("repair", "--json", *arguments)
        assert (answer.code, answer.json["counts"]["repaired"]) == (ExitCode.REJECTS, count)
        assert states_of(here.lake)["failed"] == count


async def test_a_lake_that_is_left_with_snapshots_fetches_its_images_again(tmp_path: Path) -> None:
    """Snapshots have no rows of images: each is fetched once more, and the files stay as they are."""
    async with scene(tmp_path, 12) as here:
        assert (await here.fetch()).code == ExitCode.OK
        keys, files = rows_of(here.lake).keys(), files_in(here.lake)
        for path in (*here.lake.glob("ledger.sqlite*"), here.lake / "catalog.duckdb"):
            path.unlink()
        assert (await here.run("sync")).code == ExitCode.OK
        assert (await here.fetch()).code == ExitCode.OK
        assert here.calls()[0] == 2 * len(keys)
        assert rows_of(here.lake).keys() == keys
        assert files_in(here.lake) == files
