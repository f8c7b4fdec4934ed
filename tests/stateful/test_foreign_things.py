"""Things of others under every name that scanlake uses: none of them changes, and each command says what it did."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
import stat
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import duckdb
import pytest

from pipeline.emulator import Emulator, ImageOptions
from pipeline.errors import ExitCode
from tests.processes import ran
from tests.soaking import SOAKING, draw_seed

if TYPE_CHECKING:
    from pathlib import Path

_SEQUENCES: Final = 500 if SOAKING else 2
_BLOCK: Final = 50
_STEPS: Final = 4 if SOAKING else 3
_PART: Final = "000000000099-abcdef"
_SHA256: Final = "0123456789abcdef" * 4
_TEMPORARY: Final = ".x.12-0a1b2c3d4e5f6071.tmp"
# `catalog.duckdb.wal` is missing: a publish removes the log that somebody's session has left.
_LAKE_NAMES: Final = f"""
LOCK SHARES.LOCK RESTORE_IN_PROGRESS README.txt catalog.duckdb ledger.sqlite catalog.duckdb.x
ledger.sqlite-wal ledger.sqlite-shm ledger.sqlite-journal ledger.sqlite.damaged-20261121T000000000000Z
ledger.sqlite.damaged-20261121T000000000000Z-{_SHA256[:8]} spill spill/thesis spill/publish spill/{_TEMPORARY}
spill/duckdb_temp_storage_DEFAULT-0.tmp snapshots/000001.duckdb snapshots/000002.duckdb snapshots/000003.duckdb
snapshots/000004.duckdb snapshots/000005.duckdb snapshots/000006.duckdb snapshots/000099.duckdb {_TEMPORARY} snapshots
tables tables/files tables/files/{_PART}.parquet tables/others/{_PART}.parquet tables/files/{_TEMPORARY}
tables/files/empty.parquet documents documents/{_PART}.parquet images images/incoming images/incoming/notes
images/incoming/{_TEMPORARY} images/01 images/{_SHA256[:2]}/{_SHA256[2:]}.jpg
"""
_OBJECT_NAMES: Final = f"""
documents images images/01 images/{_SHA256[:2]}/{_SHA256[2:]}.jpg probe probe/0123 probe/thesis {_TEMPORARY} thesis.txt
tables tables/files
"""
_NAMES: Final = {
    place: names.split()
    for place, names in {
        "lake": _LAKE_NAMES,
        "restored": _LAKE_NAMES,
        "backup": f"""latest.json catalog.duckdb ledgers ledgers/thesis ledgers/{_SHA256}.sqlite {_OBJECT_NAMES}
            tables/files/{_PART}.parquet.{_SHA256[:16]} documents/{_PART}.parquet.{_SHA256[:16]}""",
        "target": f"""latest.json catalog.duckdb iceberg-owner.json {_OBJECT_NAMES}
            tables/files/data/{_PART}-{_SHA256[:12]}.parquet documents/{_PART}-{_SHA256[:12]}.parquet""",
        "report": f""".scanlake-job manifest.json manifest.csv index.html SHA256SUMS SHA256SUMS.sig report-0001.pdf
            report-0001.pdf.damaged thesis.txt {_TEMPORARY}""",
        "pictures": f"SHA256SUMS manifest.csv {_TEMPORARY} thesis.txt SC-1/snap-1.jpg",
        "tables": "files.parquet thesis.txt",
        "book.xlsx": "thesis.txt",
    }.items()
}
"""The names that scanlake uses in each place, and some beside them."""
_LOADED: Final = ("lake", "backup", "target", "report", "pictures")
_UNDO: Final = ("rollback", "--undo")
_CODES: Final = {code for code in ExitCode if code not in {ExitCode.BUG, ExitCode.FAILED}}


@dataclass
class _World:
    """The places of one sequence, and what others have put there: kind and content of each thing, by its path."""

    folder: Path
    draw: random.Random
    things: dict[Path, Any] = field(default_factory=dict)
    moved: list[tuple[Path, Path]] = field(default_factory=list)
    made: list[Path] = field(default_factory=list)

    def put(self, place: str, name: str) -> None:
        """Put a thing of others under a name, unless something of scanlake is there; a folder can become a link."""
        path = self.folder / place / name
        if self.things.keys() & {path, *path.parents} or any(map(_is_no_folder, path.parents)):
            return
        number, victim = len(self.things), self.folder / "outside"
        if os.path.lexists(path):
            if path.is_dir() and not path.is_symlink() and self.draw.random() < 0.2:
                moved = victim / f"moved-{number}"
                path.rename(moved)
                path.symlink_to(moved)
                self.moved.append((path, moved))
                self._remember(path)
            return
        self.made += [parent for parent in path.parents if not parent.exists()]
        path.parent.mkdir(parents=True, exist_ok=True)
        kind = self.draw.choice(("text", "bytes", "sqlite", "duckdb", "folder", "link", "link", "dangling", "pipe"))
        if kind in {"link", "dangling"}:
            target = victim / f"{kind}-{number}"
            if kind == "link":
                self._make(self.draw.choice(("text", "folder", "duckdb")), target)
                self._remember(target)
            path.symlink_to(target)
        else:
            self._make(kind, path)
        self._remember(path)

    @staticmethod
    def _make(kind: str, path: Path) -> None:
        if kind == "sqlite":
            with closing(sqlite3.connect(path)) as db:
                db.execute("CREATE TABLE thesis (page TEXT)")
        elif kind == "duckdb":
            with duckdb.connect(str(path)) as db:
                db.execute("CREATE TABLE thesis (page TEXT)")
        elif kind == "folder":
            path.mkdir()
            (path / "thesis").write_text("mine")
        elif kind == "pipe":
            os.mkfifo(path)
        else:
            path.write_bytes(b"mine" if kind == "text" else bytes(range(256)) * 40)

    def _remember(self, path: Path) -> None:
        self.things[path] = _describe(path)

    def changed(self) -> list[Path]:
        """Return the things that are no longer as they were put there, and what is new behind a link."""
        wrong = [path for path, before in self.things.items() if _describe(path) != before]
        known = {path for path in self.things if path.is_relative_to(self.folder / "outside")}
        known |= {moved for _, moved in self.moved}
        return wrong + [path for path in (self.folder / "outside").iterdir() if path not in known]

    def take_away(self) -> None:
        """Remove everything of others, and put folders that became links back."""
        for path in self.things:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        for path, moved in self.moved:
            moved.rename(path)
        for folder in sorted(self.made, reverse=True):
            with suppress(OSError):  # scanlake has files there now
                folder.rmdir()
        for items in (self.things, self.moved, self.made):
            items.clear()


def _is_no_folder(path: Path) -> bool:
    return path.is_symlink() or path.is_file()


def _describe(path: Path) -> Any:
    """Return kind, permissions, owner and content of a thing; of a folder those of everything in it."""
    status = path.lstat() if os.path.lexists(path) else None
    if status is None:
        return None
    if stat.S_ISLNK(status.st_mode):
        target = path.readlink()
        return "link", str(target), _describe(target)
    if stat.S_ISDIR(status.st_mode):
        return {entry.name: _describe(entry) for entry in path.iterdir()}
    content = path.read_bytes() if stat.S_ISREG(status.st_mode) else b""
    return status.st_mode, status.st_ino, content


def _commands(folder: Path) -> tuple[tuple[str, ...], ...]:
    """Return the commands that write."""
    place = {name: str(folder / name) for name in _NAMES}
    return (
        *(("sync",), ("verify",), ("images",), ("images", "--retry"), ("rebuild",)),
        *(("repair",), ("repair", "--read-data"), ("purge", "{id}", "--yes"), ("rollback", "1", "--yes")),
        *(_UNDO, ("backup", place["backup"]), ("backup", place["backup"], "--with-images")),
        *(("restore", place["backup"], place["restored"]), ("publish", "--to", f"file://{place['target']}")),
        ("publish", "--to", f"file://{place['target']}", "--set", "publish_images=true"),
        ("report", "--where", "TRUE", "--out", place["report"]),
        ("images", "export", "--out", place["pictures"]),
        *(("export", place["tables"]), ("export", place["book.xlsx"]), ("check",), ("status",)),
    )


async def _run(emulator: Emulator, world: _World, command: tuple[str, ...]) -> int:
    """Run a command; it must have done its work, or refused it in one line."""
    ids = [str(emulator.world.pick_random(1)[0]) if word == "{id}" else word for word in command]
    code, out, err = await ran(emulator, world.folder / "lake", *ids, "--quiet", NO_COLOR="1")
    told = [line for line in err.splitlines() if line.startswith("scanlake: ")]
    if command[0] == "status" and code == ExitCode.FAILED:  # the last sync was refused by what others had put there
        code = ExitCode.OK
    assert code in _CODES, (command, code, err)
    assert "Traceback" not in out + err, (command, err)
    if command[0] != "check" and "NOT ERASED" not in out:  # which name in their results what is wrong
        assert len(told) == (code not in {ExitCode.OK, ExitCode.REJECTS}), (command, code, err)
    assert world.changed() == [], (command, code, err)
    return code


async def _load(emulator: Emulator, folder: Path) -> None:
    """Make a lake with images, and all that comes of it."""
    world = _World(folder, random.Random(0))
    (folder / "outside").mkdir()
    commands = {" ".join(command[:2]): command for command in _commands(folder)}
    names = ("sync", f"backup {folder / 'backup'}", "publish --to", "images", "report --where", "images export")
    for name in names if SOAKING else names[:3]:
        assert await _run(emulator, world, commands[name]) == ExitCode.OK


@pytest.mark.parametrize("first", range(0, _SEQUENCES, _BLOCK))
async def test_nothing_of_others_changes(tmp_path: Path, first: int) -> None:
    """Whatever others put into our places, it stays as it is; taken away, every place is whole again."""
    seed = draw_seed("tests.stateful.foreign_things")
    async with Emulator(files=4, seed=3, images=ImageOptions()) as emulator:
        (tmp_path / "world").mkdir()
        await _load(emulator, tmp_path / "world")
        # The lake remembers its target by its path: each copy of it, at this place, has its own.
        loaded = (tmp_path / "world").rename(tmp_path / "loaded")
        outcomes: dict[int, int] = {}
        for number in range(first, min(first + _BLOCK, _SEQUENCES)):
            draw = random.Random(seed + number)
            world = _World(tmp_path / "world", draw)
            shutil.copytree(loaded, world.folder)
            for place in _LOADED:
                if draw.random() < 0.15:
                    shutil.rmtree(world.folder / place, ignore_errors=True)
            print(f"sequence {number}")
            is_rolled_back = False
            for _ in range(_STEPS):
                if draw.random() < 0.4:
                    world.take_away()
                for _ in range(draw.randrange(4)):
                    place = draw.choice(tuple(_NAMES))
                    world.put(place, draw.choice(_NAMES[place]))
                if draw.random() < 0.3:
                    emulator.world.update(emulator.world.pick_random(1))
                command = draw.choice(_commands(world.folder))
                code = await _run(emulator, world, command)
                outcomes[code] = outcomes.get(code, 0) + 1
                if command[0] == "rollback" and code == ExitCode.OK:
                    is_rolled_back = command != _UNDO
            world.take_away()
            for command in (*([_UNDO] if is_rolled_back else ()), ("sync",), *([("check",)] if SOAKING else ())):
                assert await _run(emulator, world, command) == ExitCode.OK, command
            shutil.rmtree(world.folder)
        print(dict(sorted(outcomes.items())))
