"""A power loss, played from a log of what was done to the disk (after ALICE, Pillai et al., OSDI 2014).

What was not synced may be gone: the content of a file until its own sync, a folder's entries (names given, renamed,
removed) until the folder's. Entries of one folder may reach the disk in any order. The ledger is SQLite's to keep:
a transaction that was committed stays, and one that was not never was.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pytest

from pipeline.lake.ledger.ledger import Ledger

if TYPE_CHECKING:
    from collections.abc import Iterator

LEDGER: Final = "ledger.sqlite"
LOST: Final = b""
"""What is left of a file that was never synced."""

Tree: TypeAlias = dict[str, bytes | None]
"""Content by path below the lake's folder; None is a folder."""


@dataclass(frozen=True)
class Entry:
    """A change of a folder's entries: `path` bears `content` from now on (None: a folder), or nothing when `gone`."""

    folder: str
    path: str
    content: bytes | None = None
    gone: bool = False
    source: str = ""


@dataclass
class Log:
    """What was done, in order: entries, synced folders, and copies of the ledger after each transaction."""

    root: Path
    done: list[Entry | str | bytes] = field(default_factory=list)
    synced: dict[str, bytes] = field(default_factory=dict)

    def below(self, path: Path) -> str:
        """The path below the lake's folder."""
        return os.path.relpath(path, self.root)

    def sync(self, handle: int) -> None:
        """A file's content, or a folder's entries, are on disk."""
        path = Path(f"/proc/self/fd/{handle}").readlink()
        if path.is_dir():
            self.done.append(self.below(path))
            if path == self.root and (path / LEDGER).exists():
                self.copy_ledger()
        else:
            self.synced[self.below(path)] = path.read_bytes()

    def copy_ledger(self) -> None:
        """What the ledger holds is on disk."""
        with closing(sqlite3.connect(self.root / LEDGER)) as ledger:
            self.done.append(ledger.serialize())

    def rename(self, source: Path, target: Path) -> None:
        """A file gets another name. Its content goes with it as far as it was synced."""
        content = self.synced.get(self.below(source), LOST)
        self.synced[self.below(target)] = content
        self.done.append(Entry(self.below(target.parent), self.below(target), content, source=self.below(source)))

    def link(self, target: Path, source: Path) -> None:
        """A file gets a second name, with its content as far as it was synced."""
        content = self.synced[self.below(target)] = self.synced.get(self.below(source), LOST)
        self.done.append(Entry(self.below(target.parent), self.below(target), content))


@contextmanager
def recorded(root: Path) -> Iterator[Log]:
    """Record what this process does to the disk below `root`."""
    log = Log(root)
    real = {name: getattr(Path, name) for name in ("rename", "unlink", "hardlink_to")}
    real_mkdir, real_sync, real_transaction = os.mkdir, os.fsync, Ledger.transaction

    def sync(handle: int) -> None:
        real_sync(handle)
        log.sync(handle)

    def rename(path: Path, target: Path) -> Path:
        log.rename(path, target)
        return Path(real["rename"](path, target))

    def unlink(path: Path, **options: Any) -> None:
        there = path.exists()
        real["unlink"](path, **options)
        if there:
            log.done.append(Entry(log.below(path.parent), log.below(path), gone=True))

    def hardlink_to(path: Path, source: Path) -> None:
        real["hardlink_to"](path, source)
        log.link(path, source)

    def mkdir(path: Path, *arguments: Any, **options: Any) -> None:
        real_mkdir(path, *arguments, **options)
        if (parent := options.get("dir_fd")) is not None:
            path = Path(f"/proc/self/fd/{parent}").readlink() / path
        if Path(path) != root:
            log.done.append(Entry(log.below(Path(path).parent), log.below(Path(path))))

    @contextmanager
    def transaction(ledger: Ledger) -> Iterator[sqlite3.Connection]:
        with real_transaction(ledger) as db:
            yield db
        log.copy_ledger()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", sync)
        patch.setattr(os, "mkdir", mkdir)
        patch.setattr(Path, "rename", rename)
        patch.setattr(Path, "unlink", unlink)
        patch.setattr(Path, "hardlink_to", hardlink_to)
        patch.setattr(Ledger, "transaction", transaction)
        yield log


def losses(log: Log, *, alone: int) -> Iterator[tuple[int, Tree]]:
    """What may be on disk if the power fails after each thing done: (how many were done, the tree).

    Of the entries that were not synced: none is there, all are, or one alone, tried for at most `alone` of them.
    """
    for end in range(1, len(log.done) + 1):
        tree, pending = _durable(log.done[:end])
        if not isinstance(log.done[end - 1], Entry):
            yield end, tree
            continue
        for chosen in (pending, *([each] for each in pending[-alone:])):
            yield end, _applied(tree, chosen)
        yield end, tree


def _durable(done: list[Entry | str | bytes]) -> tuple[Tree, list[Entry]]:
    tree: Tree = {}
    pending: list[Entry] = []
    for each in done:
        if isinstance(each, Entry):
            pending.append(each)
        elif isinstance(each, bytes):
            tree[LEDGER] = each
        else:
            tree = _applied(tree, [entry for entry in pending if entry.folder == each])
            pending = [entry for entry in pending if entry.folder != each]
    return tree, pending


def _applied(tree: Tree, entries: list[Entry]) -> Tree:
    changed = dict(tree)
    for entry in entries:
        changed.pop(entry.source, None)
        changed.pop(entry.path, None)
        if not entry.gone:
            changed[entry.path] = entry.content
    # What lies in a folder that is not there is not there either.
    return {path: held for path, held in changed.items() if _reachable(path, changed)}


def _reachable(path: str, tree: Tree) -> bool:
    folders = [str(each) for each in Path(path).parents][:-1]
    return all(each in tree for each in folders)
