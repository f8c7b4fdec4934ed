"""Report folders with images: what they have, what they name, and what their verification sees."""

from __future__ import annotations

import asyncio
import csv
import shutil
import subprocess
from contextlib import suppress
from hashlib import sha256
from typing import TYPE_CHECKING

import pytest

from pipeline.errors import ExitCode
from pipeline.findings import Severity
from pipeline.reports.folder_check import check_report_folder
from tests.findings import folder_problems, lines_of
from tests.images.image_harness import Scene, scene
from tests.processes import started
from tests.reports.report_harness import read_manifest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.processes import Answer

REPORT = ("report", "--where", "TRUE", "--json")


async def report(here: Scene, out: Path, *arguments: str) -> Answer:
    """Run a job with images."""
    return await here.run(*REPORT, "--with-images", "--out", str(out), *arguments)


def read_rows(out: Path) -> list[dict[str, str]]:
    """Return the rows of the manifest of images."""
    with (out / "images" / "manifest.csv").open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


def check_images(here: Scene, out: Path) -> int:
    """Check the images independently, byte for byte with the image host. Returns how many the folder has."""
    done = subprocess.run(["sha256sum", "--quiet", "-c", "SHA256SUMS"], cwd=out, capture_output=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, b"")
    summed = {line[66:] for line in (out / "SHA256SUMS").read_text(encoding="utf-8").splitlines()}
    files = {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()}
    assert {name for name in files if "/." not in f"/{name}"} == summed | {"SHA256SUMS"}
    truth, rows = here.truth(), read_rows(out)
    assert {(int(row["file_id"]), int(row["upload_id"]), row["kind"]) for row in rows} == truth.keys()
    for row in rows:
        assert bool(row["name"]) is (row["state"] == "stored") is not bool(row["reason"])
        if row["name"]:
            path = out / "images" / row["name"]
            expected = truth[int(row["file_id"]), int(row["upload_id"]), row["kind"]]["sha256"]
            assert sha256(path.read_bytes()).hexdigest() == row["sha256"] == expected
            assert path.stat().st_nlink == 1
    return sum(bool(row["name"]) for row in rows)


async def test_a_folder_has_the_images_of_its_files(tmp_path: Path) -> None:
    """Each image is a copy with its checksum, verification counts them, and a second run changes nothing."""
    async with scene(tmp_path, 8) as here:
        await here.fetch()
        calls, out = here.calls()[0], tmp_path / "out"
        answer = await report(here, out)
        assert (answer.code, answer.json["images"]["missing"]) == (ExitCode.OK, {}), answer.err
        assert check_images(here, out) == answer.json["images"]["exported"] == len(here.truth())
        assert read_manifest(out)["images"] == answer.json["images"]
        assert " images in images/" in (out / "index.html").read_text(encoding="utf-8")
        check = await here.run("check", "--report", str(out))
        assert (check.code, f"{len(here.truth())} images in images/" in check.out) == (ExitCode.OK, True), check.out
        before = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()}
        again = await report(here, out)
        assert (again.code, again.json["was_complete"], again.json["images"]) == (0, True, answer.json["images"])
        assert before == {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()}
        assert here.calls()[0] == calls, "a report fetched images"


async def test_images_that_are_fetched_later_come_with_the_next_run(tmp_path: Path) -> None:
    """Images that are not stored are named with the reason, exit 4; the same command adds them, and orders nothing."""
    async with scene(tmp_path, 8) as here:
        await here.fetch("--where", "uploads.position = 1")
        out = tmp_path / "out"
        answer = await report(here, out)
        stored = check_images(here, out)
        missing = len(here.truth()) - stored
        assert (answer.code, answer.json["images"]["missing"]) == (ExitCode.REJECTS, {"missing": missing})
        assert (stored > 0, missing > 0, folder_problems(out)) == (True, True, [])
        assert {row["reason"] for row in read_rows(out)} == {"", "not downloaded: run `scanlake images`"}
        text = await here.run(*REPORT[:-1], "--with-images", "--out", str(out))
        assert (text.code, "scanlake images --where" in text.out) == (ExitCode.REJECTS, True)
        await here.fetch()
        orders = here.emulator.counts["report"]
        whole = await report(here, out)
        assert (whole.code, here.emulator.counts["report"]) == (ExitCode.OK, orders), whole.err
        assert check_images(here, out) == len(here.truth())


async def test_a_damaged_image_is_not_handed_over(tmp_path: Path) -> None:
    """An image whose content is not its hash is named as damaged, and in no checksum."""
    async with scene(tmp_path, 5) as here:
        await here.fetch()
        victim = next((here.lake / "images").glob("??/*.jpg"))
        victim.chmod(0o644)
        victim.write_bytes(b"x" * victim.stat().st_size)
        answer = await report(here, tmp_path / "out")
        assert (answer.code, answer.json["images"]["missing"]) == (ExitCode.REJECTS, {"damaged": 1})
        assert check_images(here, tmp_path / "out") == len(here.truth()) - 1


async def test_verification_sees_every_change_of_the_images(tmp_path: Path) -> None:
    """A changed, missing, linked, dropped or added image, and a changed manifest of images, are found."""
    async with scene(tmp_path, 5) as here:
        await here.fetch()
        assert (await report(here, tmp_path / "out")).code == ExitCode.OK
    name = next(row["name"] for row in read_rows(tmp_path / "out") if row["name"])

    def damage(what: str) -> list[str]:
        out = tmp_path / what
        shutil.copytree(tmp_path / "out", out)
        image, sums = out / "images" / name, out / "SHA256SUMS"
        for path in (image, sums):
            path.chmod(0o644)
        if what == "changed":
            image.write_bytes(b"other")
        elif what == "missing":
            image.unlink()
        elif what == "linked":
            (out / "images").rename(tmp_path / "elsewhere")
            (out / "images").symlink_to(tmp_path / "elsewhere")
        elif what == "added":
            (image.parent / "other.jpg").write_bytes(b"other")
        elif what == "dropped":
            lines = sums.read_text(encoding="utf-8").splitlines(keepends=True)
            sums.write_text("".join(line for line in lines if not line.endswith(f"images/{name}\n")), encoding="utf-8")
            image.unlink()
        elif what == "all dropped":
            lines = sums.read_text(encoding="utf-8").splitlines(keepends=True)
            sums.write_text("".join(line for line in lines if "  images/" not in line), encoding="utf-8")
            shutil.rmtree(out / "images")
        elif what == "uncertain":
            text = (out / "images" / "manifest.csv").read_text(encoding="utf-8")
            old = sha256(text.encode()).hexdigest()
            text = text.replace(",stored,", ",failed,", 1)
            (out / "images" / "manifest.csv").write_text(text, encoding="utf-8")
            new = sha256(text.encode()).hexdigest()
            sums.write_text(sums.read_text(encoding="utf-8").replace(old, new), encoding="utf-8")
        findings = check_report_folder(out).findings
        return lines_of(findings) + lines_of(findings, Severity.WARNING)

    assert damage("untouched") == []
    assert damage("changed") == [f"images/{name}: the content was changed"]
    assert damage("missing") == [f"images/{name}: missing"]
    assert f"images/{name}: missing" in damage("linked")
    assert damage("added") == [f"images/{name.rpartition('/')[0]}/other.jpg: unknown file"]
    assert damage("dropped") == [f"images/{name}: SHA256SUMS and images/manifest.csv disagree"]
    assert "images/manifest.csv: not in SHA256SUMS" in damage("all dropped")
    assert any("SHA256SUMS and images/manifest.csv disagree" in line for line in damage("uncertain"))


async def test_a_killed_run_is_continued(tmp_path: Path) -> None:
    """After kill -9 among the images the folder is not certified; the next run completes it and orders nothing."""
    async with scene(tmp_path, 60) as here:
        await here.fetch("--where", "uploads.position = 1")
        out, seen = tmp_path / "out", set[int]()
        first = (await report(here, out)).json["images"]["exported"]
        assert (out / "SHA256SUMS").exists()
        await here.fetch()
        for limit in (first + 1, first + 20):
            process = await started(here.emulator, here.lake, *REPORT, "--with-images", "--out", str(out))
            async with asyncio.timeout(60):
                while len(copied := list((out / "images").glob("*/*.*"))) < limit and process.returncode is None:
                    await asyncio.sleep(0)
            with suppress(ProcessLookupError):
                process.kill()
            await process.communicate()
            seen.add(len(copied))
            assert not (out / "SHA256SUMS").exists()
            assert (await here.run("check", "--report", str(out))).code == ExitCode.USAGE
        assert max(seen) < len(here.truth()), "no run was killed among the images"
        orders = here.emulator.counts["report"]
        answer = await report(here, out)
        assert (answer.code, here.emulator.counts["report"]) == (ExitCode.OK, orders), answer.err
        assert check_images(here, out) == len(here.truth())


async def test_images_are_part_of_a_job_from_its_begin(tmp_path: Path) -> None:
    """Without the flag nothing is different, and a job never changes between with and without images."""
    async with scene(tmp_path, 3) as here:
        early = await report(here, tmp_path / "early")
        assert (early.code, "scanlake images" in early.err) == (ExitCode.USAGE, True)
        assert (here.emulator.counts["report"], (tmp_path / "early").exists()) == (0, False)
        await here.fetch()
        plain = await here.run(*REPORT, "--out", str(tmp_path / "plain"))
        assert (plain.code, plain.json["images"]) == (ExitCode.OK, None)
        assert not (tmp_path / "plain" / "images").exists()
        manifest = read_manifest(tmp_path / "plain")
        assert manifest["images"] is None
        assert manifest["settings"]["with_images"] is False
        assert "images" not in (await here.run("report", "verify", "--json", str(tmp_path / "plain"))).json
        assert (await report(here, tmp_path / "plain")).code == ExitCode.USAGE
        assert (await report(here, tmp_path / "out")).code == ExitCode.OK
        assert (await here.run(*REPORT, "--out", str(tmp_path / "out"))).code == ExitCode.USAGE


@pytest.mark.parametrize("is_link", [False, True])
async def test_a_foreign_folder_of_images_is_not_touched(tmp_path: Path, *, is_link: bool) -> None:
    """A link in the place of the subfolder, or one with files of others, stops the job before it writes there."""
    async with scene(tmp_path, 3) as here:
        await here.fetch("--where", "uploads.position = 1")
        out, other = tmp_path / "out", tmp_path / "other"
        await report(here, out)
        shutil.rmtree(out / "images")
        other.mkdir()
        if is_link:
            (out / "images").symlink_to(other)
        else:
            (out / "images").mkdir()
            (out / "images" / "mine.txt").write_text("mine")
        answer = await report(here, out)
        assert answer.code == ExitCode.USAGE, answer.err
        assert not list(other.iterdir())
        assert [path.name for path in (out / "images").iterdir()] == ([] if is_link else ["mine.txt"])
