"""Folders of images to hand over: names, checksums, and what is not there."""

from __future__ import annotations

import csv
import shutil
import subprocess
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

import duckdb
import pytest

from pipeline.errors import ExitCode, SettingsError
from pipeline.images.image_export import ExportedImages, choose_name, export_images, select_images
from pipeline.lake.storage.atomic_files import clone_file
from pipeline.lake.storage.layout import LakeLayout
from pipeline.output.handover import MANIFEST, SUMS
from tests.images.image_harness import rows_of
from tests.lake.operations import called
from tests.lake_copies import copy_lake
from tests.rows import every

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from tests.images.image_harness import PicturedLakes

OWN: Final = {MANIFEST, SUMS}


def picture(lake: Path, number: int, **values: Any) -> dict[str, Any]:
    """Store a picture, and return its row."""
    body = b"picture %d" % number
    digest = sha256(body).hexdigest()
    path = lake / "images" / digest[:2] / f"{digest[2:]}.jpg"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(body)
    unknown = dict.fromkeys(("reason", "fetched_at"))
    row = {"file_id": number, "reference": f"SC-{number}", "upload_id": number, "kind": "image", "upload_type": "snap"}
    stored = {"state": "stored", "sha256": digest, "bytes": len(body), "mime": "image/jpeg"}
    return {**row, "position": 1, **stored, **unknown, "path": str(path.relative_to(lake)), **values}


def export(lake: Path, rows: Sequence[dict[str, Any]]) -> ExportedImages:
    """Export pictures to the folder `out` beside the lake."""
    return export_images(LakeLayout(lake), [dict(row) for row in rows], lake.parent / "out")


def list_files(folder: Path) -> set[str]:
    """Return the names of all files below a folder, without those of the export itself."""
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir()} - OWN


def list_sums(folder: Path) -> set[str]:
    """Return the names that the checksums have."""
    return {line[66:] for line in (folder / SUMS).read_text(encoding="utf-8").splitlines()} - OWN


def test_an_export_is_complete_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a stop at any picture there is no folder and nothing beside it; the next export has its selection only."""
    lake, out = tmp_path / "lake", tmp_path / "out"
    rows = [picture(lake, number) for number in range(4)]
    for stop_at in range(3):
        copies = iter(range(3))

        def stop(source: Path, target: Path, at: int = stop_at, copies: Iterator[int] = copies) -> None:
            if next(copies) == at:
                raise KeyboardInterrupt
            clone_file(source, target)

        with monkeypatch.context() as patch:
            patch.setattr("pipeline.images.image_export.clone_file", stop)
            with pytest.raises(KeyboardInterrupt):
                export(lake, rows[1:])
        assert list(tmp_path.iterdir()) == [lake]
    export(lake, rows[2:3])
    assert list_files(out) == list_sums(out) == {"SC-2/snap-1.jpg"}
    with pytest.raises(SettingsError, match="is not empty"):
        export(lake, rows)
    assert list_files(out) == {"SC-2/snap-1.jpg"}


def test_copies_share_nothing_with_the_lake(tmp_path: Path) -> None:
    """No picture is a link into the lake, whose edit would change the lake; a link in the lake is not followed."""
    lake = tmp_path / "lake"
    rows = [picture(lake, number) for number in range(2)]
    linked = lake / rows[1]["path"]
    linked.rename(tmp_path / "elsewhere.jpg")
    linked.symlink_to(tmp_path / "elsewhere.jpg")
    assert export(lake, rows).missing == {"damaged": 1}
    target = tmp_path / "out" / "SC-0" / "snap-1.jpg"
    assert (target.is_symlink(), target.stat().st_nlink) == (False, 1)
    assert not target.samefile(lake / rows[0]["path"])
    assert not (tmp_path / "out" / "SC-1").exists()


def test_equal_and_empty_names_are_different_files(tmp_path: Path) -> None:
    """An empty field of one upload and a hostile one of another give as many files.

    A reference that is the name of the manifest or of the checksums becomes another folder.
    """
    lake, out = tmp_path / "lake", tmp_path / "out"
    types = (None, "1.JPG", "1.jpg")
    rows = [picture(lake, number, reference="R", upload_type=kind) for number, kind in enumerate(types)]
    assert export(lake, rows).exported == len(list_files(out)) == 3
    assert list_files(out) == list_sums(out)
    for reference in ("manifest.csv", "SHA256SUMS", "sha256sums", "Manifest.CSV"):
        shutil.rmtree(out)
        export(lake, [picture(lake, 0, reference=reference)])
        assert list_files(out) == list_sums(out) == {f"_{reference}/snap-1.jpg"}


def test_each_image_that_is_not_stored_has_a_reason() -> None:
    """An upload without a link differs from one whose image was never downloaded; a row keeps its own reason."""
    columns = "reason, sha256, bytes, mime, fetched_at, path".split(", ")
    with duckdb.connect() as lake:
        lake.execute("CREATE TABLE files AS SELECT 1 AS file_id, 'SC-1' AS scan_code")
        lake.execute(
            "CREATE TABLE uploads AS SELECT 1 AS file_id, id, 'a' AS upload_type, id AS position, image_url,"
            " NULL AS image_thumb FROM (VALUES (1, 'link'), (2, NULL), (3, ''), (4, 'link')) AS given(id, image_url)"
        )
        lake.execute(
            "CREATE TABLE images AS SELECT 1 AS file_id, 4 AS upload_id, 'image' AS kind, 'refused' AS state,"
            f" 'an HTML page' AS {', NULL AS '.join(columns)}"
        )
        rows = select_images(lake, None, thumbnails=False)
        assert [(row["state"], row["reason"]) for row in rows] == [
            ("missing", "not downloaded: run `scanlake images`"),
            ("unlinked", "the upload has no link"),
            ("unlinked", "the upload has no link"),
            ("refused", "an HTML page"),
        ]


def check_sums(folder: Path) -> None:
    """Check a folder as who receives it does."""
    done = subprocess.run(["sha256sum", "--quiet", "-c", "SHA256SUMS"], cwd=folder, capture_output=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, b"")


def test_a_folder_has_every_selected_image_or_the_reason(pictured: PicturedLakes, tmp_path: Path) -> None:
    """The checksums are right, and the manifest names every image; a damaged one is named instead of exported."""
    lake, folder = copy_lake(pictured.half, tmp_path / "lake"), tmp_path / "handed over"
    answer = called(lake, "images", "export", "--json", "--out", str(folder))
    assert answer.code == ExitCode.REJECTS
    rows = list(csv.DictReader((folder / MANIFEST).read_text(encoding="utf-8").splitlines()))
    assert len(rows) == len([key for key in pictured.truth if key[2] == "image"])
    assert {row["state"] for row in rows} == {"stored", "missing"}
    assert all(bool(row["name"]) is (row["state"] == "stored") is not bool(row["reason"]) for row in rows)
    assert list_files(folder) == {row["name"] for row in rows if row["name"]}
    assert answer.json["exported"] == len(list_files(folder))
    check_sums(folder)
    victim = min(rows_of(lake).values(), key=lambda row: row["file_id"])
    where, folder = ("--where", f"files.file_id = {victim['file_id']}"), tmp_path / "smaller"
    smaller = called(lake, "images", "export", "--json", "--out", str(folder), *where)
    assert 0 < smaller.json["exported"] == len(list_files(folder)) < answer.json["exported"]
    check_sums(folder)
    (lake / victim["path"]).chmod(0o644)
    (lake / victim["path"]).write_bytes(b"x" * victim["bytes"])
    named = sum(row["path"] == victim["path"] for row in rows_of(lake).values() if row["file_id"] == victim["file_id"])
    folder = tmp_path / "damaged"
    answer = called(lake, "images", "export", "--json", "--out", str(folder), *where)
    assert (answer.code, answer.json["missing"]) == (ExitCode.REJECTS, {"damaged": named})
    check_sums(folder)


def test_a_file_is_no_folder(pictured: PicturedLakes, tmp_path: Path) -> None:
    """A file is no target, and a lake without images has none to export."""
    mine = tmp_path / "mine.txt"
    mine.write_text("mine")
    for lake, folder, problem in ((pictured.bare, tmp_path / "early", "no images"), (pictured.whole, mine, "exists")):
        answer = called(lake, "images", "export", "--out", str(folder))
        assert (answer.code, problem in answer.err) == (ExitCode.USAGE, True), answer.err
    assert [path.read_text() for path in tmp_path.iterdir()] == ["mine"]


@every(
    ("reference", "expected"),
    [
        ("SC-1", "SC-1"),
        ("../../etc/passwd", "____etc_passwd"),
        ("con", "_con"),
        ("a\nb\\c", "a_b_c"),
        ("...", "_"),
        (None, "7"),
        ("\u0416" * 200, "\u0416" * 75),
    ],
)
def test_names_are_safe_everywhere_and_unique(reference: str | None, expected: str) -> None:
    """No name leaves the folder or is a device of Windows; equal names are numbered, in any case of letters."""
    used: set[str] = set()
    first = {"reference": "SC", "upload_type": "snap", "position": 0, "file_id": 7}
    assert choose_name(first, ".jpg", used) == "SC/snap-0.jpg"
    row = {"reference": reference, "upload_type": "snap", "position": 1, "file_id": 7, "upload_id": 8, "kind": "image"}
    chosen = [choose_name(row | {"upload_type": text}, ".jpg", used) for text in ("snap", "SNAP")]
    assert [name.lower() for name in chosen] == [f"{expected}/snap-1{end}.jpg".lower() for end in ("", "-2")]
