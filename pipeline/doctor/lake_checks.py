"""Read-only checks of the lake and its folder. They write nothing and repair nothing."""

from __future__ import annotations

import os
import shutil
import stat
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import duckdb

from pipeline.atomic_files import is_temp_file
from pipeline.client.clock import MAX_AHEAD_SECONDS
from pipeline.doctor.finding import Finding, from_error, ok, problem, warning
from pipeline.errors import ExitCode, LakeCorruptedError, ScanlakeError, SettingsError
from pipeline.formatting import format_bytes, format_path, pluralize
from pipeline.lake.duckdb_errors import describe_damage
from pipeline.lake.file_names import list_part_files
from pipeline.lake.folder_checks import require_lake, require_lake_or_empty
from pipeline.lake.integrity import missing_or_resized_parts
from pipeline.lake.lake_folder import FolderKind
from pipeline.lake.layout import LakeLayout, describe_lock_owner, is_lake_locked
from pipeline.lake.reader import fetch_dicts, open_catalog, open_ledger_readonly
from schemas.timestamps import DAY, SECOND, now_us, to_datetime

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pipeline.lake.models import LakeProperties
    from pipeline.lake.reader import LedgerReader
    from pipeline.settings import Settings

_DISK_LIMITS_BYTES: Final = (50_000_000, 1_000_000_000)  # free: below the first an error, below the second a warning
_STALE_AFTER_SECONDS: Final = 86_400
_NETWORK_FILE_SYSTEMS: Final = frozenset({"nfs", "nfs4", "cifs", "smb3", "smbfs", "fuse.sshfs", "9p", "afs"})
_RUN_CHECK_HINT: Final = "Run `scanlake check`: it finds and repairs the damage."
_NEXT_RUN_HINT: Final = "Nothing to do: the next run removes the leftovers."


def check_permissions(config: Path | None, settings: Settings) -> Iterator[Finding]:
    """Yield findings for the file modes of the settings file and the token file."""
    if config is not None:
        mode, name = stat.S_IMODE(config.stat().st_mode), format_path(config)
        if mode & (stat.S_IWGRP | stat.S_IWOTH):
            message = f"{name}: other users can change the settings (mode {mode:o}) and send the token elsewhere"
            yield warning("permissions", message, f"chmod go-w {name}")
        else:
            yield ok("permissions", f"{name}: mode {mode:o}")
    if settings.token is None and settings.token_file is not None and settings.token_file.exists():
        path = format_path(settings.token_file)
        mode = stat.S_IMODE(settings.token_file.stat().st_mode)
        if mode & 0o077:
            yield warning("permissions", f"{path}: other users can read the token (mode {mode:o})", f"chmod 600 {path}")
        else:
            yield ok("permissions", f"{path}: only its owner can read the token")


def check_folder(settings: Settings) -> Iterator[Finding]:
    """Yield findings for the lake's folder: existence, permissions, file system, disk space."""
    root = settings.lake.absolute()
    existing = next((folder for folder in (root, *root.parents) if folder.exists()), Path("/"))
    name = format_path(existing)
    if not existing.is_dir():
        yield problem("folder", f"{name} is not a folder", "Correct `lake`, or remove the file.", ExitCode.STORAGE)
        return
    if not os.access(existing, os.W_OK | os.X_OK):
        yield problem("folder", f"{name} cannot be written", "Correct its permissions or owner.", ExitCode.STORAGE)
    else:
        state = "can be written" if existing == root else "does not exist yet; the first sync creates the folder"
        yield ok("folder", f"{format_path(root)} {state}")
    kind = _find_file_system(existing)
    if kind in _NETWORK_FILE_SYSTEMS:
        message = f"{name} is on a network file system ({kind}), where locks may not work"
        yield warning("folder", message, "Write to the lake from one machine only, or move the lake to a local disk.")
    yield _check_disk_space(existing, root)


def check_lake(settings: Settings) -> Iterator[Finding]:
    """Yield findings for the lock, the ledger, the parts and the catalog of the lake."""
    layout = LakeLayout(settings.lake.absolute())
    try:
        if require_lake_or_empty(layout) is FolderKind.EMPTY:
            yield ok("lake", "the lake is empty")
            return
        require_lake(layout)
        is_locked = is_lake_locked(layout)
    except LakeCorruptedError as error:
        yield problem("ledger", error.message.rstrip("."), _RUN_CHECK_HINT, ExitCode.DAMAGE)
        return
    except ScanlakeError as error:
        yield from_error("lake", error)
        return
    yield ok("lock", f"locked by {describe_lock_owner(layout)}" if is_locked else "no run holds the lock")
    try:
        with open_ledger_readonly(layout) as ledger:
            yield from _check_ledger(ledger, settings, is_locked=is_locked)
            yield from _catch_errors("parts", lambda: _check_parts(layout, ledger))
            yield from _catch_errors("catalog", lambda: _check_catalog(layout, ledger, settings, is_locked=is_locked))
            if not is_locked:
                yield from _catch_errors("leftovers", lambda: _check_orphans(layout, ledger))
    except ScanlakeError as error:
        yield from_error("ledger", error)


def _catch_errors(check: str, run_check: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    """Yield the findings of a check, and an error of the check as a finding."""
    try:
        yield from run_check()
    except ScanlakeError as error:
        yield from_error(check, error)
    except duckdb.Error as error:
        yield problem(check, describe_damage(error), _RUN_CHECK_HINT, ExitCode.DAMAGE)
    except OSError as error:
        hint = "Correct the permissions of the file."
        yield problem(check, f"{error.strerror}: {format_path(Path(str(error.filename)))}", hint, ExitCode.STORAGE)


# The folder


def _check_disk_space(existing: Path, root: Path) -> Finding:
    free = shutil.disk_usage(existing).free
    message = f"{format_bytes(free)} free"
    if free < _DISK_LIMITS_BYTES[0]:
        return problem("disk", f"only {message}", "Free disk space: a sync cannot commit.", ExitCode.STORAGE)
    parts = sum(map(_file_size, root.glob("parts/*/*.parquet"))) if existing == root else 0
    if free < max(_DISK_LIMITS_BYTES[1], parts):
        hint = "Free disk space: a compaction needs as much as the tables take."
        return warning("disk", f"{message}, and the tables take {format_bytes(parts)}", hint)
    return ok("disk", message)


def _find_file_system(path: Path) -> str:
    """Return the type of the file system of a path, or "" if the system has no /proc."""
    try:
        mounts = [line.split() for line in Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError):
        return ""
    resolved = path.resolve()
    containing = [(mount[1], mount[2]) for mount in mounts if resolved.is_relative_to(mount[1])]
    return max(containing, key=lambda mount: len(mount[0]), default=("", ""))[1]


# The lake


def _check_ledger(ledger: LedgerReader, settings: Settings, *, is_locked: bool) -> Iterator[Finding]:
    result = ledger.quick_check()
    if result != "ok":
        raise LakeCorruptedError(f"ledger.sqlite: {result}", hint=_RUN_CHECK_HINT)
    yield ok("ledger", f"intact: {pluralize(ledger.count_files(), 'file')}, format {ledger.format()}")
    properties = ledger.properties
    yield from _check_source(properties, settings)
    if (pause := properties.rollback_pause) is not None:
        message = f"syncs are paused: the lake was rolled back to snapshot {pause['to']}"
        yield warning("paused", message, "Run `scanlake rollback --undo` to allow syncs.")
    if not is_locked and (file_ids := properties.purge_in_progress):
        files = pluralize(len(file_ids), "file")
        message = f"a purge of {files} was not finished: their documents may still be on disk"
        yield warning("purge", message, "Run `scanlake sync`: it finishes the purge.")
    yield from _check_history(ledger, settings, is_locked=is_locked)


def _check_source(properties: LakeProperties, settings: Settings) -> Iterator[Finding]:
    if settings.base_url is not None:
        try:
            properties.require_service(str(settings.base_url))
        except SettingsError as error:
            yield from_error("source", error)
    if properties.source is not None and properties.has_data and properties.lang != settings.lang:
        hint = "Set `lang` to the value of the lake, or use another lake."
        message = f"the lake's texts are in lang {properties.lang!r}, not {settings.lang!r}"
        yield problem("source", message, hint, ExitCode.USAGE)


def _check_history(ledger: LedgerReader, settings: Settings, *, is_locked: bool) -> Iterator[Finding]:
    run, properties = ledger.last_run(), ledger.properties
    if run is not None and run.state != "done" and not is_locked:
        reason = "killed" if run.state == "running" else run.error or run.state
        hint = f"Run `scanlake {run.command}` again: it continues there."
        yield warning("last run", f"{run.command} {run.run_id}: {reason}", hint)
    elif run is not None:
        yield ok("last run", f"{run.command} {run.run_id}: {run.state}")
    watermark = properties.watermark
    if watermark is None:
        yield warning("watermark", "no sync has finished yet", "Run `scanlake sync`.")
    else:
        age = time.time() - watermark
        message = f"the lake has every update before {to_datetime(watermark * SECOND):%Y-%m-%dT%H:%M:%SZ}"
        if age < -MAX_AHEAD_SECONDS:
            yield warning(
                "watermark", f"{message}, which is in the future", "Run `scanlake sync`: it goes back to now."
            )
        elif age > _STALE_AFTER_SECONDS:
            yield warning("watermark", f"{message}, {age / 86_400:,.1f} days ago", "Schedule `scanlake sync`.")
        else:
            yield ok("watermark", message)
    verified = properties.verified_or_synced_at
    every = settings.verify_every_days * DAY
    if every and verified is not None and (unverified := now_us() - verified) > 2 * every:
        days = unverified / DAY
        message = f"the last check for deletions was {days:,.0f} days ago"
        if properties.last_verify_at is None:  # after a rollback, the other instant is no real one
            message = "deletions are unchecked since the first sync or the last rollback"
        yield warning("verify", message, "Run `scanlake verify`.")
    rejects = sum(ledger.count_rejects().values())
    if rejects:
        hint = "Query meta.rejects: the next runs try again."
        yield warning("rejects", f"{pluralize(rejects, 'reject')} in meta.rejects", hint)


def _check_parts(layout: LakeLayout, ledger: LedgerReader) -> Iterator[Finding]:
    recorded = ledger.parts()
    damaged = missing_or_resized_parts(layout, ((part.name, part.bytes) for part in recorded))
    if damaged:
        names = f"{damaged[0]}" + (f" and {len(damaged) - 1:,} more" if len(damaged) > 1 else "")
        yield problem("parts", f"{names}: missing, or of another size", _RUN_CHECK_HINT, ExitCode.DAMAGE)
    else:
        yield ok("parts", f"all {len(recorded):,} exist with their size (`scanlake check` reads them)")


def _check_catalog(
    layout: LakeLayout, ledger: LedgerReader, settings: Settings, *, is_locked: bool
) -> Iterator[Finding]:
    last = ledger.last_snapshot()
    if not layout.catalog.exists():
        if last:
            yield problem("catalog", "catalog.duckdb is missing", _RUN_CHECK_HINT, ExitCode.DAMAGE)
        else:
            yield warning("catalog", "nothing has been published yet", "Run `scanlake sync`.")
        return
    with open_catalog(settings) as db:
        freshness: dict[str, Any] = fetch_dicts(db, "SELECT snapshot, files, parts_root FROM meta.freshness")[0]
        files = fetch_dicts(db, "SELECT count(*) AS n FROM main.files")[0]["n"]
    if files != freshness["files"]:
        message = f"the catalog has {pluralize(files, 'file')}, but meta.freshness has {freshness['files']:,}"
        yield problem("catalog", message, _RUN_CHECK_HINT, ExitCode.DAMAGE)
    elif not layout.is_same_path(Path(freshness["parts_root"])):
        message = f"the catalog names parts in {freshness['parts_root']}, but the lake has moved"
        yield problem("catalog", message, "Run `scanlake sync`.", ExitCode.DAMAGE)
    else:
        files = pluralize(freshness["files"], "file")
        yield ok("catalog", f"snapshot {freshness['snapshot']}: {files}")
    has_unpublished = ledger.has_unpublished_commits()
    if not is_locked and (has_unpublished or last is None or last.snapshot != freshness["snapshot"]):
        message = "the lake has commits that readers do not see yet"
        yield warning("catalog", message, "Run `scanlake sync`.")


def _check_orphans(layout: LakeLayout, ledger: LedgerReader) -> Iterator[Finding]:
    recorded = ledger.part_names()
    orphans = [path for path in list_part_files(layout) if path.relative_to(layout.root).as_posix() not in recorded]
    temp_files = [path for path in layout.root.rglob("*") if is_temp_file(path)]
    leftovers = [*orphans, *temp_files]
    if leftovers:
        size = sum(map(_file_size, leftovers))
        message = f"{pluralize(len(leftovers), 'file')} left by a killed run ({format_bytes(size)})"
        yield warning("leftovers", message, _NEXT_RUN_HINT)
    log = layout.catalog.with_name(f"{layout.catalog.name}.wal")
    if log.exists():
        yield warning("leftovers", f"{log.name}: a session wrote to the catalog", _NEXT_RUN_HINT)


def _file_size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # it vanished meanwhile
        return 0
