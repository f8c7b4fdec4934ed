"""A batch of versions to the parts of every table: the one way from documents to rows."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from pipeline.flatten.definitions import content_hash
from pipeline.flatten.forms import read_submission
from pipeline.flatten.merge import merge
from pipeline.flatten.rows import Rows
from schemas import kinds, tables
from schemas.documents import Unreadable, read_json
from schemas.versions import Reject, Version

if TYPE_CHECKING:
    from collections.abc import Container, Iterable

    import pyarrow as pa

    from pipeline.flatten.keeping import Drift, Object


@dataclass(frozen=True, slots=True)
class Flattened:
    """The rows of a batch, by table; what was not foreseen; what could not be read; definitions met anew."""

    tables: dict[str, pa.Table]
    drift: Counter[Drift]
    rejects: tuple[Reject, ...]
    definitions: frozenset[str]


_FLATTENED: Final = tuple(table for table in tables.TABLES if table is not tables.DELETED_FILES)


def flatten(
    versions: Iterable[Version], *, run_id: str, seq: int, known_definitions: Container[str] = frozenset()
) -> Flattened:
    """Flatten `versions` into one Arrow table a table that has rows, in the order given.

    A version of which either document cannot be read becomes a `Reject` with that document; the others go on.
    Definitions whose hash is in `known_definitions` are not repeated.
    """
    held = tuple(versions)
    try:
        return _flatten(held, run_id, seq, known_definitions)
    except RecursionError:
        # Some document can just be read and is too deep for all the rest. A second look costs only such a batch.
        refusals = [_refusal(version) for version in held]
        sound = [version for version, refusal in zip(held, refusals, strict=True) if refusal is None]
        flat = _flatten(sound, run_id, seq, known_definitions)
        return replace(flat, rejects=tuple(refusal for refusal in refusals if refusal is not None))


def _flatten(held: Iterable[Version], run_id: str, seq: int, known_definitions: Container[str]) -> Flattened:
    batch = _Batch(known_definitions)
    rejects = []
    for version in held:
        document = _document(version)
        if isinstance(document, Reject):
            rejects.append(document)
        else:
            batch.take_file(version, document)
    parts: dict[str, pa.Table] = {}
    drift: Counter[Drift] = Counter()
    for name, rows in batch.rows.items():
        if (part := rows.arrow(run_id, seq)) is not None:
            parts[name] = part
            drift.update(rows.drift())
    return Flattened(parts, drift, tuple(rejects), frozenset(batch.new_definitions))


def _refusal(version: Version) -> Reject | None:
    """Why a version cannot be taken, tried alone; deeper in the stack than `_flatten` will be, so on the safe side."""
    try:
        rejects = _flatten([version], "", 0, frozenset()).rejects
    except RecursionError:
        return Reject(version.file_id, "document: nested too deeply", version.detail or version.list_item or b"")
    return rejects[0] if rejects else None


def _document(version: Version) -> Object | Reject:
    """What list item and detail say together."""
    read: list[Object | None] = []
    for document in (version.list_item, version.detail):
        try:
            read.append(_object(document))
        except Unreadable as unreadable:
            return Reject(version.file_id, f"document: {unreadable}", document or b"")
    return merge(*read)


def _object(document: bytes | None) -> Object | None:
    if document is None:
        return None
    value = read_json(document)
    if not isinstance(value, dict):
        raise Unreadable("not an object")
    return value


class _Batch:
    """The rows of all tables in the making."""

    def __init__(self, known_definitions: Container[str]) -> None:
        self.rows = {table.name: Rows(table) for table in _FLATTENED}
        self._known = known_definitions
        self._hashes: dict[str, str] = {}  # of the definitions met in this batch, by their spelling
        self.new_definitions: set[str] = set()

    def take_file(self, version: Version, document: Object) -> None:
        """Take one file with all its children."""
        file_id, fetched = version.file_id, version.fetched_at
        own = {str(document.get("id")), str(document.get("file_id"))}
        odd: Object = {}
        for key in ("uploads", "fields", "locations"):
            add = self.rows[key].add
            for position, child in _objects(key, document, odd):
                add(child, file_id, position, fetched, also=_foreign_file(child, own))
        for position, sent in _objects("form_submits", document, odd):
            self._take_submission(sent, file_id, position, fetched)
        for position, run in _objects("workflow_runs", document, odd):
            self._take_run(run, file_id, position, fetched, _foreign_file(run, own))
        self.rows["files"].add(document, file_id, version.detail is not None, fetched, also=odd)

    def _take_submission(self, sent: Object, file_id: int, position: int, fetched: int) -> None:
        submission = read_submission(sent)
        header = submission.header
        self.rows["form_submits"].add(header, file_id, position, fetched, also=submission.strange)
        parents = (_text(header.get("id")), _id(header.get("form_id")))
        add = self.rows["form_answers"].add
        for place, answer in enumerate(submission.answers):
            add(answer, file_id, *parents, place, fetched)

    def _take_run(self, run: Object, file_id: int, position: int, fetched: int, odd: Object) -> None:
        definition = run.get("workflow")
        if isinstance(definition, dict):
            self._take_definition(definition, fetched)
        elif definition is not None:
            odd["workflow"] = definition
        owner = (file_id, _id(run.get("id")), _id(run.get("workflow_id")))
        for place, step in _objects("workflow_run_steps", run, odd):
            self._take_run_step(step, owner, place, fetched)
        self.rows["workflow_runs"].add(run, file_id, position, fetched, also=odd)

    def _take_run_step(self, step: Object, owner: tuple[int, int | None, int | None], place: int, fetched: int) -> None:
        file_id, run_id, workflow_id = owner
        if step.get("workflow_run_id") is None:
            step = {**step, "workflow_run_id": run_id}
        odd: Object = {}
        items = step.get("entity_ids")
        if isinstance(items, list):
            self._take_items(items, step, owner, fetched)
        elif items is not None:
            odd["entity_ids"] = items
        self.rows["workflow_run_steps"].add(step, file_id, workflow_id, place, fetched, also=odd)

    def _take_items(
        self, items: list[Any], step: Object, owner: tuple[int, int | None, int | None], fetched: int
    ) -> None:
        file_id, run_id, _ = owner
        step_id, entity_type = _id(step.get("id")), _text(step.get("entity_type"))
        add = self.rows["workflow_run_step_items"].add
        for number, entity in enumerate(items):
            add({"entity_id": entity}, file_id, run_id, step_id, entity_type, number, fetched)

    def _take_definition(self, workflow: Object, fetched: int) -> None:
        if not workflow:
            return
        spelled = kinds.spell_json(workflow)
        digest = self._hashes.get(spelled)
        if digest is None:
            digest = self._hashes[spelled] = content_hash(workflow)
        if digest in self.new_definitions or digest in self._known:
            return
        self.new_definitions.add(digest)
        odd: Object = {}
        for position, step in _objects("steps", workflow, odd):
            owned = step if step.get("workflow_id") is not None else {**step, "workflow_id": workflow.get("id")}
            self.rows["workflow_steps"].add(owned, position, digest, fetched)
        self.rows["workflows"].add(workflow, digest, fetched, also=odd)


def _objects(key: str, owner: Object, odd: Object) -> Iterable[tuple[int, Object]]:
    """The objects of a collection, each with its place; whatever else stands there goes to `odd` under its key."""
    value = owner.get(key)
    if value is None:
        return ()
    if not isinstance(value, list):
        odd[key] = value
        return ()
    if strange := [item for item in value if not isinstance(item, dict)]:
        odd[key] = strange
        return [(place, item) for place, item in enumerate(value) if isinstance(item, dict)]
    return enumerate(value)


def _foreign_file(child: Object, own: set[str]) -> Object:
    """The child's own `file_id`, when it names another file than the one it came with."""
    named = child.get("file_id")
    return {} if named is None or str(named) in own else {"file_id": named}


def _id(value: Any) -> int | None:
    try:
        judged = kinds.ID.judge(value)
    except kinds.Misfit:
        return None
    return judged if isinstance(judged, int) else None


def _text(value: Any) -> str | None:
    try:
        judged = kinds.TEXT.judge(value)
    except kinds.Misfit:
        return None
    return judged if isinstance(judged, str) else None
