"""Children of a file as plain JSON objects: generated from its seed, then changed by its edits.

`generate_children` is a pure function of (pools, file, options). Only the seed and the list of edits are stored, so a
world of 200,000 files fits in memory and each document can be rendered again byte for byte.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from pipeline.emulator.fixtures import DAMAGE_TEXTS, FixturePools, JsonObject
from pipeline.emulator.timestamps import SECOND

EditKind = Literal[
    "touch", "add-upload", "remove-upload", "comment", "damage", "arrive", "add-form", "remove-form", "answer",
    "add-field", "remove-field", "field-value", "add-run", "remove-run", "complete-run", "clear",
]  # fmt: skip
EDIT_KINDS: tuple[EditKind, ...] = EditKind.__args__  # type: ignore[attr-defined]

_BIG_IDS = 1 << 60
_SMALL_IDS = 50_000_000
_SLOTS = 4096  # upload numbers of a file; the last one is the upload that arrives late
_UPLOAD_COUNTS = (0, 1, 2, 2, 3, 3, 4, 4, 5, 5, 5, 6, 6, 6, 7, 7, 8, 9, 10, 12)


@dataclass(frozen=True, slots=True)
class Edit:
    """One change of a file: its kind, the seed of its details, and its time."""

    kind: EditKind
    seed: int
    at: int


@dataclass(slots=True)
class FileRecord:
    """State of a file; times in microseconds. `key` is unique, `id` is the id that documents show.

    Both differ only if several instances share an id; `key` is then the `file_id` of the instance.
    `listed` is the update time in lists. It lags behind `updated` until a late commit becomes visible.
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
class RenderOptions:
    """Formats of times, layout of forms, dangling references and the origin of images."""

    upload_time: Callable[[int], str]
    field_time: Callable[[int], str]
    forms: str
    dangling: bool
    image_origin: str


@dataclass(slots=True)
class Content:
    """Children of a file as in a list item with all includes, except geocoding.

    `used*` count all additions, so that no id is used twice.
    """

    uploads: list[JsonObject]
    forms: list[JsonObject]
    fields: list[JsonObject]
    locations: list[JsonObject]
    runs: list[JsonObject]
    used: int = 0
    used_forms: int = 0
    used_runs: int = 0


def generate_children(pools: FixturePools, record: FileRecord, options: RenderOptions) -> Content:
    """Return the children of a file after all its edits."""
    rng = random.Random((pools.seed * 1_000_003 + record.serial) * 2 + 1)
    draw = rng.random
    content = Content([], [], [], [], [])
    seconds = max(record.created // SECOND, 0)
    generator = ContentGenerator(pools, record, options, content)
    for _ in range(_UPLOAD_COUNTS[int(draw() * 20)]):
        seconds += int(draw() * 900)
        generator.add_upload(draw, seconds * SECOND + int(draw() * 1000) * 1000)
    shift = int(draw() * 25)
    location_count = (0, 1, 1, 1, 1, 2, 2, 3)[int(draw() * 8)]
    content.locations = [dict(pools.locations[(shift + n) % 25]) for n in range(location_count)]
    for _ in range((0, 0, 1, 1, 2, 4)[int(draw() * 6)]):
        generator.add_field(draw, record.created)
    for _ in range((0, 0, 0, 1, 1, 2)[int(draw() * 6)]):
        generator.add_form(draw)
    for _ in range((0, 0, 0, 0, 1, 1, 1, 2, 2, 3)[int(draw() * 10)] if content.uploads else 0):
        generator.add_run(draw, record.created)
    for edit in record.edits:
        generator.apply(edit)
    return content


def parse_upload_id(upload_id: int) -> int | None:
    """Return the serial number of the file that an upload id belongs to, None if it belongs to no file."""
    number, rest = divmod(upload_id - 1 - (_BIG_IDS if upload_id > _BIG_IDS else _SMALL_IDS), 3)
    return None if rest or number < 0 else number // _SLOTS


@dataclass(frozen=True, slots=True)
class ContentGenerator:
    """Builds the content of one file: each method adds or changes one object at random."""

    pools: FixturePools
    record: FileRecord
    options: RenderOptions
    content: Content

    def child_id(self, slot: int) -> int:
        """Return the id of the nth child; one file in three has ids above 2^53, which floats round."""
        serial = self.record.serial
        return (serial * _SLOTS + slot) * 3 + 1 + (_BIG_IDS if serial % 3 == 1 else _SMALL_IDS)

    def add_upload(self, draw: Callable[[], float], at: int, slot: int | None = None) -> None:
        """Add an upload that was taken shortly before `at`."""
        if slot is None:
            slot = self.content.used
            self.content.used += 1
        key, format_time = self.child_id(slot), self.options.upload_time
        link = f"{self.options.image_origin}/images/{key:x}"
        upload = self.pools.uploads[int(draw() * 400)].copy()
        upload["id"] = key
        upload["created_at"] = format_time(at)
        upload["scan_date_time"] = format_time(at - int(draw() * 7200) * SECOND)
        upload["image_name"] = f"{key}.jpg"
        upload["image_url"] = f"{link}/full.jpg?signature=0000000000"
        upload["image_thumb"] = f"{link}/thumb.jpg?signature=0000000000"
        self.content.uploads.append(upload)

    def add_field(self, draw: Callable[[], float], at: int) -> None:
        """Add a custom field, of those there are or scanned a second time; its source may be an upload."""
        fields, uploads = self.content.fields, self.content.uploads
        number, name = self.pools.fields[int(draw() * 18)]
        if fields and draw() < 0.2:
            number, name = fields[0]["field_id"], fields[0]["name"]
        text = self.options.field_time(at)
        fields.append(
            {
                "id": number % 97,  # deprecated in the interface; not a key
                "field_id": number,
                "donotuse": str(number + 1),
                "name": name,
                "value": ("", "12.5", "A-1007", "grün", "0042")[int(draw() * 5)],
                "snap_id": uploads[int(draw() * len(uploads))]["id"] if uploads and draw() < 0.5 else None,
                "file_id": self.record.key,
                "created_at": text,
                "updated_at": text,
            }
        )

    def add_form(self, draw: Callable[[], float]) -> None:
        """Add a form submission in one of the three layouts."""
        form = self.pools.forms[int(draw() * 14)]
        answers = self.pools.answers
        values = [answers[int(draw() * len(answers))] for _ in form["questions"]]
        key = f"{self.child_id(2048 + self.content.used_forms):x}-{int(draw() * 1e9):08x}"
        self.content.used_forms += 1
        layout = self.options.forms
        if layout == "mixed":
            layout = ("value-in-field", "answers-beside", "under-form")[int(draw() * 3)]
        self.content.forms.append(_build_submission(key, form, values, layout))

    def add_run(self, draw: Callable[[], float], at: int) -> None:
        """Add a workflow run with done and skipped steps; it may be open, its references may dangle."""
        flow = self.pools.workflows[int(draw() * len(self.pools.workflows))]
        key = self.child_id(3072 + self.content.used_runs * 16)
        self.content.used_runs += 1
        format_time = self.options.upload_time
        is_open = draw() < 0.35
        steps = []
        for index, step in enumerate(flow["steps"]):
            if is_open and index and draw() < 0.5:
                break
            if step["allow_skip"] and draw() < 0.4:
                if draw() < 0.5:
                    steps.append(self._build_run_step(key, index, step["id"], "skipped", [], at=at))
                continue
            items = self._pick_uploads(draw, step, flow)
            steps.append(self._build_run_step(key, index, step["id"], "done", items, at=at))
        if self.options.dangling and draw() < 0.12:
            items = self._pick_uploads(draw, None, flow)
            steps.append(self._build_run_step(key, 14, flow["id"] * 100 + 77, "done", items, at=at))
        end = at + int(draw() * 7200) * SECOND
        self.content.runs.append(
            {
                "id": key,
                "workflow_id": flow["id"],
                "file_id": self.record.key,
                "client_key": f"{key * 31 % (1 << 62):016x}",
                "tenant_id": self.pools.tenant,
                "submit_date_time": format_time(at),
                "started_on_device_at": format_time(at - 60 * SECOND),
                "finished_on_device_at": None if is_open else format_time(end),
                "created_at": format_time(at),
                "updated_at": format_time(end),
                "completed_at": None if is_open else format_time(end),
                "deleted_at": None,
                "workflow": flow,
                "workflow_run_steps": steps,
            }
        )

    def _pick_uploads(self, draw: Callable[[], float], step: JsonObject | None, flow: JsonObject) -> list[int]:
        """Choose the uploads of a step and mark them; sometimes add one that has not arrived yet."""
        uploads = self.content.uploads
        chosen: list[int] = []
        for _ in range((0, 1, 1, 1, 2)[int(draw() * 5)] if uploads else 0):
            upload = uploads[int(draw() * len(uploads))]
            if upload["id"] not in chosen:
                chosen.append(upload["id"])
            if step is not None:
                upload["workflow_id"] = flow["id"]
                upload["workflow_description"] = flow["name"]
                upload["workflow_step_id"] = step["id"]
                upload["workflow_step_description"] = step["platform_description"]
        if self.options.dangling and draw() < 0.06:
            late = self.child_id(_SLOTS - 1)
            if late not in chosen:
                chosen.append(late)
        return chosen

    def _build_run_step(self, run: int, index: int, step: int, status: str, items: list[int], *, at: int) -> JsonObject:
        text = self.options.upload_time(at)
        return {
            "id": run + 3 * (index + 1),
            "entity_type": "uploads",
            "status": status,
            "entity_ids": items,
            "device_id": 4_000 + index * 7,
            "workflow_step_id": step,
            "workflow_run_id": run,
            "submit_date_time": text,
            "created_at": text,
            "updated_at": text,
        }

    def apply(self, edit: Edit) -> None:
        """Apply one edit; if its object is missing, only the update time changes."""
        rng = random.Random(edit.seed)
        draw, content = rng.random, self.content
        match edit.kind:
            case "add-upload":
                self.add_upload(draw, edit.at)
            case "arrive":
                late = self.child_id(_SLOTS - 1)
                if all(upload["id"] != late for upload in content.uploads):
                    self.add_upload(draw, edit.at, _SLOTS - 1)
            case "add-form":
                self.add_form(draw)
            case "add-field":
                self.add_field(draw, edit.at)
            case "add-run":
                self.add_run(draw, edit.at)
            case "remove-upload" | "remove-form" | "remove-field" | "remove-run":
                rows = {"upload": content.uploads, "form": content.forms, "field": content.fields, "run": content.runs}
                candidates = rows[edit.kind.removeprefix("remove-")]
                if candidates:
                    candidates.pop(int(draw() * len(candidates)))
            case "clear":
                content.uploads, content.forms, content.fields, content.locations, content.runs = [], [], [], [], []
            case "touch":
                pass
            case _:
                self._change_child(edit, draw)

    def _change_child(self, edit: Edit, draw: Callable[[], float]) -> None:
        content = self.content
        match edit.kind:
            case "comment" if content.uploads:
                upload = content.uploads[int(draw() * len(content.uploads))]
                upload["comment"] = f"edited {edit.seed % 10_000} — geändert"
            case "damage" if content.uploads:
                upload = content.uploads[int(draw() * len(content.uploads))]
                damage = list(DAMAGE_TEXTS)[int(draw() * len(DAMAGE_TEXTS))]
                upload.update(has_damage=1, damage_type_id=damage, damage_type_desc=DAMAGE_TEXTS[damage][0])
            case "field-value" if content.fields:
                field = content.fields[int(draw() * len(content.fields))]
                field.update(value=f"E-{edit.seed % 10_000}", updated_at=self.options.field_time(edit.at))
            case "answer" if content.forms:
                _set_first_answer(content.forms[int(draw() * len(content.forms))], f"edited {edit.seed % 10_000}")
            case "complete-run":
                text = self.options.upload_time(edit.at)
                for run in content.runs:
                    if run["completed_at"] is None:
                        run.update(completed_at=text, updated_at=text, finished_on_device_at=text)
            case _:
                pass


def _build_submission(key: str, form: JsonObject, values: list[Any], layout: str) -> JsonObject:
    """Return a submission: value inside the field, answers beside the fields, or both under the form."""
    questions = form["questions"]
    pairs = list(zip(questions, values, strict=True))
    answers = [{"id": question["id"], "value": value} for question, value in pairs]
    if layout == "value-in-field":
        fields = [{"id": q["id"], "label": q["label"], "value": value} for q, value in pairs]
        return {"id": key, "form_id": form["id"], "form": {"title": form["title"]}, "fields": fields}
    if layout == "answers-beside":
        fields = [{"id": q["id"], "label": q["label"]} for q in questions]
        title = {"title": form["title"]}
        return {"id": key, "form_id": form["id"], "form": title, "fields": fields, "answers": answers}
    fields = [{"id": q["id"], "name": q["label"]} for q in questions]
    nested = {"id": form["id"], "title": form["title"], "fields": fields, "answers": answers}
    return {"id": key, "form": nested}


def _set_first_answer(submission: JsonObject, text: str) -> None:
    """Set the first answer of a submission in any layout."""
    holder = submission["form"] if "fields" in submission["form"] else submission
    rows = holder.get("answers") or holder["fields"]
    if rows:
        rows[0]["value"] = text
