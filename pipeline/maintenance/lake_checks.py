"""Read-only checks of the settings' files, and of the lake's folder, ledger and history. They repair nothing."""

from __future__ import annotations

import os
import shutil
import stat
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pipeline.errors import ExitCode, LakeLockedError, ScanlakeError, SettingsError
from pipeline.findings import error, from_error, ok, skipped, warning
from pipeline.formatting import format_bytes, format_path, pluralize
from pipeline.lake.folder_checks import require_lake, require_lake_or_empty
from pipeline.lake.lake_folder import FolderKind, missing_lake_error
from pipeline.lake.layout import LakeLayout, describe_lock_owner, has_writer
from pipeline.lake.reader import open_ledger_readonly
from pipeline.maintenance.repair import check_files
from schemas.timestamps import DAY, SECOND, now_us, to_datetime

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pipeline.findings import Finding
    from pipeline.lake.ledger_queries import LedgerQueries
    from pipeline.lake.models import LakeProperties
    from pipeline.settings import Settings

_DISK_LIMITS_BYTES: Final = (50_000_000, 1_000_000_000)  # free: below the first an error, below the second a warning
_STALE_AFTER_SECONDS: Final = 86_400
_REPAIR_HINT: Final = "Run `scanlake repair`, or `scanlake sync`."


def check_permissions(config: Path | None, settings: Settings) -> Iterator[Finding]:
    """Yield findings for the file modes of the settings file and the token file."""
    if config is not None:
        mode, name = stat.S_IMODE(config.stat().st_mode), format_path(config)
        if mode & (stat.S_IWGRP | stat.S_IWOTH):
            problem = f"other users can change the settings (mode {mode:o}) and send the token elsewhere"
            yield warning("settings", name, problem, f"chmod go-w {name}")
        else:
            yield ok("settings", name, f"mode {mode:o}")
    if settings.token is None and settings.token_file is not None and settings.token_file.exists():
        name = format_path(settings.token_file)
        mode = stat.S_IMODE(settings.token_file.stat().st_mode)
        if mode & 0o077:
            yield warning("settings", name, f"other users can read the token (mode {mode:o})", f"chmod 600 {name}")
        else:
            yield ok("settings", name, "only its owner can read the token")


def check_folder(settings: Settings) -> Iterator[Finding]:
    """Yield findings for the lake's folder: existence, permissions, disk space.

    Without an address of the service nothing is written to the lake: a folder that cannot be written is in order.
    """
    root = settings.lake.absolute()
    existing = next((folder for folder in (root, *root.parents) if folder.exists()), Path("/"))
    name = format_path(existing)
    if not existing.is_dir():
        yield error("lake", name, "not a folder", "Correct `lake`, or remove the file.", ExitCode.STORAGE)
        return
    if settings.base_url is None:
        return
    if not os.access(existing, os.W_OK | os.X_OK):
        yield error("lake", name, "cannot be written", "Correct its permissions or owner.", ExitCode.STORAGE)
    elif existing != root:
        yield ok("lake", format_path(root), "does not exist yet; the first sync creates the folder")
    yield _check_disk_space(existing)


def _check_disk_space(existing: Path) -> Finding:
    free = shutil.disk_usage(existing).free
    problem = f"{format_bytes(free)} free"
    if free < _DISK_LIMITS_BYTES[0]:
        return error("lake", "disk", f"only {problem}", "Free disk space: a sync cannot commit.", ExitCode.STORAGE)
    if free < _DISK_LIMITS_BYTES[1]:
        return warning("lake", "disk", f"only {problem}", "Free disk space: a publish copies the catalog.")
    return ok("lake", "disk", problem)


def check_lake(settings: Settings, *, read_data: bool = False) -> Iterator[Finding]:
    """Yield findings for the lake: what its ledger records, then its files, compared with sizes and hashes.

    `read_data`: read every page of every part, and every image.
    """
    layout = LakeLayout(settings.lake.absolute())
    try:
        if require_lake_or_empty(layout) is FolderKind.EMPTY:
            if settings.base_url is None:
                raise missing_lake_error(layout.root, settings)
            yield ok("lake", format_path(layout.root), "the lake is empty")
            return
        require_lake(settings.lake)
        is_locked = has_writer(layout)
        with open_ledger_readonly(layout) as ledger:
            yield from _check_history(layout, ledger, settings, is_locked=is_locked)
        yield from check_files(layout, read_data=read_data).findings
    except LakeLockedError as failure:
        yield skipped("lake", "files", f"not compared: {failure.message}", failure.hint, failure.exit_code)
    except ScanlakeError as failure:
        yield from_error("lake", format_path(layout.root), failure)


def _check_history(
    layout: LakeLayout, ledger: LedgerQueries, settings: Settings, *, is_locked: bool
) -> Iterator[Finding]:
    yield ok("lake", "ledger", f"{pluralize(ledger.count_files(), 'file')}, format {ledger.format()}")
    properties = ledger.properties
    yield from _check_source(properties, settings)
    if (pause := properties.rollback_pause) is not None:
        problem = f"syncs are paused: the lake was rolled back to snapshot {pause['to']}"
        yield warning("lake", "paused", problem, "Run `scanlake rollback --undo` to allow syncs.")
    yield from _check_watermark(properties, settings)
    if rejects := sum(ledger.count_rejects().values()):
        problem = f"{pluralize(rejects, 'reject')} in meta.rejects"
        yield warning("lake", "rejects", problem, "Query meta.rejects: the next runs try again.")
    if is_locked:
        yield ok("lake", "lock", f"held by {describe_lock_owner(layout)}")
        return
    run = ledger.last_run()
    if run is not None and run.state != "done":
        reason = "killed" if run.state == "running" else run.error or run.state
        hint = f"Run `scanlake {run.command}` again: it continues there."
        yield warning("lake", "last run", f"{run.command} {run.run_id}: {reason}", hint)
    if file_ids := properties.purge_in_progress:
        problem = f"of {pluralize(len(file_ids), 'file')} was not finished: their documents may still be on disk"
        yield warning("lake", "purge", problem, _REPAIR_HINT)
    if ledger.has_unpublished_commits():
        yield warning("lake", "catalog", "lacks commits, which readers do not see yet", _REPAIR_HINT)


def _check_source(properties: LakeProperties, settings: Settings) -> Iterator[Finding]:
    if settings.base_url is not None:
        try:
            properties.require_service(str(settings.base_url))
        except SettingsError as failure:
            yield from_error("lake", "source", failure)
    if properties.source is not None and properties.has_data and properties.lang != settings.lang:
        hint = "Set `lang` to the value of the lake, or use another lake."
        problem = f"the lake's texts are in lang {properties.lang!r}, not {settings.lang!r}"
        yield error("lake", "source", problem, hint, ExitCode.USAGE)


def _check_watermark(properties: LakeProperties, settings: Settings) -> Iterator[Finding]:
    watermark = properties.watermark
    if watermark is None:
        yield warning("lake", "watermark", "none: the next sync lists all files", "Run `scanlake sync`.")
    else:
        age = time.time() - watermark
        problem = f"the lake has every update before {to_datetime(watermark * SECOND):%Y-%m-%dT%H:%M:%SZ}"
        if age < 0:
            hint = "Run `scanlake sync`: it goes back to the service's time. Synchronize this machine's clock by NTP."
            yield warning("lake", "watermark", f"{problem}, which is in the future", hint)
        elif age > _STALE_AFTER_SECONDS:
            problem += f", {age / 86_400:,.1f} days ago"
            yield warning("lake", "watermark", problem, "Schedule `scanlake sync`.")
        else:
            yield ok("lake", "watermark", problem)
    verified = properties.verified_or_synced_at
    every = settings.verify_every_days * DAY
    if every and verified is not None and (unverified := now_us() - verified) > 2 * every:
        problem = f"the last check for deletions was {unverified / DAY:,.0f} days ago"
        if properties.last_verify_at is None:  # after a rollback, the other instant is no real one
            problem = "deletions are unchecked since the first sync or the last rollback"
        yield warning("lake", "verify", problem, "Run `scanlake verify`.")
