"""How the lake and its place stand, told by looking alone: nothing is opened for writing, locked or mended."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import stat
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import duckdb

from pipeline.errors import Exit, LakeDamaged, ScanlakeError
from pipeline.lake.compaction import hash_of
from pipeline.lake.erasure import BEGUN
from pipeline.lake.files import Layout, is_aside
from pipeline.lake.history import PAUSED
from pipeline.lake.integrity import lost_parts
from pipeline.lake.upkeep import our_parts
from pipeline.published import first_line, published, rows
from pipeline.runs.finding import Finding, fault, ok, told, warning
from pipeline.runs.looking import Outdated, looked_at
from pipeline.wording import many
from schemas.instants import DAY, SECOND, as_datetime

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pipeline.runs.looking import Look
    from pipeline.settings import Settings

_LITTLE: Final = (50_000_000, 1_000_000_000)  # bytes free: too few, few
_STALE: Final = 86_400  # seconds
_REMOTE: Final = frozenset({"nfs", "nfs4", "cifs", "smb3", "smbfs", "fuse.sshfs", "9p", "afs"})
_CHECK: Final = "Run `scanlake check`: it names and mends what is damaged."
_NEXT_RUN: Final = "Nothing to do: the next run clears it up."


def permissions(config: Path | None, settings: Settings) -> Iterator[Finding]:
    """Who else may read the token, and change the settings."""
    if config is not None:
        mode = stat.S_IMODE(config.stat().st_mode)
        if mode & (stat.S_IWGRP | stat.S_IWOTH):
            message = f"{config} may be changed by others (mode {mode:o}): they could send the token elsewhere"
            yield warning("permissions", message, f"chmod go-w {config}")
        else:
            yield ok("permissions", f"{config}: mode {mode:o}")
    if settings.token is None and settings.token_file is not None and settings.token_file.exists():
        path = settings.token_file
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & 0o077:
            yield warning("permissions", f"{path} is open to others (mode {mode:o})", f"chmod 600 {path}")
        else:
            yield ok("permissions", f"{path}: only its owner can read it")


def place(settings: Settings) -> Iterator[Finding]:
    """The lake's folder: is it there, can it be written, is there room."""
    root = settings.lake.absolute()
    near = next((folder for folder in (root, *root.parents) if folder.exists()), Path("/"))
    if not near.is_dir():
        yield fault("folder", f"{near} is not a folder", "Mend `lake`, or remove what is in its place.", Exit.STORAGE)
        return
    if not os.access(near, os.W_OK | os.X_OK):
        yield fault("folder", f"{near} may not be written", "Mend its permissions or owner.", Exit.STORAGE)
    elif near == root:
        yield ok("folder", f"{root} can be written")
    else:
        yield ok("folder", f"{root} is not there yet; the first sync makes it")
    kind = _file_system(near)
    if kind in _REMOTE:
        message = f"{near} lies on a network file system ({kind}), where locks may not hold"
        yield warning("folder", message, "Let one machine alone write this lake, or keep it on a local disk.")
    yield _room(near, root)


def lake(settings: Settings) -> Iterator[Finding]:
    """The lake's health, if there is one."""
    layout = Layout(settings.lake.absolute())
    if not layout.ledger.exists():
        if layout.catalog.exists() or (layout.root.is_dir() and our_parts(layout)):
            yield fault("ledger", "the ledger is gone, the lake is not", _CHECK, Exit.DAMAGE)
        else:
            yield ok("lake", "nothing is in it yet")
        return
    held = _is_held(layout)
    if held:
        yield ok("lock", f"held by {_holder(layout)}")
    else:
        yield ok("lock", "nobody holds the lake")
    try:
        with looked_at(layout) as look:
            yield from _ledger(look, settings, held=held)
            yield from _guarded("parts", lambda: _parts(layout, look))
            yield from _guarded("catalog", lambda: _catalog(layout, look, settings, held=held))
            if not held:
                yield from _guarded("leftovers", lambda: _leftovers(layout, look))
    except Outdated as error:
        yield warning("ledger", error.message, error.remedy)
    except ScanlakeError as error:
        yield told("ledger", error)


def _guarded(check: str, look: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    """What one look finds; what stops it is a finding, too, and not the end."""
    try:
        yield from look()
    except ScanlakeError as error:
        yield told(check, error)
    except duckdb.Error as error:
        yield fault(check, first_line(error).rstrip("."), _CHECK, Exit.DAMAGE)
    except OSError as error:
        yield fault(check, f"{error.strerror}: {error.filename}", "Mend its permissions.", Exit.STORAGE)


# The place


def _room(near: Path, root: Path) -> Finding:
    free = shutil.disk_usage(near).free
    message = f"{free / 1e9:,.1f} GB free"
    if free < _LITTLE[0]:
        return fault(
            "disk", f"only {free / 1e6:,.1f} MB free", "Free disk space: a sync could not commit.", Exit.STORAGE
        )
    parts = sum(path.stat().st_size for path in root.glob("parts/*/*.parquet")) if near == root else 0
    if free < max(_LITTLE[1], parts):
        remedy = "Free some: a compaction needs room for what it folds, beside what is there."
        return warning("disk", f"{message}, and the tables take {parts / 1e9:,.1f} GB", remedy)
    return ok("disk", message)


def _file_system(path: Path) -> str:
    """The kind of file system, where the system tells."""
    try:
        mounts = [line.split() for line in Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError):
        return ""
    resolved = path.resolve()
    around = [(mount[1], mount[2]) for mount in mounts if resolved.is_relative_to(mount[1])]
    return max(around, key=lambda each: len(each[0]), default=("", ""))[1]


def _is_held(layout: Layout) -> bool:
    """Whether a run holds the lock. Taking it to find out, however shortly, could turn a run away."""
    if not layout.lock.exists():
        return False
    inode = f":{layout.lock.stat().st_ino} "
    try:
        return any("FLOCK" in line and inode in line for line in Path("/proc/locks").read_text().splitlines())
    except OSError:
        pass  # not Linux: there is no other way than to try
    with layout.lock.open("rb") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


def _holder(layout: Layout) -> str:
    try:
        note = json.loads(layout.lock.read_text(encoding="utf-8"))
        return f"{note['doing']}, pid {note['pid']} on {note['host']} since {note['since']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "a run that has just begun"


# The lake


def _ledger(look: Look, settings: Settings, *, held: bool) -> Iterator[Finding]:
    flaw = str(look.query("PRAGMA quick_check(1)")[0][0])
    if flaw != "ok":
        raise LakeDamaged(f"ledger.sqlite: {flaw}", remedy=_CHECK)
    files = look.number("SELECT count(*) FROM file_version WHERE NOT deleted")
    yield ok("ledger", f"whole: {many(files, 'file')}, format {look.number('PRAGMA user_version')}")
    source, lang = look.fact("source"), look.fact("lang")
    if source is not None and settings.base_url is not None and source != settings.base_url:
        remedy = "Use another lake for another service; if the service has moved, sync once with --moved."
        yield fault("source", f"this lake holds the files of {source}, not of base_url", remedy, Exit.USAGE)
    if source is not None and lang != settings.lang:
        remedy = "Set `lang` as the lake has it, or use another lake."
        yield fault("source", f"this lake's texts are in lang {lang!r}, not {settings.lang!r}", remedy, Exit.USAGE)
    if look.fact(PAUSED) is not None:
        number = look.fact(PAUSED)["to"]
        message = f"syncing is paused since the lake was rolled back to snapshot {number}"
        yield warning("paused", message, "Run `scanlake resume` when syncs may go on.")
    if not held and (erased := look.fact(BEGUN)):
        message = f"a purge of {many(len(erased), 'file')} was not finished: their documents may still be on disk"
        yield warning("purge", message, "Run `scanlake publish`: it finishes what was begun.")
    yield from _history(look, settings, held=held)


def _history(look: Look, settings: Settings, *, held: bool) -> Iterator[Finding]:
    runs = look.query("SELECT run_id, command, state, error FROM run ORDER BY started_at DESC, rowid DESC LIMIT 1")
    if runs and runs[0]["state"] != "done" and not held:
        run = runs[0]
        why = "it was killed" if run["state"] == "running" else run["error"] or run["state"]
        yield warning("last run", f"{run['command']} {run['run_id']}: {why}", "Run it again; it goes on from there.")
    elif runs:
        yield ok("last run", f"{runs[0]['command']} {runs[0]['run_id']}: {runs[0]['state']}")
    horizon = look.fact("horizon")
    if horizon is None:
        yield warning("horizon", "no sync has come to its end yet", "Run `scanlake sync`.")
    else:
        age = time.time() - horizon
        message = f"everything updated before {as_datetime(horizon * SECOND):%Y-%m-%dT%H:%M:%SZ} is in"
        if age > _STALE:
            yield warning("horizon", f"{message}, {age / 86_400:,.1f} days ago", "Schedule `scanlake sync`.")
        else:
            yield ok("horizon", message)
    verified = look.fact("last_verify_at", look.fact("verify_from"))
    every = settings.verify_every_days * DAY
    if every and verified is not None and time.time_ns() // 1_000 - verified > 2 * every:
        days = (time.time_ns() // 1_000 - verified) / DAY
        yield warning("verify", f"deletions were last looked for {days:,.0f} days ago", "Run `scanlake verify`.")
    rejects = look.number("SELECT count(*) FROM reject")
    if rejects:
        yield warning("rejects", f"{rejects:,} could not be taken as they are", "Look at meta.rejects; runs try again.")


def _parts(layout: Layout, look: Look) -> Iterator[Finding]:
    named = look.query("SELECT name, bytes FROM part")
    wrong = lost_parts(layout, ((row["name"], row["bytes"]) for row in named))
    if wrong:
        some = f"{wrong[0]}" + (f" and {len(wrong) - 1:,} more" if len(wrong) > 1 else "")
        yield fault("parts", f"{some}: gone, or not the size it was", _CHECK, Exit.DAMAGE)
    else:
        yield ok("parts", f"all {len(named):,} are there, in their size (`scanlake check` reads them)")


def _catalog(layout: Layout, look: Look, settings: Settings, *, held: bool) -> Iterator[Finding]:
    last = look.query("SELECT snapshot, seq, sha256 FROM snapshot WHERE state = 'published' ORDER BY 1 DESC LIMIT 1")
    if not layout.catalog.exists():
        if last:
            yield fault("catalog", "catalog.duckdb is gone", _CHECK, Exit.DAMAGE)
        else:
            yield warning("catalog", "nothing has been published yet", "Run `scanlake sync`.")
        return
    with published(settings) as db:
        shown: dict[str, Any] = rows(db, "SELECT snapshot, files, anchor FROM meta.freshness")[0]
        counted = rows(db, "SELECT count(*) AS n FROM main.files")[0]["n"]
    if not held and last and last[0]["sha256"] and hash_of(layout.catalog) != last[0]["sha256"]:
        yield fault("catalog", "catalog.duckdb is not what was published", _CHECK, Exit.DAMAGE)
    elif counted != shown["files"]:
        message = f"the catalog shows {many(counted, 'file')} and says {shown['files']:,}"
        yield fault("catalog", message, _CHECK, Exit.DAMAGE)
    elif look.fact("anchor") is None and not layout.is_at(Path(shown["anchor"])):
        message = f"readers are sent to {shown['anchor']}, where the lake lies no more"
        yield fault("catalog", message, "Run `scanlake publish`.", Exit.DAMAGE)
    else:
        yield ok(
            "catalog", f"snapshot {shown['snapshot']}: {many(shown['files'], 'file')}, read from {shown['anchor']}"
        )
    ahead = not last or last[0]["seq"] < int(look.fact("next_seq", 1)) - 1
    if not held and (ahead or last[0]["snapshot"] != shown["snapshot"]):
        message = "something was committed that readers do not see yet"
        yield warning("catalog", message, "Run `scanlake sync`, or `scanlake publish`: either publishes it.")


def _leftovers(layout: Layout, look: Look) -> Iterator[Finding]:
    named = {row["name"] for row in look.query("SELECT name FROM part UNION ALL SELECT name FROM retired")}
    orphans = [path for path in our_parts(layout) if path.relative_to(layout.root).as_posix() not in named]
    asides = [path for path in layout.root.rglob("*") if is_aside(path)]
    left = [*orphans, *asides]
    if left:
        size = sum(max(0, _size(path)) for path in left)
        message = f"{many(len(left), 'file')} that a killed run left ({size / 1e6:,.1f} MB)"
        yield warning("leftovers", message, _NEXT_RUN)
    log = layout.catalog.with_name(f"{layout.catalog.name}.wal")
    if log.exists():
        yield warning("leftovers", f"{log.name}: a session wrote to the catalog", _NEXT_RUN)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return -1
