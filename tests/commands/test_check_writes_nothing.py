"""`check` writes nothing: no byte, mode or time changes in a lake, in its copies or in a report's folder."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.images.image_harness import scene
from tests.lake.corruption import flip, parts
from tests.lake.operations import told
from tests.lake.test_after_faults import kill_with_log
from tests.lake.test_folders import describe, make_lake

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.processes import Answer

    Main = Callable[..., Answer]


def make_damaged_lake(root: Path) -> Path:
    """Make a lake of two files of which one part has a wrong bit."""
    make_lake(root)
    flip(parts(root)[0])
    return root


def _replace_by_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _replace_by_file(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.write_text("mine")


def _copy_log_without_index(lake: Path) -> None:
    """Leave the ledger with the log of a killed run, but without its index, as a copy may have it."""
    kill_with_log(lake)
    (lake / "ledger.sqlite-shm").unlink()


DAMAGE: Final[dict[str, Callable[[Path], Any]]] = {
    "none": lambda _lake: None,
    "part with a wrong bit": lambda lake: flip(parts(lake)[0]),
    "missing part": lambda lake: parts(lake)[0].unlink(),
    "missing documents": lambda lake: next((lake / "raw").iterdir()).unlink(),
    "empty part": lambda lake: (lake / "parts" / "fields" / "empty.parquet").unlink(),
    "missing ledger": lambda lake: (lake / "ledger.sqlite").unlink(),
    "ledger with wrong bytes": lambda lake: (lake / "ledger.sqlite").write_bytes(b"no ledger" * 999),
    "ledger with the log of a killed run": kill_with_log,
    "ledger with a log alone": _copy_log_without_index,
    "missing catalog": lambda lake: (lake / "catalog.duckdb").unlink(),
    "catalog with a wrong bit": lambda lake: flip(lake / "catalog.duckdb", 0.7),
    "catalog with a log": lambda lake: (lake / "catalog.duckdb.wal").write_bytes(b"left"),
    "folder in place of a snapshot": lambda lake: _replace_by_folder(lake / "snapshots" / "000001.duckdb"),
    "file in place of a folder": lambda lake: _replace_by_file(lake / "spill"),
    "missing lock": lambda lake: (lake / "LOCK").unlink(),
    "unknown and temporary files": lambda lake: [
        (lake / name).write_text("left")
        for name in ("notes.txt", "raw/000000000009-abcdef.parquet", ".a.1-0a1b2c3d.tmp")
    ],
}
_IN_ORDER: Final = {"none", "ledger with the log of a killed run", "ledger with a log alone", "catalog with a log"} | {
    "missing lock",
    "unknown and temporary files",
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_check_changes_no_byte(kind: str, tmp_path: Path, main: Main) -> None:
    """Whatever the damage and the options, neither the lake nor its published copy changes; nor by --dry-run."""
    lake, target = make_lake(tmp_path / "lake"), f"file://{tmp_path}/target"
    told(lake, "publish", "--to", target)
    DAMAGE[kind](lake)
    before = describe(tmp_path)
    given = ("--lake", str(lake), "--set", f"publish_to={target}", "--json")
    for options in ((), ("--read-data",), ("--published",), ("--published", "--read-data")):
        answer = main("check", *options, *given)
        assert describe(tmp_path) == before, options
        assert answer.code == (0 if kind in _IN_ORDER else 7 if " in place of " in kind else 9), answer
        assert not [each for each in answer.json["findings"] if "scanlake check" in each["hint"]], "a hint in a circle"
    main("repair", "--dry-run", "--read-data", *given)
    main("status", *given)
    assert describe(tmp_path) == before


async def test_check_changes_no_image_and_no_report(tmp_path: Path) -> None:
    """Damaged images and a damaged folder of a report are named, and stay as they are."""
    async with scene(tmp_path, 10) as here:
        assert (await here.fetch()).code == 0
        assert (await here.run("report", "--where", "TRUE", "--out", str(tmp_path / "pdfs"))).code == 0
        flip(next(path for path in (here.lake / "images").rglob("*") if path.is_file()))
        next((tmp_path / "pdfs").glob("*.pdf")).unlink()
        before = describe(tmp_path)
        report = ("--report", str(tmp_path / "pdfs"))
        for options in (("--read-data",), report):
            assert (await here.run("check", *options)).code == 9
            assert describe(tmp_path) == before


def test_check_of_all_sources_repairs_nothing(tmp_path: Path, main: Main) -> None:
    """With --published each source is compared with its target, and damage stays as it is (finding S5)."""
    target = tmp_path / "targets"
    (tmp_path / "scanlake.toml").write_text(
        "".join(f'[sources.{name}]\npublish_to = "file://{target}/{name}"\n' for name in ("north", "south"))
    )
    for name in ("north", "south"):
        make_lake(tmp_path / "lake" / name)
        told(tmp_path / "lake" / name, "publish", "--to", f"file://{target}/{name}")
        flip(parts(tmp_path / "lake" / name)[0])
    before = describe(tmp_path)
    answer = main("check", "--all", "--published", "--json")
    assert describe(tmp_path) == before
    assert answer.code == 9, answer


async def test_a_dry_run_of_images_renames_nothing(tmp_path: Path) -> None:
    """`images` has no --verify, and so no damaged picture is renamed in spite of --dry-run (finding S5)."""
    async with scene(tmp_path, 10) as here:
        assert (await here.fetch()).code == 0
        picture = next(path for path in (here.lake / "images").rglob("*") if path.is_file())
        flip(picture)
        before = describe(here.lake)
        answer = await here.fetch("--verify", "--dry-run")
        assert describe(here.lake) == before
        assert answer.code == 2


@pytest.mark.parametrize(
    "arguments", [("--snapshot", "1"), ("--dry-run",), ("--to", "file:///x"), ("--allowed-signers", "x")]
)
def test_an_option_without_its_other_half_is_refused(main: Main, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    """An option that is none of `check`, or needs another one, runs no other check instead (finding S5)."""
    lake = make_damaged_lake(tmp_path / "lake")
    before = describe(lake)
    answer = main("check", *arguments, "--lake", str(lake))
    assert describe(lake) == before
    assert answer.code == 2
