"""Check: the lake held against what was written; what is damaged is named, and mended from what is whole.

A damaged part is rebuilt from raw documents: the same versions under the same commits. Where those are gone too,
the files concerned are fetched again by the next sync, just those; meanwhile they stand in meta.rejects.
"""

from __future__ import annotations

import json
import secrets
import time
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline import __version__
from pipeline.crawl.terms import reference_of
from pipeline.errors import LakeDamaged
from pipeline.flatten.flatten import flatten
from pipeline.lake import integrity, lookups
from pipeline.lake.files import storage
from pipeline.lake.parts import RAW_TABLE, write_file
from pipeline.lake.records import RunRecord
from pipeline.lake.statements import set_fact
from pipeline.lake.upkeep import snapshots
from pipeline.runs.replaying import DEFINITIONS, Definitions, Scratch, add_definitions, documents, held
from schemas.tables import BY_NAME, DELETED_FILES, SEQ

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pipeline.lake.integrity import Finding
    from pipeline.lake.lake import Lake
    from pipeline.lake.records import Part
    from pipeline.runs.replaying import Wanted

LOST: Final = "damaged here: its documents in raw/ are lost; the next sync fetches it again"
LAST: Final = 2**62  # no commit has a greater number
_NAMED: Final = 1_000


@dataclass(slots=True)
class Checked:
    """What a check found and did. `files` are the ids concerned: the first thousand of each finding.

    `strangers` are files that are not scanlake's, `kept` damaged ledgers that it gave another name.
    """

    damage: list[dict[str, Any]] = field(default_factory=list)
    refetch: list[int] = field(default_factory=list)
    strangers: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    parts: int = 0
    bytes: int = 0
    snapshots: int = 0
    seconds: float = 0.0

    def note(self, finding: Finding, mended: str, files: Iterable[int] = ()) -> None:
        """Take down a finding, what became of it, and whom it concerns."""
        concerned = sorted(files)
        self.damage.append(
            {
                "subject": finding.subject,
                "problem": finding.problem,
                "concerns": finding.concerns,
                "files": len(concerned),
                "file_ids": concerned[:_NAMED],
                "mended": mended,
            }
        )


def check(lake: Lake, *, read_data: bool = False, mend: bool = True) -> Checked:
    """Hold the lake against what was written, and mend it. `lake` was opened with `examine`."""
    began = time.monotonic()
    checked = Checked()
    for finding in lake.found:
        is_ledger = finding.subject == lake.layout.ledger.name
        checked.note(finding, "rebuilt from the newest catalog" if is_ledger else "written anew")
    kept = [path for _, path in reversed(snapshots(lake.layout))]
    witnesses = integrity.witnesses([lake.layout.catalog, *kept])
    _Mending(lake, checked, witnesses, mend=mend).run(read_data=read_data)
    _check_catalogs(lake, checked, witnesses, mend=mend)
    ours = f"{lake.layout.ledger.name}.damaged-"
    for name in integrity.strangers(lake.layout, lake.ledger):
        (checked.kept if name.startswith(ours) else checked.strangers).append(name)
    parts = lake.ledger.parts()
    checked.parts, checked.bytes = len(parts), sum(part.bytes for part in parts)
    checked.snapshots = len(kept)
    checked.seconds = round(time.monotonic() - began, 3)
    return checked


class _Mending:
    """The parts that the ledger names."""

    def __init__(self, lake: Lake, checked: Checked, witnesses: dict[str, integrity.Witness], *, mend: bool) -> None:
        self._lake = lake
        self._ledger = lake.ledger
        self._checked = checked
        self._witnesses = witnesses
        self._mend = mend
        self._raw: list[Part] = []

    def run(self, *, read_data: bool) -> None:
        layout, ledger = self._lake.layout, self._ledger
        for part, witness in list(integrity.wrong_entries(layout, ledger, self._witnesses)):
            found = integrity.Finding("ledger.sqlite", f"says otherwise of {part.name} than its catalog")
            if self._mend:
                with ledger.transaction() as db:
                    values = (witness.bytes, witness.sha256, part.name)
                    db.execute("UPDATE part SET bytes = ?, sha256 = ? WHERE name = ?", values)
            self._checked.note(found, "set right from the catalog" if self._mend else "")
        damaged = list(integrity.damaged_parts(layout, ledger, self._witnesses, read_data=read_data))
        bad = {part.name for part, _ in damaged}
        self._raw = [part for part in ledger.parts() if part.table_name == RAW_TABLE and part.name not in bad]
        undocumented = self._undocumented(damaged, everything=read_data)
        out: set[int] = set()
        groups: set[tuple[str, int, int]] = set()
        for part, finding in damaged:
            concerned = self._live(part.seq_low, part.seq_high)
            if part.table_name == RAW_TABLE:
                self._checked.note(finding, self._forget_raw(part), concerned.keys() & undocumented)
                continue
            group = (part.table_name, part.seq_low, part.seq_high)
            mended = ""
            if self._mend and group not in groups:
                out |= concerned.keys() & undocumented
                self._rebuild(part)
            if self._mend:
                mended = "rebuilt from raw/" if not concerned.keys() & undocumented else "rebuilt from raw/ in part"
            groups.add(group)
            self._checked.note(finding, mended, concerned)
        if undocumented:
            self._checked.refetch = sorted(undocumented)
            if not damaged:
                found = integrity.Finding("raw/", "lacks the documents of files", RAW_TABLE)
                self._checked.note(found, "to be fetched again" if self._mend else "", undocumented)
        if self._mend:
            self._owe(undocumented, out)
            if ledger.is_ahead():
                self._lake.republish(at=_now())

    def _live(self, low: int, high: int) -> dict[int, int]:
        """The files whose version that counts is of these commits, with the commit."""
        rows = self._ledger.query(
            "SELECT file_id, seq FROM file_version WHERE seq BETWEEN ? AND ? AND NOT deleted", (low, high)
        )
        return {row["file_id"]: row["seq"] for row in rows}

    def _undocumented(self, damaged: Sequence[tuple[Part, Finding]], *, everything: bool) -> set[int]:
        """The files concerned whose documents no whole part of raw/ holds."""
        wanted: dict[int, int] = self._live(0, LAST) if everything else {}
        for part, _ in damaged:
            wanted |= self._live(part.seq_low, part.seq_high)
        seqs = set(wanted.values())
        for part in self._raw:
            if not any(part.seq_low <= seq <= part.seq_high for seq in seqs):
                continue
            with pq.ParquetFile(self._lake.layout.part(part.name)) as file:
                for batch in file.iter_batches(columns=["file_id", SEQ]):
                    for file_id, seq in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                        if wanted.get(file_id) == seq:
                            del wanted[file_id]
        return set(wanted)

    def _forget_raw(self, part: Part) -> str:
        if not self._mend:
            return ""
        self._ledger.replace_parts([part], [], dead_span=(0, -1), at=_now())
        return "left out; the next sync fetches those files again"

    # Rebuilding

    def _rebuild(self, part: Part) -> None:
        """Write a part again, under its own name: whoever shows it, earlier snapshots too, is whole again."""
        span = (part.seq_low, part.seq_high)
        group = [
            each
            for each in self._ledger.parts()
            if each.table_name == part.table_name and (each.seq_low, each.seq_high) == span
        ]
        if part.table_name == DELETED_FILES.name:
            new = [self._write_in_place(part, self._tombstones(span))]
        elif span[0] == span[1]:
            new = [self._write_in_place(part, self._commit_rows(part))]
        else:
            new = self._fold_again(part, mark=_mark_of(part) if len(group) == 1 else secrets.token_hex(3))
        if [each.name for each in new] != [part.name]:
            self._ledger.replace_parts(group, new, dead_span=(0, -1), at=_now())
        elif new[0] != part:
            values = (new[0].rows, new[0].bytes, new[0].sha256, part.name)
            with self._ledger.transaction() as db:
                db.execute("UPDATE part SET rows = ?, bytes = ?, sha256 = ? WHERE name = ?", values)
                set_fact(db, "next_seq", self._ledger.next_seq() + 1)  # the catalog must follow

    def _write_in_place(self, part: Part, rows: pa.Table) -> Part:
        span = (part.seq_low, part.seq_high)
        return write_file(self._lake.layout, self._lake.layout.part(part.name), part.table_name, rows, span)

    def _commit_rows(self, part: Part) -> pa.Table:
        """The rows that one commit brought to a table, in the order in which it brought them."""
        definitions, tables = Definitions(self._ledger), [BY_NAME[part.table_name].arrow.empty_table()]
        for each in documents(self._lake.layout, self._around(part), self._wanted(part, definitions)):
            if each.seq == part.seq_low:
                known = definitions.known(each.seq)
                flat = flatten(each.versions, run_id=each.run_id, seq=each.seq, known_definitions=known)
                definitions.found |= flat.definitions
                tables += [flat.tables[part.table_name]] if part.table_name in flat.tables else []
        self._forget_definitions(part, definitions)
        return pa.concat_tables(tables).combine_chunks()

    def _fold_again(self, part: Part, *, mark: str) -> list[Part]:
        """The rows that many commits brought to a table, sorted as a compaction sorts them."""
        definitions = Definitions(self._ledger)
        span = (part.seq_low, part.seq_high)
        with Scratch(self._lake.layout) as scratch:
            for each in documents(self._lake.layout, self._around(part), self._wanted(part, definitions)):
                if not span[0] <= each.seq <= span[1]:
                    continue
                if part.table_name in DEFINITIONS:
                    add_definitions(each, scratch, definitions, definitions.known(each.seq))
                    continue
                known = frozenset(definitions.all)
                flat = flatten(each.versions, run_id=each.run_id, seq=each.seq, known_definitions=known)
                if part.table_name in flat.tables:
                    scratch.add(part.table_name, flat.tables[part.table_name])
            self._forget_definitions(part, definitions)
            return list(scratch.sorted_parts(part.table_name, span=span, mark=mark))

    def _wanted(self, part: Part, definitions: Definitions) -> Wanted:
        """The versions that the part's rows come from. A definition may have come with one that was folded away."""
        if part.table_name in DEFINITIONS:
            return lambda seq, file_ids: file_ids if seq in definitions.seqs else ()
        return held(self._ledger)

    def _around(self, part: Part) -> list[Part]:
        return [raw for raw in self._raw if raw.seq_low <= part.seq_high and raw.seq_high >= part.seq_low]

    def _forget_definitions(self, part: Part, definitions: Definitions) -> None:
        """Definitions that no document gives back are taken anew from the next file that shows them."""
        due = {name for name, seq in definitions.all.items() if part.seq_low <= seq <= part.seq_high}
        lost = due - definitions.found
        if part.table_name in DEFINITIONS and lost:
            with self._ledger.transaction() as db:
                db.executemany("DELETE FROM definition WHERE hash = ?", [(name,) for name in sorted(lost)])

    def _tombstones(self, span: tuple[int, int]) -> pa.Table:
        """What the ledger knows of deleted files; what showed that they are gone is lost with the part."""
        rows = self._ledger.query(
            "SELECT file_id, updated_at, seq, v.run_id, coalesce(run.ended_at, run.started_at, fetched_at) AS at"
            " FROM file_version AS v LEFT JOIN run USING (run_id) WHERE deleted AND seq BETWEEN ? AND ?"
            " ORDER BY file_id",
            span,
        )
        references: dict[int, str | None] = {}
        ids = {row["file_id"] for row in rows}
        for each in documents(self._lake.layout, self._raw, lambda _, file_ids: ids.intersection(file_ids)):
            references |= {v.file_id: reference_of(v.list_item or v.detail or b"") for v in each.versions}
        columns = {
            "file_id": [row["file_id"] for row in rows],
            "scan_code": [references.get(row["file_id"]) for row in rows],
            "updated_at": [row["updated_at"] for row in rows],
            "found_gone_at": [row["at"] for row in rows],
            "witness": ["lost with a damaged part"] * len(rows),
            "_fetched_at": [row["at"] for row in rows],
            "_run_id": [row["run_id"] for row in rows],
            SEQ: [row["seq"] for row in rows],
        }
        return pa.table(columns, schema=DELETED_FILES.arrow)

    def _owe(self, undocumented: set[int], out: set[int]) -> None:
        """Name the files that the next sync fetches again. Those in `out` lost rows: they leave every table whole."""
        if not undocumented:
            return
        at, run_id = _now(), f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}"
        self._ledger.begin_run(RunRecord(run_id, "check", __version__, at, state="done", ended_at=at))
        chosen = sorted(undocumented)
        seqs = {key: seq for key, seq in self._live(0, LAST).items() if key in undocumented}
        references: dict[int, str | None] = {}
        with suppress(LakeDamaged):  # the part that tells references may be damaged too
            references = lookups.references(self._lake.layout, self._ledger, seqs)
        with self._ledger.transaction() as db:
            for file_id in chosen:
                db.execute(
                    "INSERT OR REPLACE INTO owed SELECT file_id, updated_at FROM file_version WHERE file_id = ?",
                    (file_id,),
                )
                if file_id in out:
                    db.execute(
                        "INSERT OR IGNORE INTO dead SELECT seq, file_id FROM file_version WHERE file_id = ?", (file_id,)
                    )
                    db.execute("DELETE FROM file_version WHERE file_id = ?", (file_id,))
                db.execute("UPDATE file_version SET settled = 0 WHERE file_id = ?", (file_id,))
                document = json.dumps({"id": file_id, "scan_code": references.get(file_id)}).encode()
                db.execute(
                    "INSERT OR REPLACE INTO reject VALUES (?, ?, ?, ?, NULL, NULL, ?, ?, ?, 1)",
                    (f"file {file_id}", file_id, LOST, document, run_id, at, at),
                )
            set_fact(db, "next_seq", self._ledger.next_seq() + 1)  # the catalog must follow


def _check_catalogs(lake: Lake, checked: Checked, witnesses: dict[str, integrity.Witness], *, mend: bool) -> None:
    layout, ledger = lake.layout, lake.ledger
    current = {part.name for part in ledger.parts()}
    spoilt = list(integrity.damaged_history(layout, current, witnesses))
    for _, finding in spoilt:
        checked.note(finding, "its snapshots were dropped" if mend else "")
    found = list(integrity.damaged_catalogs(layout, ledger))
    shown = {finding.subject for finding in found}
    found += [
        integrity.Finding(path.relative_to(layout.root).as_posix(), "shows a damaged part")
        for _, path in snapshots(layout)
        if spoilt and path.relative_to(layout.root).as_posix() not in shown and _shows(path, {n for n, _ in spoilt})
    ]
    if found and mend:
        record = lake.republish(at=_now())
        with storage(layout.root):
            for finding in found:
                if finding.subject != layout.catalog.name:
                    layout.part(finding.subject).unlink(missing_ok=True)
    for finding in found:
        mended = "published anew" if finding.subject == layout.catalog.name else "dropped"
        checked.note(finding, f"{mended} (snapshot {record.snapshot})" if mend else "")


def _shows(path: Any, names: set[str]) -> bool:
    return bool(names & integrity.witnesses([path]).keys())


def _mark_of(part: Part) -> str:
    return part.name.rpartition("/")[2].split("-")[1]


def _now() -> int:
    return time.time_ns() // 1_000
