"""`check` writes nothing: no byte, mode or time changes in a lake, in its copies or in a report's folder.

SQLite alone may write the index of a killed run's log anew: a cache, which nobody could read otherwise.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.forked_process import forked_children
from tests.images.image_harness import scene
from tests.lake.corruption import flip, parts
from tests.lake.operations import told
from tests.lake.test_after_faults import kill_with_log
from tests.lake.test_folders import describe, make_lake
from tests.made_once import make_once
from tests.sync.sync_harness import tampered

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.processes import Scanlake


def _replace_by_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _change_format(lake: Path) -> None:
    with tampered(lake) as ledger:
        ledger.execute("PRAGMA user_version = 99")


def _copy_log_without_index(lake: Path) -> None:
    """Leave the ledger with the log of a killed run, but without its index, as a copy may have it."""
    kill_with_log(lake)
    (lake / "ledger.sqlite-shm").unlink()


KINDS: Final[dict[str, tuple[int, Callable[[Path], Any]]]] = {  # exit code of `check`
    "none": (0, lambda _lake: None),
    "part with a wrong bit": (9, lambda lake: flip(parts(lake)[0])),
    "missing part": (9, lambda lake: parts(lake)[0].unlink()),
    "missing documents": (9, lambda lake: next((lake / "documents").iterdir()).unlink()),
    "missing ledger": (9, lambda lake: (lake / "ledger.sqlite").unlink()),
    "ledger of another format": (2, _change_format),
    "ledger with wrong bytes": (9, lambda lake: (lake / "ledger.sqlite").write_bytes(b"no ledger" * 999)),
    "ledger with the log of a killed run": (0, kill_with_log),
    "ledger with a log alone": (0, _copy_log_without_index),
    "missing catalog": (9, lambda lake: (lake / "catalog.duckdb").unlink()),
    "catalog with a wrong bit": (9, lambda lake: flip(lake / "catalog.duckdb", 0.7)),
    "catalog with a log": (0, lambda lake: (lake / "catalog.duckdb.wal").write_bytes(b"left")),
    "folder in place of a snapshot": (7, lambda lake: _replace_by_folder(lake / "snapshots" / "000001.duckdb")),
    "file in place of a folder": (7, lambda lake: (lake / "spill").write_text("mine")),
    "missing lock": (0, lambda lake: (lake / "LOCK").unlink()),
    "unknown and temporary files": (0, lambda lake: [
        (lake / name).write_text("left")
        for name in ("notes.txt", "documents/000000000009-abcdef.parquet", ".a.1-0a1b2c3d.tmp")
    ]),
}  # fmt: skip


def _describe_without_index(folder: Path) -> dict[str, tuple[Any, ...]]:
    return {name: what for name, what in describe(folder).items() if not name.endswith("/ledger.sqlite-shm")}


def _make_world(folder: Path) -> Path:
    """Make a lake and its published copy in a folder."""
    told(make_lake(folder / "lake"), "publish", "--to", f"file://{folder}/target")
    return folder


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a lake and its published copy, for tests to copy."""
    return make_once(tmp_path_factory, "published-lake", _make_world)


@pytest.mark.parametrize("kind", KINDS)
def test_check_changes_no_byte(kind: str, world: Path, tmp_path: Path, main: Scanlake) -> None:
    """Whatever the damage, neither the lake nor its published copy changes; nor by `repair --dry-run` and `status`."""
    shutil.copytree(world, tmp_path, dirs_exist_ok=True)
    code, damage = KINDS[kind]
    damage(tmp_path / "lake")
    before = _describe_without_index(tmp_path)
    given = ("--lake", str(tmp_path / "lake"), "--set", f"publish_to=file://{tmp_path}/target", "--json")
    for options in (("--published", "--read-data"), *([()] if kind == "none" else [])):
        answer = main("check", *options, *given)
        assert _describe_without_index(tmp_path) == before, options
        assert answer.code == code, answer
        assert not [each for each in answer.json["findings"] if "scanlake check" in each["hint"]], "a hint in a circle"
    main("repair", "--dry-run", "--read-data", *given)
    main("status", *given)
    assert _describe_without_index(tmp_path) == before


async def test_check_changes_no_image_and_no_report(tmp_path: Path) -> None:
    """Damaged images and a report's folder are named, and stay as they are; `images` has no --verify."""
    async with scene(tmp_path, 10) as here:
        assert (await here.fetch()).code == 0
        assert (await here.run("report", "--where", "TRUE", "--out", str(tmp_path / "pdfs"))).code == 0
        flip(next(path for path in (here.lake / "images").rglob("*") if path.is_file()))
        next((tmp_path / "pdfs").glob("*.pdf")).unlink()
        before = describe(tmp_path)
        for command, code in (
            (("check", "--read-data"), 9),
            (("check", "--report", str(tmp_path / "pdfs")), 9),
            (("images", "--verify", "--dry-run"), 2),
        ):
            assert (await here.run(*command)).code == code
            assert describe(tmp_path) == before


def test_check_of_all_sources_repairs_nothing(world: Path, tmp_path: Path, main: Scanlake) -> None:
    """With --published each source is compared with its target, and damage stays as it is."""
    for name in ("north", "south"):
        shutil.copytree(world / "lake", tmp_path / "lake" / name)
        shutil.copytree(world / "target", tmp_path / "targets" / name)
        flip(parts(tmp_path / "lake" / name)[0])
    tables = (f'[sources.{name}]\npublish_to = "file://{tmp_path}/targets/{name}"\n' for name in ("north", "south"))
    (tmp_path / "scanlake.toml").write_text("".join(tables))
    before = describe(tmp_path)
    with forked_children():
        answer = main("check", "--all", "--published", "--json")
    assert describe(tmp_path) == before
    assert answer.code == 9, answer
