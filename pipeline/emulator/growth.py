"""A file's children, grown from its own draws and then changed by its edits, as plain JSON objects.

`grow` is a pure function of (pools, file, style): nothing is stored but the seed and the list of edits, so a
world of 200,000 files fits in memory and any file can be shown again byte for byte.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from pipeline.emulator.pools import DAMAGE_TEXTS, JsonObject, Pools
from pipeline.emulator.stamps import SECOND

EditKind = Literal[
    "touch",
    "add-upload",
    "remove-upload",
    "comment",
    "damage",
    "arrive",
    "add-form",
    "remove-form",
    "answer",
    "add-field",
    "remove-field",
    "field-value",
    "add-run",
    "remove-run",
    "complete-run",
    "clear",
]
EDIT_KINDS: tuple[EditKind, ...] = EditKind.__args__  # type: ignore[attr-defined]

_SLOTS = 4096  # upload numbers a file can use up; the last one is the upload that is still on its way
_UPLOAD_COUNTS = (0, 1, 2, 2, 3, 3, 4, 4, 5, 5, 5, 6, 6, 6, 7, 7, 8, 9, 10, 12)


@dataclass(frozen=True, slots=True)
class Edit:
    """One change of a file: what, the seed of its details, and the moment it got."""

    kind: EditKind
    seed: int
    at: int


@dataclass(slots=True)
class FileRecord:
    """What the world remembers of a file; moments in microseconds. `key` is unique, `id` is what is shown.

    They differ only where several instances share an id; `key` is then the instance's `file_id`.
    `listed` is the stamp the list shows, which lags behind `updated` while a change is not yet visible there.
    """

    key: int
    id: int
    serial: int
    scan_code: str
    closed: int
    created: int
    updated: int
    listed: int
    revision: int = 0
    edits: tuple[Edit, ...] = ()


@dataclass(frozen=True, slots=True)
class Style:
    """How content is spelt: times of uploads and runs, of fields, the form spelling, dangling references."""

    upload_time: Callable[[int], str]
    field_time: Callable[[int], str]
    forms: str
    dangling: bool
    image_origin: str


@dataclass(slots=True)
class Content:
    """The children of a file as the list with all includes shows them, but for geocoding.

    `used*` count what was ever added, so that no id comes twice.
    """

    uploads: list[JsonObject]
    forms: list[JsonObject]
    fields: list[JsonObject]
    locations: list[JsonObject]
    runs: list[JsonObject]
    used: int = 0
    used_forms: int = 0
    used_runs: int = 0


def grow(pools: Pools, record: FileRecord, style: Style) -> Content:
    """Return the children of a file after all its edits."""
    rng = random.Random((pools.seed * 1_000_003 + record.serial) * 2 + 1)
    rnd = rng.random
    made = Content([], [], [], [], [])
    span = max(record.created // SECOND, 0)
    grower = Grower(pools, record, style, made)
    for _ in range(_UPLOAD_COUNTS[int(rnd() * 20)]):
        span += int(rnd() * 900)
        grower.add_upload(rnd, span * SECOND + int(rnd() * 1000) * 1000)
    shift = int(rnd() * 25)
    made.locations = [dict(pools.locations[(shift + n) % 25]) for n in range((0, 1, 1, 1, 1, 2, 2, 3)[int(rnd() * 8)])]
    for _ in range((0, 0, 1, 1, 2, 4)[int(rnd() * 6)]):
        grower.add_field(rnd, record.created)
    if made.fields and rnd() < 0.3:
        grower.repeat_field(rnd, record.created)
    for _ in range((0, 0, 0, 1, 1, 2)[int(rnd() * 6)]):
        grower.add_form(rnd)
    for _ in range((0, 0, 0, 0, 1, 1, 1, 2, 2, 3)[int(rnd() * 10)] if made.uploads else 0):
        grower.add_run(rnd, record.created)
    for edit in record.edits:
        grower.apply(edit)
    return made


class Grower:
    """The content of one file in the making: every method adds or changes one thing by a few draws."""

    def __init__(self, pools: Pools, record: FileRecord, style: Style, made: Content) -> None:
        self.pools = pools
        self.record = record
        self.style = style
        self.made = made

    def child_id(self, slot: int) -> int:
        """Return the id of the file's nth child; one file in three has ids beyond 2^53, which floats round."""
        serial = self.record.serial
        return (serial * _SLOTS + slot) * 3 + 1 + ((1 << 60) if serial % 3 == 1 else 50_000_000)

    def add_upload(self, rnd: Callable[[], float], at: int, slot: int | None = None) -> None:
        """Add an upload taken just before a moment."""
        if slot is None:
            slot = self.made.used
            self.made.used += 1
        key, spell = self.child_id(slot), self.style.upload_time
        link = f"{self.style.image_origin}/images/{key * 2654435761 % (1 << 63):x}"
        upload = self.pools.uploads[int(rnd() * 400)].copy()
        upload["id"] = key
        upload["created_at"] = spell(at)
        upload["scan_date_time"] = spell(at - int(rnd() * 7200) * SECOND)
        upload["image_name"] = f"{key}.jpg"
        upload["image_url"] = f"{link}/full.jpg?signature=0000000000"
        upload["image_thumb"] = f"{link}/thumb.jpg?signature=0000000000"
        self.made.uploads.append(upload)

    def add_field(self, rnd: Callable[[], float], at: int) -> None:
        """Add a custom field, which may have been scanned from an upload."""
        number, name = self.pools.fields[int(rnd() * 18)]
        uploads = self.made.uploads
        source = uploads[int(rnd() * len(uploads))]["id"] if uploads and rnd() < 0.5 else None
        value = ("", "12.5", "A-1007", "grün", "0042")[int(rnd() * 5)]
        self.made.fields.append(self._field(number, name, value, source, at=at))

    def repeat_field(self, rnd: Callable[[], float], at: int) -> None:
        """Scan a field that is already there once more, from another upload or none."""
        first = self.made.fields[0]
        uploads = self.made.uploads
        source = uploads[int(rnd() * len(uploads))]["id"] if uploads else None
        self.made.fields.append(self._field(first["field_id"], first["name"], f"R-{int(rnd() * 999)}", source, at=at))

    def _field(self, number: int, name: str, value: str, source: int | None, *, at: int) -> JsonObject:
        text = self.style.field_time(at)
        return {
            "id": number % 97,  # deprecated upstream and mapped to something that is no key
            "field_id": number,
            "donotuse": str(number + 1),
            "name": name,
            "value": value,
            "snap_id": source,
            "file_id": self.record.key,
            "created_at": text,
            "updated_at": text,
        }

    def add_form(self, rnd: Callable[[], float]) -> None:
        """Add a form submission in one of the three spellings."""
        form = self.pools.forms[int(rnd() * 14)]
        answers = self.pools.answers
        values = [answers[int(rnd() * len(answers))] for _ in form["questions"]]
        key = f"{self.child_id(2048 + self.made.used_forms):x}-{int(rnd() * 1e9):08x}"
        self.made.used_forms += 1
        spelling = self.style.forms
        if spelling == "mixed":
            spelling = ("value-in-field", "answers-beside", "under-form")[int(rnd() * 3)]
        self.made.forms.append(_submission(key, form, values, spelling))

    def add_run(self, rnd: Callable[[], float], at: int) -> None:
        """Add a workflow run: steps done, steps skipped, an end or none, references that may dangle."""
        flow = self.pools.workflows[int(rnd() * len(self.pools.workflows))]
        key = self.child_id(3072 + self.made.used_runs * 16)
        self.made.used_runs += 1
        spell = self.style.upload_time
        is_open = rnd() < 0.35
        steps = []
        for place, step in enumerate(flow["steps"]):
            if is_open and place and rnd() < 0.5:
                break
            if step["allow_skip"] and rnd() < 0.4:
                if rnd() < 0.5:
                    steps.append(self._run_step(key, place, step["id"], "skipped", [], at=at))
                continue
            steps.append(self._run_step(key, place, step["id"], "done", self._items(rnd, step, flow), at=at))
        if self.style.dangling and rnd() < 0.12:
            steps.append(self._run_step(key, 14, flow["id"] * 100 + 77, "done", self._items(rnd, None, flow), at=at))
        end = at + int(rnd() * 7200) * SECOND
        self.made.runs.append(
            {
                "id": key,
                "workflow_id": flow["id"],
                "file_id": self.record.key,
                "client_key": f"{key * 31 % (1 << 62):016x}",
                "tenant_id": self.pools.tenant,
                "submit_date_time": spell(at),
                "started_on_device_at": spell(at - 60 * SECOND),
                "finished_on_device_at": None if is_open else spell(end),
                "created_at": spell(at),
                "updated_at": spell(end),
                "completed_at": None if is_open else spell(end),
                "deleted_at": None,
                "workflow": flow,
                "workflow_run_steps": steps,
            }
        )

    def _items(self, rnd: Callable[[], float], step: JsonObject | None, flow: JsonObject) -> list[int]:
        """Choose the uploads of a step, tell the upload so, and now and then add one that has not arrived."""
        uploads = self.made.uploads
        chosen: list[int] = []
        for _ in range((0, 1, 1, 1, 2)[int(rnd() * 5)] if uploads else 0):
            upload = uploads[int(rnd() * len(uploads))]
            if upload["id"] not in chosen:
                chosen.append(upload["id"])
            if step is not None:
                upload["workflow_id"] = flow["id"]
                upload["workflow_description"] = flow["name"]
                upload["workflow_step_id"] = step["id"]
                upload["workflow_step_description"] = step["platform_description"]
        if self.style.dangling and rnd() < 0.06:
            late = self.child_id(_SLOTS - 1)
            if late not in chosen:
                chosen.append(late)
        return chosen

    def _run_step(self, run: int, place: int, step: int, status: str, items: list[int], *, at: int) -> JsonObject:
        text = self.style.upload_time(at)
        return {
            "id": run + 3 * (place + 1),
            "entity_type": "uploads",
            "status": status,
            "entity_ids": items,
            "device_id": 4_000 + place * 7,
            "workflow_step_id": step,
            "workflow_run_id": run,
            "submit_date_time": text,
            "created_at": text,
            "updated_at": text,
        }

    def apply(self, edit: Edit) -> None:
        """Change the content by one edit; an edit whose object is missing changes nothing but the stamp."""
        rng = random.Random(edit.seed)
        rnd, made = rng.random, self.made
        match edit.kind:
            case "add-upload":
                self.add_upload(rnd, edit.at)
            case "arrive":
                late = self.child_id(_SLOTS - 1)
                if all(upload["id"] != late for upload in made.uploads):
                    self.add_upload(rnd, edit.at, _SLOTS - 1)
            case "add-form":
                self.add_form(rnd)
            case "add-field":
                self.add_field(rnd, edit.at)
            case "add-run":
                self.add_run(rnd, edit.at)
            case "remove-upload" | "remove-form" | "remove-field" | "remove-run":
                rows = {"upload": made.uploads, "form": made.forms, "field": made.fields, "run": made.runs}
                victims = rows[edit.kind.removeprefix("remove-")]
                if victims:
                    victims.pop(int(rnd() * len(victims)))
            case "clear":
                made.uploads, made.forms, made.fields, made.locations, made.runs = [], [], [], [], []
            case "touch":
                pass
            case _:
                self._alter(edit, rnd)

    def _alter(self, edit: Edit, rnd: Callable[[], float]) -> None:
        made = self.made
        match edit.kind:
            case "comment" if made.uploads:
                made.uploads[int(rnd() * len(made.uploads))]["comment"] = f"edited {edit.seed % 10_000} — geändert"
            case "damage" if made.uploads:
                upload = made.uploads[int(rnd() * len(made.uploads))]
                damage = list(DAMAGE_TEXTS)[int(rnd() * len(DAMAGE_TEXTS))]
                upload.update(has_damage=1, damage_type_id=damage, damage_type_desc=DAMAGE_TEXTS[damage][0])
            case "field-value" if made.fields:
                field = made.fields[int(rnd() * len(made.fields))]
                field.update(value=f"E-{edit.seed % 10_000}", updated_at=self.style.field_time(edit.at))
            case "answer" if made.forms:
                _answer(made.forms[int(rnd() * len(made.forms))], f"edited {edit.seed % 10_000}")
            case "complete-run":
                text = self.style.upload_time(edit.at)
                for run in made.runs:
                    if run["completed_at"] is None:
                        run.update(completed_at=text, updated_at=text, finished_on_device_at=text)
            case _:
                pass


def _submission(key: str, form: JsonObject, values: list[str | None], spelling: str) -> JsonObject:
    """Spell one submission: value inside the field, answers beside the fields, or both under the form."""
    questions = form["questions"]
    pairs = list(zip(questions, values, strict=True))
    answers = [{"id": question["id"], "value": value} for question, value in pairs]
    if spelling == "value-in-field":
        fields = [{"id": q["id"], "label": q["label"], "value": value} for q, value in pairs]
        return {"id": key, "form_id": form["id"], "form": {"title": form["title"]}, "fields": fields}
    if spelling == "answers-beside":
        fields = [{"id": q["id"], "label": q["label"]} for q in questions]
        title = {"title": form["title"]}
        return {"id": key, "form_id": form["id"], "form": title, "fields": fields, "answers": answers}
    fields = [{"id": q["id"], "name": q["label"]} for q in questions]
    nested = {"id": form["id"], "title": form["title"], "fields": fields, "answers": answers}
    return {"id": key, "form": nested}


def _answer(submission: JsonObject, text: str) -> None:
    """Set the first answer of a submission, wherever its spelling keeps it."""
    holder = submission["form"] if "fields" in submission["form"] else submission
    rows = holder.get("answers") or holder["fields"]
    if rows:
        rows[0]["value"] = text
