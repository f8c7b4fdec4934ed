"""A batch of versions to the parts of every table: the one way from documents to rows."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pipeline.flatten.definitions import content_hash
from pipeline.flatten.forms import read_submission
from pipeline.flatten.merge import COLLECTIONS, merge
from pipeline.flatten.rows import Drift, Object, Rows
from schemas import kinds, tables
from schemas.documents import Unreadable, read_json
from schemas.versions import Reject, Version

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Sequence

    import pyarrow as pa


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

    A version whose documents cannot be read at all becomes a `Reject`; the others go on. Definitions whose
    hash is in `known_definitions` are not repeated.
    """
    batch = _Batch(known_definitions)
    rejects = []
    for version in versions:
        try:
            document = merge(_object(version.list_item), _object(version.detail))
        except Unreadable as unreadable:
            kept = version.detail or version.list_item or b""
            rejects.append(Reject(version.file_id, f"document: {unreadable}", kept))
            continue
        batch.take_file(version, document)
    parts = {name: rows.arrow(run_id, seq) for name, rows in batch.rows.items() if len(rows)}
    drift: Counter[Drift] = Counter()
    for rows in batch.rows.values():
        drift.update(rows.drift)
    return Flattened(parts, drift, tuple(rejects), frozenset(batch.new_definitions))


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
        self.new_definitions: set[str] = set()

    def take_file(self, version: Version, document: Object) -> None:
        """Take one file with all its children."""
        file_id, fetched = version.file_id, version.fetched_at
        odd: Object = {}
        children = {key: _objects(key, document.get(key), odd) for key in COLLECTIONS}
        self.rows["files"].add(document, file_id, version.detail is not None, fetched, also=odd)
        for table, key in (("uploads", "uploads"), ("fields", "fields"), ("locations", "locations")):
            rows = self.rows[table]
            for position, child in enumerate(children[key]):
                rows.add(child, file_id, position, fetched, also=_foreign_file(child, document))
        for position, sent in enumerate(children["form_submits"]):
            self._take_submission(sent, file_id, position, fetched)
        for position, run in enumerate(children["workflow_runs"]):
            self._take_run(run, file_id, position, fetched, _foreign_file(run, document))

    def _take_submission(self, sent: Object, file_id: int, position: int, fetched: int) -> None:
        submission = read_submission(sent)
        header = submission.header
        self.rows["form_submits"].add(header, file_id, position, fetched, also=submission.strange)
        parents = (_text(header.get("id")), _id(header.get("form_id")))
        for place, answer in enumerate(submission.answers):
            self.rows["form_answers"].add(answer, file_id, *parents, place, fetched)

    def _take_run(self, run: Object, file_id: int, position: int, fetched: int, also: Object | None) -> None:
        odd: Object = dict(also or {})
        steps = _objects("workflow_run_steps", run.get("workflow_run_steps"), odd)
        definition = run.get("workflow")
        if isinstance(definition, dict):
            self._take_definition(definition, fetched)
        elif definition is not None:
            odd["workflow"] = definition
        self.rows["workflow_runs"].add(run, file_id, position, fetched, also=odd)
        run_id, workflow_id = _id(run.get("id")), _id(run.get("workflow_id"))
        for place, step in enumerate(steps):
            self._take_run_step(step, (file_id, run_id, workflow_id), place, fetched)

    def _take_run_step(self, step: Object, owner: tuple[int, int | None, int | None], place: int, fetched: int) -> None:
        file_id, run_id, workflow_id = owner
        if step.get("workflow_run_id") is None:
            step = {**step, "workflow_run_id": run_id}
        items = step.get("entity_ids")
        odd: Object = {} if items is None or isinstance(items, list) else {"entity_ids": items}
        self.rows["workflow_run_steps"].add(step, file_id, workflow_id, place, fetched, also=odd)
        step_id, entity_type = _id(step.get("id")), _text(step.get("entity_type"))
        for number, entity in enumerate(items if isinstance(items, list) else []):
            entity_id = _id(entity)
            misfit = {"entity_id": entity} if entity_id is None and entity is not None else None
            self.rows["workflow_run_step_items"].add(
                {}, file_id, run_id, step_id, entity_id, entity_type, number, fetched, also=misfit
            )

    def _take_definition(self, workflow: Object, fetched: int) -> None:
        digest = content_hash(workflow)
        if digest in self.new_definitions or digest in self._known:
            return
        self.new_definitions.add(digest)
        odd: Object = {}
        steps = _objects("steps", workflow.get("steps"), odd)
        self.rows["workflows"].add(workflow, digest, fetched, also=odd)
        for position, step in enumerate(steps):
            owned = step if step.get("workflow_id") is not None else {**step, "workflow_id": workflow.get("id")}
            self.rows["workflow_steps"].add(owned, position, digest, fetched)


def _objects(key: str, value: object, odd: Object) -> Sequence[Object]:
    """The objects of a collection; whatever else stands there goes to `odd` under the collection's key."""
    if value is None:
        return ()
    if not isinstance(value, list):
        odd[key] = value
        return ()
    if strange := [item for item in value if not isinstance(item, dict)]:
        odd[key] = strange
        return [item for item in value if isinstance(item, dict)]
    return value


def _foreign_file(child: Object, document: Object) -> Object | None:
    """The child's own `file_id`, when it names another file than the one it came with."""
    named = child.get("file_id")
    if named is None or str(named) in {str(document.get("id")), str(document.get("file_id"))}:
        return None
    return {"file_id": named}


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
