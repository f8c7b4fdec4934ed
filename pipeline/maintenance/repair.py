"""Find damage in the lake's files and repair it, and check its folder, its ledger and the settings' files.

Three rules: the files of damaged documents are fetched again by the next sync, and are in meta.rejects until then; a
damaged catalog is made again from the documents; a damaged output is written again from the catalog.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow.parquet as pq
from msgspec import Struct, field
from msgspec.structs import replace

from pipeline.atomic_files import is_damaged_copy
from pipeline.errors import ExitCode, LakeCorruptedError, LakeLockedError, ScanlakeError, SettingsError
from pipeline.findings import Finding, Severity, damage, error, from_error, ok, skipped, warning
from pipeline.formatting import format_bytes, format_path, pluralize
from pipeline.lake import integrity
from pipeline.lake.catalog import find_base, refuse_other_databases
from pipeline.lake.documents import read_references
from pipeline.lake.folder_checks import require_lake, require_lake_or_empty
from pipeline.lake.integrity import find_damaged_catalogs
from pipeline.lake.lake_folder import FolderKind, missing_lake_error
from pipeline.lake.layout import (
    LakeLayout,
    describe_lock_owner,
    has_writer,
    list_snapshots,
    lock_lake_for_reading,
    translate_os_errors,
)
from pipeline.lake.ledger_format import REBUILD_HINT
from pipeline.lake.ledger_queries import RunRecord
from pipeline.lake.parts import RAW_TABLE
from pipeline.lake.reader import open_ledger_readonly
from pipeline.version import __version__
from schemas.tables import COMMIT_SEQ_COLUMN
from schemas.timestamps import DAY, SECOND, new_run_id, now_us, to_datetime

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pipeline.lake.lake import Lake
    from pipeline.lake.ledger_queries import LakeProperties, LedgerQueries, Part
    from pipeline.settings import Settings

_RAW_LOST_REASON: Final = "the document in documents/ was damaged; the next sync fetches the file again"


class LakeCheck(Struct):
    """Findings about the files of a lake. The next sync fetches `files_to_fetch`, once the lake is repaired."""

    findings: list[Finding] = field(default_factory=list)
    files_to_fetch: Sequence[int] = ()
    images_to_fetch: int = 0

    @property
    def damage(self) -> list[Finding]:
        """Findings of files that differ from what was written, repaired or not."""
        return [item for item in self.findings if item.severity in {Severity.ERROR, Severity.REPAIRED}]


class DamagedPart(Struct, frozen=True):
    """A part with another content than recorded, and the current files of its commits."""

    part: Part
    problem: str
    files: frozenset[int]


class PartDamage(Struct, frozen=True):
    """Problems of the parts. No raw part has the documents of `files_without_raw`."""

    parts: Sequence[DamagedPart]
    files_without_raw: frozenset[int]


def check_files(layout: LakeLayout, *, read_data: bool = False) -> LakeCheck:
    """Compare the files of a lake with their recorded sizes and hashes. Write nothing, neither ledger nor lock.

    Raises `LakeCorruptedError` if the ledger cannot be read: nothing else can be compared then.
    """
    with lock_lake_for_reading(layout), open_ledger_readonly(layout) as ledger:
        if (problem := ledger.quick_check()) != "ok":
            raise LakeCorruptedError(f"{layout.ledger}: {problem}.", hint=REBUILD_HINT)
        integrity.refuse_foreign_entries(layout)
        refuse_other_databases(layout, ledger)
        return _check(layout, ledger, (), None, read_data=read_data)


def repair_files(lake: Lake, *, read_data: bool = False) -> LakeCheck:
    """Do what `check_files` does, and repair the damage. The caller opens the lake with `check_before_open`.

    Publishes what a killed run did not publish, and so completes an interrupted purge.
    """
    check = _check(lake.layout, lake.ledger, lake.findings, lake, read_data=read_data)
    if lake.needs_publish or lake.ledger.properties.purge_in_progress is not None:
        lake.republish(at=now_us())
    repaired = {"severity": Severity.REPAIRED, "hint": "", "exit_code": ExitCode.OK}
    check.findings = [replace(item, **repaired) if item.repair else item for item in check.findings]
    return check


def _check(
    layout: LakeLayout, ledger: LedgerQueries, findings: Sequence[Finding], lake: Lake | None, *, read_data: bool
) -> LakeCheck:
    """Check the lake, and repair it if `lake` is open for writing."""
    check = LakeCheck(list(findings))
    snapshots = len(list_snapshots(layout))
    parts = find_part_damage(layout, ledger, read_data=read_data)
    check.findings += _describe_part_damage(parts)
    check.files_to_fetch = sorted(parts.files_without_raw)
    damaged_parts = {damaged.part.name for damaged in parts.parts}
    catalogs = list(find_damaged_catalogs(layout, ledger, damaged_parts=damaged_parts))
    if lake is not None:
        _repair_parts(lake, parts, is_catalog_damaged=layout.catalog.name in {item.subject for item in catalogs})
        if catalogs:
            _repair_catalogs(lake, catalogs)
    images = integrity.check_images(layout, ledger, read_data=read_data)
    if lake is not None and images.damaged:
        integrity.queue_images_again(layout, lake.ledger, images.damaged)
        lake.republish(at=now_us())
    check.images_to_fetch = len(images.damaged)
    check.findings += [*catalogs, *(image.finding for image in images.damaged)]
    check.findings += _describe_unknown_files(layout, [*images.unlisted, *integrity.find_unknown_files(layout, ledger)])
    current = ledger.parts()
    size = format_bytes(sum(part.bytes for part in current) + images.bytes)
    counts = [pluralize(len(current), "part"), pluralize(snapshots, "snapshot")]
    counts += [pluralize(images.count, "image")] if images.count else []
    check.findings.append(ok("lake", "files", f"{', '.join(counts)} compared, {size}"))
    return check


def _describe_unknown_files(layout: LakeLayout, names: Iterable[str]) -> Iterator[Finding]:
    """Yield a finding for each file that scanlake did not write, and for each ledger that a repair has replaced."""
    for name in names:
        if name.startswith(layout.ledger.name) and is_damaged_copy(layout.root / name):
            problem, hint = "a damaged ledger, replaced by a rebuilt one", "Delete it when it is not needed."
        else:
            problem, hint = "unknown file, not changed", "Move it out of the lake, or delete it."
        yield warning("lake", name, problem, hint)


# Find


def find_part_damage(layout: LakeLayout, ledger: LedgerQueries, *, read_data: bool) -> PartDamage:
    """Return the problems of the parts. Changes nothing."""
    problems = ((part, integrity.find_file_problem(layout.part_path(part.name), part)) for part in ledger.parts())
    damaged = [(part, problem) for part, problem in problems if problem is not None]
    names = {part.name for part, _ in damaged}
    raw_parts = [part for part in ledger.parts() if part.table_name == RAW_TABLE and part.name not in names]
    commit_seqs = {
        part.span: dict(ledger.file_commit_seqs(part.span)) for part, _ in damaged if part.table_name == RAW_TABLE
    }
    affected = dict(ledger.file_commit_seqs()) if read_data else {}
    for files in commit_seqs.values():
        affected |= files
    return PartDamage(
        [DamagedPart(part, problem, frozenset(commit_seqs.get(part.span, ()))) for part, problem in damaged],
        _find_files_without_raw(layout, raw_parts, affected),
    )


def _find_files_without_raw(
    layout: LakeLayout, raw_parts: Iterable[Part], commit_seqs: Mapping[int, int]
) -> frozenset[int]:
    """Return the files, given as {file id: commit}, whose document no raw part has."""
    missing, seqs = dict(commit_seqs), set(commit_seqs.values())
    for part in raw_parts:
        if not any(part.first_commit_seq <= seq <= part.last_commit_seq for seq in seqs):
            continue
        with pq.ParquetFile(layout.part_path(part.name)) as file:
            for batch in file.iter_batches(columns=["file_id", COMMIT_SEQ_COLUMN]):
                for file_id, seq in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                    if missing.get(file_id) == seq:
                        del missing[file_id]
    return frozenset(missing)


def _describe_part_damage(parts: PartDamage) -> Iterator[Finding]:
    for damaged in parts.parts:
        part, lost = damaged.part, damaged.files & parts.files_without_raw
        low, high = part.span
        commits = f"commit {low}" if low == high else f"commits {low} to {high}"
        if part.table_name == RAW_TABLE:
            to_fetch = "the next sync fetches its files again" if lost else "nothing has to be fetched"
            files, repair = lost, f"removed; {to_fetch}"
        else:
            files, repair = frozenset(), "written again from the catalog"
        yield damage(part.name, f"{damaged.problem} ({part.table_name}, {commits})", repair, files)
    if parts.files_without_raw and not parts.parts:
        yield damage("documents/", "lacks the documents of files", "queued for the next sync", parts.files_without_raw)


# Repair


def _repair_parts(lake: Lake, parts: PartDamage, *, is_catalog_damaged: bool) -> None:
    """Repair the parts. A catalog that will be made from the documents will lack the files that have none."""
    ledger = lake.ledger
    raw = [damaged.part for damaged in parts.parts if damaged.part.table_name == RAW_TABLE]
    if raw:
        ledger.replace_parts(raw, [], at=now_us())
    lost = parts.files_without_raw
    is_built = is_catalog_damaged or find_base(lake.layout, ledger) is None
    if is_built:
        raw_parts = [part for part in ledger.parts() if part.table_name == RAW_TABLE]
        lost = _find_files_without_raw(lake.layout, raw_parts, dict(ledger.file_commit_seqs()))
    if lost:
        queue_refetch(lake, lost, incomplete=set(lost) if is_built else set())
    outputs = [damaged.part.name for damaged in parts.parts if damaged.part.table_name != RAW_TABLE]
    with translate_os_errors(lake.layout.root):
        for name in outputs:  # what is missing is written again
            lake.layout.part_path(name).unlink(missing_ok=True)
    if not is_catalog_damaged and (outputs or ledger.has_unpublished_commits()):
        lake.republish(at=now_us())


def queue_refetch(lake: Lake, file_ids: Iterable[int], *, incomplete: set[int]) -> None:
    """Queue files for the next sync. `incomplete` ones lost rows, so they leave every table until then."""
    ledger, now, run_id = lake.ledger, now_us(), new_run_id()
    ledger.begin_run(RunRecord(run_id, "repair", __version__, now, state="done", ended_at=now))
    commit_seqs = dict(ledger.file_commit_seqs())
    seqs = {file_id: commit_seqs[file_id] for file_id in sorted(file_ids)}
    references: dict[int, str | None] = {}
    with suppress(LakeCorruptedError):  # the part with the references may be damaged too
        references = read_references(lake.layout, ledger, seqs)
    documents = {key: json.dumps({"id": key, "scan_code": references.get(key)}).encode() for key in seqs}
    ledger.queue_refetch(documents, incomplete=incomplete, reason=_RAW_LOST_REASON, run_id=run_id, at=now)


def _repair_catalogs(lake: Lake, catalogs: Sequence[Finding]) -> None:
    """Publish again, and then delete the damaged snapshots: all but the newest, which the publish has replaced.

    A damaged catalog is not updated, although it may look as it was published: what an update does not read stays.
    """
    is_catalog_damaged = lake.layout.catalog.name in {item.subject for item in catalogs}
    newest = lake.layout.snapshot_path(lake.republish(at=now_us(), rebuild=is_catalog_damaged).snapshot)
    published = {lake.layout.catalog.name, lake.layout.part_name(newest)}
    with translate_os_errors(lake.layout.root):
        for item in catalogs:
            if item.subject not in published:
                (lake.layout.root / item.subject).unlink(missing_ok=True)


# Settings, folder and ledger

_DISK_LIMITS_BYTES: Final = (50_000_000, 1_000_000_000)  # free: below the first an error, below the second a warning
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

    `read_data`: look for the documents of every file, and read every image.
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
            yield from _check_ledger(layout, ledger, settings, is_locked=is_locked)
        yield from check_files(layout, read_data=read_data).findings
    except LakeLockedError as failure:
        yield skipped("lake", "files", f"not compared: {failure.message}", failure.hint, failure.exit_code)
    except ScanlakeError as failure:
        yield from_error("lake", format_path(layout.root), failure)


def _check_ledger(
    layout: LakeLayout, ledger: LedgerQueries, settings: Settings, *, is_locked: bool
) -> Iterator[Finding]:
    """Yield what a killed run left, another service and odd instants. `scanlake status` has runs, pause and rejects."""
    yield ok("lake", "ledger", f"{pluralize(ledger.count_files(), 'file')}, format {ledger.format()}")
    properties = ledger.properties
    yield from _check_source(properties, settings)
    yield from _check_instants(properties, settings)
    if is_locked:
        yield ok("lake", "lock", f"held by {describe_lock_owner(layout)}")
        return
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
        problem = f"the lake's texts have lang {properties.lang or 'unset'}, not {settings.lang or 'unset'}"
        yield error("lake", "source", problem, hint, ExitCode.USAGE)


def _check_instants(properties: LakeProperties, settings: Settings) -> Iterator[Finding]:
    watermark = properties.watermark
    if watermark is not None and watermark * SECOND > now_us():
        hint = "Synchronize this machine's clock and the service's by NTP, then run `scanlake sync`: it goes back."
        problem = f"{to_datetime(watermark * SECOND):%Y-%m-%dT%H:%M:%SZ} is in the future"
        yield warning("lake", "watermark", problem, hint)
    verified, every = properties.verified_or_synced_at, settings.verify_every_days * DAY
    if every and verified is not None and (unverified := now_us() - verified) > 2 * every:
        problem = f"the last check for deletions was {unverified / DAY:,.0f} days ago"
        if properties.last_verify_at is None:  # after a rollback, the other instant is no real one
            problem = "deletions are unchecked since the first sync or the last rollback"
        yield warning("lake", "verify", problem, "Run `scanlake verify`.")
