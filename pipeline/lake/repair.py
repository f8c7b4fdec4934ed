"""Find damage in the lake's files and repair it, and check its folder, its ledger and the settings' files.

Three rules: the files of damaged documents are fetched again by the next sync, and are in meta.rejects until then; a
damaged catalog is made again from the documents; a damaged output is written again from the catalog.
"""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import Struct, field
from msgspec.structs import replace

from pipeline.errors import ExitCode, LakeCorruptedError, LakeLockedError, ScanlakeError, SettingsError
from pipeline.lake import integrity
from pipeline.lake.catalog.catalog import find_base, refuse_other_databases
from pipeline.lake.catalog.folder_checks import require_lake, require_lake_or_empty
from pipeline.lake.document_damage import DamagedPart, find_damage, find_lost_files, repair_documents
from pipeline.lake.integrity import find_damaged_catalogs
from pipeline.lake.ledger.folder import FolderKind, missing_lake_error
from pipeline.lake.ledger.format import REBUILD_HINT
from pipeline.lake.ledger.images import ImageRecord, ImageState, write_images
from pipeline.lake.ledger.readonly import open_ledger_readonly
from pipeline.lake.storage import foreign_entries
from pipeline.lake.storage.atomic_files import is_damaged_copy
from pipeline.lake.storage.images import move_damaged
from pipeline.lake.storage.lake_lock import describe_lock_owner, has_writer, lock_lake_for_reading
from pipeline.lake.storage.layout import LakeLayout, is_image_path, list_snapshots, translate_os_errors
from pipeline.lake.storage.parts import RAW_TABLE
from pipeline.output.findings import Finding, Severity, damage, error, from_error, ok, skipped, warning
from pipeline.output.formatting import format_bytes, format_path, pluralize
from schemas.timestamps import DAY, SECOND, now_us, to_datetime

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pipeline.lake.integrity import DamagedImage, ImageCheck
    from pipeline.lake.lake import Lake
    from pipeline.lake.ledger.ledger import Ledger
    from pipeline.lake.ledger.queries import DeltaBase, LakeProperties, LedgerQueries
    from pipeline.settings.settings import Settings


class LakeCheck(Struct):
    """Findings about the files of a lake. The next sync fetches `files_to_fetch`, once the lake is repaired."""

    findings: list[Finding] = field(default_factory=list)
    files_to_fetch: Sequence[int] = ()
    images_to_fetch: int = 0

    @property
    def damage(self) -> list[Finding]:
        """Findings of files that differ from what was written, repaired or not."""
        return [item for item in self.findings if item.severity in {Severity.ERROR, Severity.REPAIRED}]


def check_files(layout: LakeLayout, *, read_data: bool = False) -> LakeCheck:
    """Compare the files of a lake with their recorded sizes and hashes. Write nothing, neither ledger nor lock.

    Raises `LakeCorruptedError` if the ledger cannot be read: nothing else can be compared then.
    """
    with lock_lake_for_reading(layout), open_ledger_readonly(layout) as ledger:
        if (problem := ledger.quick_check()) != "ok":
            raise LakeCorruptedError(f"{layout.ledger}: {problem}.", hint=REBUILD_HINT)
        foreign_entries.refuse_foreign_entries(layout)
        refuse_other_databases(layout, ledger)
        return _Damage.find(layout, ledger, read_data=read_data).describe(layout, ledger)


def repair_files(lake: Lake, *, read_data: bool = False) -> LakeCheck:
    """Do what `check_files` does, and repair the damage. The caller opens the lake for its repair.

    Publishes what a killed run did not publish, and so completes an interrupted purge.
    """
    damage = _Damage.find(lake.layout, lake.ledger, read_data=read_data)
    check = damage.describe(lake.layout, lake.ledger)
    damage.repair(lake)
    repaired = {"severity": Severity.REPAIRED, "hint": "", "exit_code": ExitCode.OK}
    findings = [*lake.findings, *check.findings]
    check.findings = [replace(item, **repaired) if item.repair else item for item in findings]
    return check


class _Damage(Struct, frozen=True):
    """What differs from what was written. `base` is the catalog that needs no build, `lost` has no documents."""

    parts: Sequence[DamagedPart]
    lost: frozenset[int]
    base: DeltaBase | None
    catalogs: Sequence[Finding]
    images: ImageCheck

    @classmethod
    def find(cls, layout: LakeLayout, ledger: LedgerQueries, *, read_data: bool) -> _Damage:
        """Compare everything. Change nothing."""
        parts = find_damage(layout, ledger)
        damaged = {item.part.name for item in parts}
        catalogs = list(find_damaged_catalogs(layout, ledger, damaged_parts=damaged))
        base = None if layout.catalog.name in {item.subject for item in catalogs} else find_base(layout, ledger)
        lost = find_lost_files(layout, ledger, parts, of_all=read_data or base is None)
        return cls(parts, lost, base, catalogs, integrity.check_images(layout, ledger, read_data=read_data))

    def describe(self, layout: LakeLayout, ledger: LedgerQueries) -> LakeCheck:
        """Return the findings."""
        current, snapshots, images = ledger.parts(), len(list_snapshots(layout)), self.images
        findings = [self._describe_part(layout, ledger, damaged) for damaged in self.parts]
        if self.lost and not self.parts:
            problem, repair = "lacks the documents of files", "queued for the next sync"
            findings.append(damage("documents/", problem, repair, self.lost))
        findings += [*self.catalogs, *(image.finding for image in images.damaged)]
        unknown = [*images.unlisted, *integrity.find_unknown_files(layout, ledger)]
        findings += _describe_unknown_files(layout, unknown)
        counts = [pluralize(len(current), "part"), pluralize(snapshots, "snapshot")]
        counts += [pluralize(images.count, "image")] if images.count else []
        size = format_bytes(sum(part.bytes for part in current) + images.bytes)
        findings.append(ok("lake", "files", f"{', '.join(counts)} compared, {size}"))
        return LakeCheck(findings, sorted(self.lost), len(images.damaged))

    def _describe_part(self, layout: LakeLayout, ledger: LedgerQueries, damaged: DamagedPart) -> Finding:
        part, (low, high) = damaged.part, damaged.part.span
        commits = f"commit {low}" if low == high else f"commits {low} to {high}"
        lost = self.lost.intersection(dict(ledger.file_commit_seqs(part.span))) if damaged.has_lost_documents else ()
        if damaged.is_whole:
            problem = f"has another size, hash or row count of {part.name} than the file"
            return damage(layout.ledger.name, problem, "corrected from the file")
        repair = f"removed; {'the next sync fetches its files again' if lost else 'nothing has to be fetched'}"
        if not damaged.has_lost_documents:
            repair = "written again from the catalog"
        return damage(part.name, f"{damaged.problem} ({part.table_name}, {commits})", repair, lost)

    def repair(self, lake: Lake) -> None:
        """Repair everything, and publish once.

        A damaged catalog is not updated, although it may look as it was published: what an update does not read stays.
        Then the damaged snapshots go, but for the one that the publish has replaced.
        """
        layout, ledger = lake.layout, lake.ledger
        repair_documents(layout, ledger, self.parts, self.lost, self.base)
        outputs = [item.part.name for item in self.parts if item.part.table_name != RAW_TABLE]
        _queue_images_again(layout, ledger, self.images.damaged)
        with translate_os_errors(layout.root):
            for name in outputs:  # the publish writes what is missing
                layout.part_path(name).unlink(missing_ok=True)
            is_due = lake.needs_publish or ledger.properties.purge_in_progress is not None
            if is_due or outputs or self.catalogs or self.images.damaged:
                is_built = layout.catalog.name in {item.subject for item in self.catalogs}
                published = lake.republish(at=now_us(), rebuild=is_built).snapshot
                for path in {layout.root / item.subject for item in self.catalogs}:
                    if path not in {layout.catalog, layout.snapshot_path(published)}:
                        path.unlink(missing_ok=True)


def _queue_images_again(layout: LakeLayout, ledger: Ledger, images: Iterable[DamagedImage]) -> None:
    """Rename damaged images, and make their rows failed: the next `scanlake images` fetches them again."""
    for image in images:
        path = layout.root / image.finding.subject
        if is_image_path(image.finding.subject) and os.path.lexists(path):
            move_damaged(path)
        reason = f"its file was damaged: {image.finding.problem}"
        failed = ImageState.FAILED
        write_images(ledger, [ImageRecord(*item.key, failed, item.fetched_at, reason) for item in image.records])


def _describe_unknown_files(layout: LakeLayout, names: Iterable[str]) -> Iterator[Finding]:
    """Yield a finding for each file that scanlake did not write, and for each ledger that a repair has replaced."""
    for name in names:
        if name.startswith(layout.ledger.name) and is_damaged_copy(layout.root / name):
            problem, hint = "a damaged ledger, replaced by a rebuilt one", "Delete it when it is not needed."
        else:
            problem, hint = "unknown file, not changed", "Move it out of the lake, or delete it."
        yield warning("lake", name, problem, hint)


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
