"""Rebuild of single parts from raw documents: the same versions under the same commits."""

from __future__ import annotations

import json
import secrets
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from pipeline.crawl.models import parse_reference
from pipeline.errors import LakeCorruptedError
from pipeline.flatten.flatten import FlattenResult, flatten
from pipeline.lake import lookups
from pipeline.lake.models import RunRecord
from pipeline.lake.parts import write_part_file
from pipeline.lake.raw_documents import DefinitionIndex, iter_raw_versions
from pipeline.maintenance.replay import DEFINITIONS, RowSpill, add_definitions
from pipeline.version import __version__
from schemas.tables import BY_NAME, DELETED_FILES, MISFITS
from schemas.timestamps import new_run_id, now_us

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pipeline.lake.lake import Lake
    from pipeline.lake.models import Part
    from pipeline.lake.raw_documents import RawCommit, VersionFilter

_RAW_LOST_REASON: Final = "the document in raw/ was damaged; the next sync fetches the file again"


class PartRebuilder:
    """Rebuilds the damaged parts of a lake from its undamaged raw parts."""

    def __init__(self, lake: Lake, raw_parts: Sequence[Part]) -> None:
        self._lake = lake
        self._ledger = lake.ledger
        self._raw_parts = raw_parts

    def rebuild(self, part: Part) -> None:
        """Write a part again, if possible under its own name.

        The same name also repairs the earlier snapshots that name the part.
        """
        same_table = (other for other in self._ledger.parts() if other.table_name == part.table_name)
        group = [other for other in same_table if other.span == part.span]
        if part.table_name == DELETED_FILES.name:
            new = [self._write_in_place(part, self._rebuild_tombstones(part))]
        elif part.first_commit_seq == part.last_commit_seq:
            new = [self._write_in_place(part, self._rebuild_commit_rows(part))]
        else:
            suffix = _name_suffix(part) if len(group) == 1 else secrets.token_hex(3)
            new = self._rebuild_compacted_part(part, suffix)
        if [written.name for written in new] != [part.name]:
            self._ledger.replace_parts(group, new, superseded_span=(0, -1), at=now_us())
        elif new[0] != part:
            written = new[0]
            self._ledger.update_part(part.name, row_count=written.row_count, size=written.bytes, sha256=written.sha256)

    def queue_refetch(self, file_ids: Iterable[int], *, incomplete: set[int]) -> None:
        """Queue files for the next sync. `incomplete` ones lost rows, so they leave every table until then."""
        now, run_id = now_us(), new_run_id()
        self._ledger.begin_run(RunRecord(run_id, "check", __version__, now, state="done", ended_at=now))
        ids = sorted(file_ids)
        commit_seqs = dict(self._ledger.file_commit_seqs())
        references: dict[int, str | None] = {}
        with suppress(LakeCorruptedError):  # the part with the references may be damaged too
            seqs = {file_id: commit_seqs[file_id] for file_id in ids}
            references = lookups.read_references(self._lake.layout, self._ledger, seqs)
        documents = {
            file_id: json.dumps({"id": file_id, "scan_code": references.get(file_id)}).encode() for file_id in ids
        }
        self._ledger.queue_refetch(documents, incomplete=incomplete, reason=_RAW_LOST_REASON, run_id=run_id, at=now)

    def _write_in_place(self, part: Part, rows: pa.Table) -> Part:
        layout = self._lake.layout
        return write_part_file(layout, layout.part_path(part.name), part.table_name, rows, part.span)

    def _rebuild_commit_rows(self, part: Part) -> pa.Table:
        """Return the rows that one commit added to a table, in their order."""
        definitions, tables = DefinitionIndex(self._ledger), [BY_NAME[part.table_name].arrow.empty_table()]
        for commit in self._iter_raw_commits(part, definitions):
            known = definitions.select_known(commit.seq)
            flat = self._flatten(commit, known)
            definitions.written |= flat.definitions
            if part.table_name in flat.tables:
                tables.append(flat.tables[part.table_name])
        self._forget_lost_definitions(part, definitions)
        return pa.concat_tables(tables).combine_chunks()

    def _rebuild_compacted_part(self, part: Part, suffix: str) -> list[Part]:
        """Return parts with the rows that many commits added to a table, sorted as a compaction sorts them."""
        definitions = DefinitionIndex(self._ledger)
        with RowSpill(self._lake.layout) as spill:
            for commit in self._iter_raw_commits(part, definitions):
                if part.table_name in DEFINITIONS:
                    add_definitions(commit, spill, definitions, definitions.select_known(commit.seq))
                    continue
                # A definition's misfits stand beside those of the file that brought it.
                has_misfits = part.table_name == MISFITS.name
                flat = self._flatten(
                    commit, definitions.select_known(commit.seq) if has_misfits else frozenset(definitions.all)
                )
                definitions.written |= flat.definitions
                if part.table_name in flat.tables:
                    spill.add(part.table_name, flat.tables[part.table_name])
            self._forget_lost_definitions(part, definitions)
            return list(spill.write_sorted_parts(part.table_name, span=part.span, name_suffix=suffix))

    def _flatten(self, commit: RawCommit, known_definitions: frozenset[str]) -> FlattenResult:
        return flatten(
            commit.versions,
            run_id=commit.run_id,
            seq=commit.seq,
            known_definitions=known_definitions,
            texts_from_list=self._ledger.properties.texts_from == "list",
        )

    def _iter_raw_commits(self, part: Part, definitions: DefinitionIndex) -> Iterator[RawCommit]:
        """Yield the raw documents of the part's commits whose rows are in the part."""
        first, last = part.span
        overlapping = [raw for raw in self._raw_parts if raw.first_commit_seq <= last and raw.last_commit_seq >= first]
        version_filter = self._version_filter(part, definitions)
        for commit in iter_raw_versions(self._lake.layout, overlapping, version_filter):
            if first <= commit.seq <= last:
                yield commit

    def _version_filter(self, part: Part, definitions: DefinitionIndex) -> VersionFilter:
        """Select the versions with rows in the part. A definition may come from a version that no longer has any."""
        if part.table_name in DEFINITIONS:
            return lambda seq, file_ids: file_ids if seq in definitions.seqs else ()
        return self._ledger.file_ids_of_commit  # current versions, and those superseded since a compaction

    def _forget_lost_definitions(self, part: Part, definitions: DefinitionIndex) -> None:
        """Delete the definitions that no document has. The next file that contains one adds it again."""
        first, last = part.span
        expected = {name for name, seq in definitions.all.items() if first <= seq <= last}
        lost = expected - definitions.written
        if part.table_name in DEFINITIONS and lost:
            self._ledger.delete_definitions(sorted(lost))

    def _rebuild_tombstones(self, part: Part) -> pa.Table:
        """Return the tombstones that the ledger knows. Their evidence is lost with the part."""
        files = self._ledger.deleted_files(part.span)
        ids = {file.file_id for file in files}
        references: dict[int, str | None] = {}
        layout = self._lake.layout
        for commit in iter_raw_versions(layout, self._raw_parts, lambda _, file_ids: ids.intersection(file_ids)):
            references |= {v.file_id: parse_reference(v.list_item or v.detail or b"") for v in commit.versions}
        detected = [file.detected_at for file in files]
        columns = (
            [file.file_id for file in files],
            [references.get(file.file_id) for file in files],
            [file.updated_at for file in files],
            detected,
            ["lost with a damaged part"] * len(files),
            detected,
            [file.run_id for file in files],
            [file.commit_seq for file in files],
        )
        return pa.table(dict(zip(DELETED_FILES.arrow.names, columns, strict=True)), schema=DELETED_FILES.arrow)


def _name_suffix(part: Part) -> str:
    return part.name.rpartition("/")[2].split("-")[1]
