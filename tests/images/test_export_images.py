"""Folders of images to hand over: names, checksums, and what is not there."""

from __future__ import annotations

import csv
import subprocess
from typing import TYPE_CHECKING

from pipeline.errors import ExitCode
from pipeline.images.image_export import choose_name
from tests.images.image_harness import rows_of
from tests.lake.operations import called
from tests.lake_copies import copy_lake
from tests.rows import every

if TYPE_CHECKING:
    from pathlib import Path

    from tests.images.image_harness import PicturedLakes


def _check_sums(folder: Path) -> None:
    done = subprocess.run(["sha256sum", "--quiet", "-c", "SHA256SUMS"], cwd=folder, capture_output=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, b"")


def test_a_folder_has_every_selected_image_or_the_reason(pictured: PicturedLakes, tmp_path: Path) -> None:
    """The checksums are right, the manifest names every image, and a later export replaces the folder."""
    lake, folder = copy_lake(pictured.half, tmp_path / "lake"), tmp_path / "handed over"
    answer = called(lake, "images", "export", "--json", "--out", str(folder))
    assert answer.code == ExitCode.REJECTS
    rows = list(csv.DictReader((folder / "manifest.csv").read_text(encoding="utf-8").splitlines()))
    assert len(rows) == len([key for key in pictured.truth if key[2] == "image"])
    assert {row["state"] for row in rows} == {"stored", "missing"}
    assert all(bool(row["name"]) is (row["state"] == "stored") is not bool(row["reason"]) for row in rows)
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    own = {"manifest.csv", "SHA256SUMS", ".scanlake-images"}
    assert files - own == {row["name"] for row in rows if row["name"]}
    assert answer.json["exported"] == len(files - own)
    _check_sums(folder)
    where = ["--where", f"files.file_id = {min(row['file_id'] for row in rows if row['name'])}"]
    smaller = called(lake, "images", "export", "--json", "--out", str(folder), *where)
    assert 0 < smaller.json["exported"] < answer.json["exported"]
    assert len([path for path in folder.rglob("*") if path.is_file()]) == smaller.json["exported"] + len(own)
    _check_sums(folder)


def test_a_folder_of_others_is_refused_and_damage_is_not_handed_over(
    pictured: PicturedLakes, lake: Path, tmp_path: Path
) -> None:
    """Other files stop the export, a lake is no target, and a damaged image is named instead of exported."""
    nothing = called(pictured.bare, "images", "export", "--out", str(tmp_path / "early"))
    assert (nothing.code, "no images" in nothing.err) == (ExitCode.USAGE, True)
    other = tmp_path / "other"
    other.mkdir()
    (other / "mine.txt").write_text("mine")
    assert called(lake, "images", "export", "--out", str(other)).code == ExitCode.USAGE
    assert [path.name for path in other.iterdir()] == ["mine.txt"]
    assert called(lake, "images", "export", "--out", str(lake / "out")).code == ExitCode.USAGE
    victim = lake / next(row["path"] for key, row in sorted(rows_of(lake).items()) if key[2] == "image")
    named = sum(row["path"] == str(victim.relative_to(lake)) for row in rows_of(lake).values())
    victim.chmod(0o644)
    victim.write_bytes(b"x" * victim.stat().st_size)
    answer = called(lake, "images", "export", "--json", "--out", str(tmp_path / "out"))
    assert (answer.code, answer.json["missing"]) == (ExitCode.REJECTS, {"damaged": named})
    _check_sums(tmp_path / "out")


@every(
    ("reference", "expected"),
    [
        ("SC-1", ["SC-1/snap-1.jpg", "SC-1/snap-1-2.jpg"]),
        ("../../etc/passwd", ["____etc_passwd/snap-1.jpg", "____etc_passwd/snap-1-2.jpg"]),
        ("con", ["_con/snap-1.jpg", "_con/snap-1-2.jpg"]),
        ("a\nb\\c", ["a_b_c/snap-1.jpg", "a_b_c/snap-1-2.jpg"]),
        ("...", ["_/snap-1.jpg", "_/snap-1-2.jpg"]),
        (None, ["7/snap-1.jpg", "7/snap-1-2.jpg"]),
        ("\u0416" * 200, ["\u0416" * 75 + "/snap-1.jpg", "\u0416" * 75 + "/snap-1-2.jpg"]),
    ],
)
def test_names_are_safe_everywhere_and_unique(reference: str | None, expected: list[str]) -> None:
    """No name leaves the folder or is a device of Windows; equal names are numbered, in any case of letters."""
    used: set[str] = set()
    row = {"reference": reference, "upload_type": "snap", "position": 1, "file_id": 7, "upload_id": 8, "kind": "image"}
    chosen = [choose_name(row | {"upload_type": text}, ".jpg", used) for text in ("snap", "SNAP")]
    assert [name.lower() for name in chosen] == [name.lower() for name in expected]
