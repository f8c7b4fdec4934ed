"""Conversion of a batch of file versions to the rows of every table."""

from __future__ import annotations

from collections import Counter
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from pipeline.flatten.forms import parse_submission
from pipeline.flatten.merge import merge
from pipeline.flatten.rows import Misfit, TableBuilder, build_misfit_table
from schemas import tables, value_types
from schemas.file_versions import FileVersion, Reject
from schemas.json_decode import InvalidJsonError, decode_json
from schemas.value_types import ID

if TYPE_CHECKING:
    from collections.abc import Container, Iterable

    import pyarrow as pa

    from pipeline.flatten.rows import JsonObject


class FlattenResult(Struct, frozen=True):
    """Rows of a batch by table, drift counts, rejects and hashes of new definitions."""

    tables: dict[str, pa.Table]
    drift: Counter[tuple[str, str, str]]
    rejects: tuple[Reject, ...]
    definitions: frozenset[str]

    @property
    def tenants(self) -> frozenset[int]:
        """Tenants of the uploads."""
        uploads = self.tables.get(tables.UPLOADS.name)
        return frozenset() if uploads is None else frozenset(uploads["tenant_id"].unique().to_pylist()) - {None}


_FLATTENED: Final = tuple(table for table in tables.TABLES if table.from_wire)
_NESTED: Final = frozenset({"form_submits", "workflow_runs"})  # whose objects have rows of other tables, too
_PLAIN: Final = tuple(table.name for table in _FLATTENED if table.parent == "files" and table.name not in _NESTED)


def flatten(
    versions: Iterable[FileVersion],
    *,
    run_id: str,
    seq: int,
    known_definitions: Container[str] = frozenset(),
    texts_from_list: bool = False,
) -> FlattenResult:
    """Flatten `versions` into one Arrow table per lake table with rows.

    Rows keep the order of `versions`. A version with an unreadable document becomes a `Reject` with that document.
    The result omits definitions whose hash is in `known_definitions`. `texts_from_list`: only the list heeds `lang`.
    """
    stored_versions = tuple(versions)
    batch = _Batch(run_id, seq, known_definitions, texts_from_list)
    try:
        return _flatten(stored_versions, batch)
    except RecursionError:
        # The decoder accepts a document that is too deep for the later steps. Only such a batch pays for a second pass.
        rejects = [_reject_if_unflattenable(version) for version in stored_versions]
        readable = [version for version, reject in zip(stored_versions, rejects, strict=True) if reject is None]
        flat = _flatten(readable, batch)
        return replace(flat, rejects=tuple(reject for reject in rejects if reject is not None))


class _Batch(Struct, frozen=True):
    """What all versions of a batch have in common; see `flatten`."""

    run_id: str
    seq: int
    known_definitions: Container[str]
    texts_from_list: bool


def _flatten(versions: Iterable[FileVersion], batch: _Batch) -> FlattenResult:
    collector = _RowCollector(batch.known_definitions)
    rejects = []
    for version in versions:
        try:
            item, detail = _decode_object(version, version.list_item), _decode_object(version, version.detail)
        except _UnreadableError as error:
            rejects.append(error.reject)
            continue
        collector.add_file(version, merge(item, detail, texts_from_list=batch.texts_from_list))
    parts: dict[str, pa.Table] = {}
    drift: Counter[tuple[str, str, str]] = Counter()
    misfits: list[Misfit] = []
    for name, rows in collector.rows.items():
        if (part := rows.to_table(batch.run_id, batch.seq)) is not None:
            parts[name] = part
            drift.update(rows.drift)
            misfits += rows.misfits
    if misfits:
        parts[tables.MISFITS.name] = build_misfit_table(misfits, batch.seq)
    return FlattenResult(parts, drift, tuple(rejects), frozenset(collector.new_definitions))


def _reject_if_unflattenable(version: FileVersion) -> Reject | None:
    """Return the reject of a version that cannot be flattened, else None.

    The call stack is deeper than that of `_flatten` afterwards, so the check is the stricter one.
    """
    try:
        rejects = _flatten([version], _Batch("", 0, frozenset(), texts_from_list=False)).rejects
    except RecursionError:
        return Reject(version.file_id, "document: nested too deeply", version.detail or version.list_item or b"")
    return rejects[0] if rejects else None


class _UnreadableError(Exception):
    """A document that cannot be decoded."""

    def __init__(self, reject: Reject) -> None:
        super().__init__(reject.reason)
        self.reject = reject


def _decode_object(version: FileVersion, document: bytes | None) -> JsonObject | None:
    """Decode one of the version's documents. Raises `_UnreadableError`."""
    if document is None:
        return None
    try:
        value = decode_json(document)
    except InvalidJsonError as error:
        raise _UnreadableError(Reject(version.file_id, f"document: {error}", document)) from None
    if not isinstance(value, dict):
        raise _UnreadableError(Reject(version.file_id, "document: not an object", document))
    return value


class _RowCollector:
    """Collector of one batch's rows, for all tables."""

    def __init__(self, known_definitions: Container[str]) -> None:
        """Start without rows."""
        self.rows = {table.name: TableBuilder(table) for table in _FLATTENED}
        self._known = known_definitions
        self._hashes: dict[str, str] = {}  # of this batch's definitions, by their JSON
        self.new_definitions: set[str] = set()

    def add_file(self, version: FileVersion, document: JsonObject) -> None:
        """Add one file with all its children."""
        file_id, fetched = version.file_id, version.fetched_at
        own_ids = {str(document[key]) for key in ("id", "file_id") if document.get(key) is not None}
        unexpected: JsonObject = {}
        for key in _PLAIN:
            add = self.rows[key].add
            for position, child in _get_child_objects(key, document, unexpected):
                add(child, file_id, position, also=_get_mismatched_file_id(child, own_ids))
        for position, submit in _get_child_objects("form_submits", document, unexpected):
            self._add_submission(submit, file_id, position)
        for position, run in _get_child_objects("workflow_runs", document, unexpected):
            self._add_run(run, file_id, position, fetched, _get_mismatched_file_id(run, own_ids))
        document = {"file_id": None, **document}  # only instances have it; an absent key makes `add` slower
        self.rows["files"].add(document, file_id, version.detail is not None, fetched, also=unexpected)

    def _add_submission(self, submit: JsonObject, file_id: int, position: int) -> None:
        submission = parse_submission(submit)
        header = submission.header
        self.rows["form_submits"].add(header, file_id, position, also=submission.unexpected)
        parents = header.get("id"), position, header.get("form_id")
        add = self.rows["form_answers"].add
        for index, answer in enumerate(submission.answers):
            add(answer, file_id, *parents, index)

    def _add_run(self, run: JsonObject, file_id: int, position: int, fetched: int, unexpected: JsonObject) -> None:
        definition, digest = run.get("workflow"), None
        if isinstance(definition, dict):
            digest = self._add_definition(definition, file_id, fetched)
        elif definition is not None:
            unexpected["workflow"] = definition
        for index, step in _get_child_objects("workflow_run_steps", run, unexpected):
            self._add_run_step(step, run, file_id, index)
        self.rows["workflow_runs"].add(run, file_id, digest, position, also=unexpected)

    def _add_run_step(self, step: JsonObject, run: JsonObject, file_id: int, position: int) -> None:
        if step.get("workflow_run_id") is None:
            step = {**step, "workflow_run_id": ID.convert_or_none(run.get("id"))}
        unexpected: JsonObject = {}
        items = step.get("entity_ids")
        if isinstance(items, list):
            parents = step["workflow_run_id"], step.get("id"), step.get("entity_type")
            add = self.rows["workflow_run_step_items"].add
            for number, entity in enumerate(items):
                add({"entity_id": entity}, file_id, *parents, number)
        elif items is not None:
            unexpected["entity_ids"] = items
        self.rows["workflow_run_steps"].add(step, file_id, run.get("workflow_id"), position, also=unexpected)

    def _add_definition(self, workflow: JsonObject, file_id: int, fetched: int) -> str | None:
        """Add a definition unless the lake has it. Return its hash; None if it is empty."""
        if not workflow:
            return None
        encoded = value_types.encode_json(workflow)
        digest = self._hashes.get(encoded)
        if digest is None:
            digest = self._hashes[encoded] = content_hash(workflow)
        if digest in self.new_definitions or digest in self._known:
            return digest
        self.new_definitions.add(digest)
        unexpected: JsonObject = {}
        add_step = self.rows["workflow_definition_steps"].add
        for position, step in _get_child_objects("steps", workflow, unexpected):
            linked_step = step if step.get("workflow_id") is not None else {**step, "workflow_id": workflow.get("id")}
            add_step(linked_step, position, digest, file_id=file_id)
        self.rows["workflow_definitions"].add(workflow, digest, fetched, also=unexpected, file_id=file_id)
        return digest


def _get_child_objects(key: str, owner: JsonObject, unexpected: JsonObject) -> Iterable[tuple[int, JsonObject]]:
    """Return the objects of a collection with their positions.

    Values of other types go to `unexpected` under the collection's key.
    """
    value = owner.get(key)
    if value is None:
        return ()
    if not isinstance(value, list):
        unexpected[key] = value
        return ()
    if others := [item for item in value if not isinstance(item, dict)]:
        unexpected[key] = others
        return [(position, item) for position, item in enumerate(value) if isinstance(item, dict)]
    return enumerate(value)


def _get_mismatched_file_id(child: JsonObject, own_ids: set[str]) -> JsonObject:
    """Return the child's `file_id` if it names another file, else nothing."""
    named_id = child.get("file_id")
    return {} if named_id is None or str(named_id) in own_ids else {"file_id": named_id}


# Workflow definitions: every run embeds its definition; the lake stores definitions with equal content once.


def content_hash(workflow: JsonObject) -> str:
    """Return the hash of a definition's content. The hash does not depend on the format of timestamps and numbers."""
    steps = workflow.get("steps") or []
    if not isinstance(steps, list):
        # A tuple comes from no JSON: a text is not the list of that text.
        steps = [(steps,)]
    content = [_to_canonical_items(workflow, tables.WORKFLOW_DEFINITIONS)]
    content += [_to_canonical_items(step, tables.WORKFLOW_DEFINITION_STEPS) for step in steps]
    return blake2b(repr(content).encode("utf-8", "backslashreplace"), digest_size=16).hexdigest()


def _to_canonical_items(source: object, table: tables.Table) -> object:
    if not isinstance(source, dict):
        return source
    content = {key: value for key, value in source.items() if key not in table.declared_keys}
    for column in table.from_wire:
        value = source.get(column.wire_key)
        try:
            content[column.wire_key] = column.kind.convert(value)
        except value_types.TypeMismatchError:
            content[column.wire_key] = value
    return sorted(content.items())
