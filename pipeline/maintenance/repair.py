"""Check and repair: find damage in the lake, then repair it from undamaged data.

Parts come before catalogs; each is first checked, then repaired. A damaged part is rebuilt from raw documents, with the
same versions under the same commits. If those are damaged too, the next sync fetches the files again; until then they
are in meta.rejects.
"""

from __future__ import annotations

import json
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import pyarrow.parquet as pq

from pipeline.errors import LakeCorruptedError
from pipeline.lake import integrity, lookups
from pipeline.lake.catalog_integrity import damaged_catalogs
from pipeline.lake.file_names import list_snapshots
from pipeline.lake.image_integrity import check_images
from pipeline.lake.integrity import IntegrityIssue
from pipeline.lake.layout import lock_lake_for_reading, translate_os_errors
from pipeline.lake.models import RunRecord
from pipeline.lake.parts import RAW_TABLE
from pipeline.lake.reader import open_ledger_readonly
from pipeline.lake.sqlite_errors import REBUILD_HINT
from pipeline.maintenance.rebuild import rebuild
from pipeline.version import __version__
from schemas.tables import COMMIT_SEQ_COLUMN
from schemas.timestamps import new_run_id, now_us

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pipeline.lake.integrity import RecordedPart
    from pipeline.lake.lake import Lake
    from pipeline.lake.layout import LakeLayout
    from pipeline.lake.ledger_queries import LedgerQueries
    from pipeline.lake.models import Part

    RecordedParts = Mapping[str, RecordedPart]

_MAX_LISTED_IDS: Final = 1_000
_RAW_LOST_REASON: Final = "the document in raw/ was damaged; the next sync fetches the file again"


@dataclass(frozen=True, slots=True)
class Damage:
    """One finding: damaged object, affected rows, affected files (at most 1,000 ids), and repair."""

    subject: str
    problem: str
    concerns: str
    files: int
    file_ids: tuple[int, ...]
    repaired: str


@dataclass(slots=True)
class CheckResult:
    """Result of a check; the object that `--json` prints.

    `refetch` are the files that the next sync fetches again, `unknown_files` files that scanlake did not write,
    `replaced_ledgers` damaged ledgers that were renamed.
    """

    damage: list[Damage] = field(default_factory=list)
    refetch: list[int] = field(default_factory=list)
    unknown_files: list[str] = field(default_factory=list)
    replaced_ledgers: list[str] = field(default_factory=list)
    parts: int = 0
    bytes: int = 0
    snapshots: int = 0
    seconds: float = 0.0

    def add(self, issue: IntegrityIssue, files: Iterable[int] = ()) -> None:
        """Add a finding, and the affected files."""
        ids = sorted(files)
        listed = tuple(ids[:_MAX_LISTED_IDS])
        self.damage.append(Damage(issue.subject, issue.problem, issue.concerns, len(ids), listed, issue.repaired))


@dataclass(frozen=True, slots=True)
class DamagedPart:
    """A part with another content than recorded, and the current files of its commits."""

    part: Part
    issue: IntegrityIssue
    files: frozenset[int]


@dataclass(frozen=True, slots=True)
class PartDamage:
    """Problems of the parts. No raw part has the documents of `files_without_raw`.

    `wrong_entries` are undamaged parts of which the ledger has another size or hash than the catalog.
    """

    wrong_entries: Sequence[tuple[Part, RecordedPart]]
    parts: Sequence[DamagedPart]
    intact_raw_parts: Sequence[Part]
    files_without_raw: frozenset[int]


def check_and_repair(lake: Lake, *, read_data: bool = False) -> CheckResult:
    """Compare the lake with its recorded sizes and hashes, and repair it.

    The caller opens the lake with `check_before_open`.
    """
    return _check(lake.layout, lake.ledger, lake.issues, lake, read_data=read_data)


def check_only(layout: LakeLayout, *, read_data: bool = False) -> CheckResult:
    """Compare the lake with its recorded sizes and hashes. Write nothing, neither ledger nor lock.

    Raises `LakeCorruptedError` if the ledger cannot be read: nothing else can be compared then.
    """
    with lock_lake_for_reading(layout), open_ledger_readonly(layout) as ledger:
        if (problem := ledger.quick_check()) != "ok":
            raise LakeCorruptedError(f"{layout.ledger}: {problem}.", hint=REBUILD_HINT)
        wrong_kinds = integrity.find_wrong_kinds(layout, with_parts=True)
        issues = [integrity.describe_wrong_kind(layout, path) for path in wrong_kinds]
        issues += integrity.damaged_empty_parts(layout)
        return _check(layout, ledger, issues, None, read_data=read_data)


def _check(
    layout: LakeLayout, ledger: LedgerQueries, issues: Sequence[IntegrityIssue], lake: Lake | None, *, read_data: bool
) -> CheckResult:
    """Check the lake, and repair it if `lake` is open for writing."""
    started = time.monotonic()
    result = CheckResult()
    for issue in issues:
        result.add(issue)
    snapshots = list_snapshots(layout)
    recorded = _read_recorded_parts(layout)
    parts = find_part_damage(layout, ledger, recorded, read_data=read_data)
    _report_part_damage(result, parts, None if lake is None else _repair_parts(lake, parts))
    if list_snapshots(layout) != snapshots:  # the repair has published, and so completed an interrupted purge
        recorded = _read_recorded_parts(layout)
    # Now, because a rebuilt part makes its catalogs readable again.
    snapshot_parts, catalogs = find_catalog_damage(layout, ledger, recorded)
    snapshot = _repair_catalogs(lake, catalogs) if lake is not None and catalogs else None
    for issue in snapshot_parts:
        result.add(issue if lake is None else replace(issue, repaired="its snapshots were deleted"))
    for issue in catalogs:
        action = "published again" if issue.subject == layout.catalog.name else "deleted"
        result.add(issue if lake is None else replace(issue, repaired=f"{action} (snapshot {snapshot})"))
    images = check_images(layout, ledger, read_data=read_data, repair=None if lake is None else lake.ledger)
    for issue in images.issues:
        result.add(issue)
    result.unknown_files += images.unlisted
    if lake is not None and images.issues:
        lake.republish_records(at=now_us())
    renamed_ledger = f"{layout.ledger.name}.damaged-"
    for name in integrity.unknown_files(layout, ledger):
        (result.replaced_ledgers if name.startswith(renamed_ledger) else result.unknown_files).append(name)
    current = ledger.parts()
    result.parts, result.bytes = len(current), sum(part.bytes for part in current)
    result.snapshots = len(snapshots)
    result.seconds = round(time.monotonic() - started, 3)
    return result


def _read_recorded_parts(layout: LakeLayout) -> RecordedParts:
    return integrity.read_recorded_parts([layout.catalog, *(path for _, path in reversed(list_snapshots(layout)))])


# Find


def find_part_damage(
    layout: LakeLayout, ledger: LedgerQueries, recorded: RecordedParts, *, read_data: bool
) -> PartDamage:
    """Return the problems of the parts. Changes nothing."""
    wrong_entries = list(integrity.find_wrong_ledger_entries(layout, ledger, recorded))
    issues = list(integrity.damaged_parts(layout, ledger, recorded, read_data=read_data))
    names = {part.name for part, _ in issues}
    raw_parts = [part for part in ledger.parts() if part.table_name == RAW_TABLE and part.name not in names]
    commit_seqs = {part.span: dict(ledger.file_commit_seqs(part.span)) for part, _ in issues}
    affected = dict(ledger.file_commit_seqs()) if read_data else {}
    for files in commit_seqs.values():
        affected |= files
    return PartDamage(
        wrong_entries,
        [DamagedPart(part, issue, frozenset(commit_seqs[part.span])) for part, issue in issues],
        raw_parts,
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


def find_catalog_damage(
    layout: LakeLayout, ledger: LedgerQueries, recorded: RecordedParts
) -> tuple[list[IntegrityIssue], list[IntegrityIssue]]:
    """Return the damaged parts of earlier snapshots alone, and the catalogs that are damaged or name such a part."""
    current = {part.name for part in ledger.parts()}
    snapshot_parts = dict(integrity.damaged_snapshot_parts(layout, current, recorded))
    catalogs = list(damaged_catalogs(layout, ledger))
    if snapshot_parts:
        damaged = {issue.subject for issue in catalogs}
        catalogs += _find_dependent_snapshots(layout, snapshot_parts.keys(), damaged=damaged)
    return list(snapshot_parts.values()), catalogs


def _find_dependent_snapshots(
    layout: LakeLayout, part_names: Iterable[str], *, damaged: set[str]
) -> Iterator[IntegrityIssue]:
    names = set(part_names)
    for _, path in list_snapshots(layout):
        subject = path.relative_to(layout.root).as_posix()
        if subject not in damaged and names & integrity.read_recorded_parts([path]).keys():
            yield IntegrityIssue(subject, "names a damaged part")


# Repair


def _repair_parts(lake: Lake, damage: PartDamage) -> dict[str, str]:
    """Repair the parts. Return the repair of each part by name."""
    repairs: dict[str, str] = {}
    for part, recorded in damage.wrong_entries:
        lake.ledger.correct_part(part.name, size=recorded.bytes, sha256=recorded.sha256)
    damaged_rows = set()
    for damaged in damage.parts:
        part, has_lost = damaged.part, bool(damaged.files & damage.files_without_raw)
        if part.table_name == RAW_TABLE:
            lake.ledger.replace_parts([part], [], superseded_span=(0, -1), at=now_us())
            repairs[part.name] = "removed; the next sync fetches its files again"
        else:
            damaged_rows.add(part.name)
            repairs[part.name] = "partly rebuilt from raw/" if has_lost else "rebuilt from raw/"
    if damage.files_without_raw:
        incomplete = set(damage.files_without_raw) if damaged_rows else set()
        queue_refetch(lake, damage.files_without_raw, incomplete=incomplete)
    if damaged_rows:
        rebuild(lake, damaged=damaged_rows)
    if lake.ledger.has_unpublished_commits():
        lake.republish(at=now_us())
    return repairs


def queue_refetch(lake: Lake, file_ids: Iterable[int], *, incomplete: set[int]) -> None:
    """Queue files for the next sync. `incomplete` ones lost rows, so they leave every table until then."""
    ledger, now, run_id = lake.ledger, now_us(), new_run_id()
    ledger.begin_run(RunRecord(run_id, "check", __version__, now, state="done", ended_at=now))
    commit_seqs = dict(ledger.file_commit_seqs())
    seqs = {file_id: commit_seqs[file_id] for file_id in sorted(file_ids)}
    references: dict[int, str | None] = {}
    with suppress(LakeCorruptedError):  # the part with the references may be damaged too
        references = lookups.read_references(lake.layout, ledger, seqs)
    documents = {key: json.dumps({"id": key, "scan_code": references.get(key)}).encode() for key in seqs}
    ledger.queue_refetch(documents, incomplete=incomplete, reason=_RAW_LOST_REASON, run_id=run_id, at=now)


def _repair_catalogs(lake: Lake, catalogs: Sequence[IntegrityIssue]) -> int:
    """Publish again and delete the damaged snapshots. Return the number of the new snapshot.

    A damaged catalog is not updated, although it may look as it was published: what an update does not read stays.
    """
    is_catalog_damaged = lake.layout.catalog.name in {issue.subject for issue in catalogs}
    snapshot = lake.republish(at=now_us(), rebuild=is_catalog_damaged).snapshot
    with translate_os_errors(lake.layout.root):
        for issue in catalogs:
            if issue.subject != lake.layout.catalog.name:
                (lake.layout.root / issue.subject).unlink(missing_ok=True)
    return snapshot


# Report


def _report_part_damage(result: CheckResult, damage: PartDamage, repairs: Mapping[str, str] | None) -> None:
    """Add the findings; `repairs` are those of the parts, None if nothing is repaired."""
    is_repaired = repairs is not None
    for part, _ in damage.wrong_entries:
        repaired = "corrected from the catalog" if is_repaired else ""
        problem = f"has another size or hash of {part.name} than the catalog"
        result.add(IntegrityIssue("ledger.sqlite", problem, repaired=repaired))
    for damaged in damage.parts:
        is_raw = damaged.part.table_name == RAW_TABLE
        files = damaged.files & damage.files_without_raw if is_raw else damaged.files
        result.add(replace(damaged.issue, repaired=(repairs or {}).get(damaged.part.name, "")), files)
    result.refetch = sorted(damage.files_without_raw)
    if damage.files_without_raw and not damage.parts:
        repaired = "queued for the next sync" if is_repaired else ""
        issue = IntegrityIssue("raw/", "lacks the documents of files", RAW_TABLE, repaired=repaired)
        result.add(issue, damage.files_without_raw)
