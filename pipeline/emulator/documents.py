"""Files as response bytes: list items with the requested includes, and details."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import msgspec

from pipeline.emulator import fixtures, timestamps
from pipeline.emulator.fixtures import DAMAGE_TEXTS, LANGUAGES, JsonObject
from pipeline.emulator.generator import Content, FileRecord, RenderOptions, generate_children
from pipeline.emulator.options import Quirks
from pipeline.emulator.world import World

INCLUDES = ("uploads", "geocoding", "forms", "fields", "locations", "workflows")
ALL_INCLUDES = frozenset(INCLUDES)

_MAX_BODIES = 4_000
_SIGNATURE = b"signature=0000000000"
_ID_KEYS = frozenset((
    "id", "file_id", "tenant_id", "device_id", "workflow_id", "workflow_step_id", "workflow_run_id", "field_id",
    "snap_id", "recent_snap_id", "form_id", "damage_type_id", "document_type_id",
))  # fmt: skip
_FLAG_KEYS = frozenset(("closed", "has_damage"))
_TEXT_KEYS = frozenset(("comment", "damage_type_desc", "document_type_desc", "latitude", "longitude"))
# Keys that were observed in the field; the interface has none of them.
_SEEN_KEYS = frozenset((
    "recent_snap_id", "snap_count", "snap_count_with_damage", "device_nick", "damage_type_id", "document_type_id",
    "client_key", "deleted_at", "started_on_device_at", "finished_on_device_at", "force", "language",
    "location_filter", "close_file_after_completion", "info_url", "data", "retention_class",
))  # fmt: skip


class DocumentRenderer:
    """Renders files, and keeps the children and the bodies of recent ones, and bodies that were rendered beforehand.

    Keys contain the state of the file, so a change needs no invalidation. A crawl lists most files several times, and
    rendering takes most of the emulator's time.
    """

    def __init__(self, world: World, quirks: Quirks, image_origin: str) -> None:
        self.world = world
        self.image_origin = image_origin
        self._signature_count = 0
        self._sign: Callable[[], bytes] | None = None
        self._bodies: OrderedDict[tuple[Any, ...], bytes] = OrderedDict()
        self._max_bodies = _MAX_BODIES
        self._contents: OrderedDict[tuple[int, int], Content] = OrderedDict()
        self.set_quirks(quirks)

    def set_quirks(self, quirks: Quirks) -> None:
        """Render all documents by other quirks from now on."""
        self.quirks = quirks
        nested: timestamps.TimeFormat = "micros-z" if quirks.times == "mixed" else quirks.times
        plain: timestamps.TimeFormat = "offset" if quirks.times == "mixed" else quirks.times
        self._file_time = timestamps.TIME_FORMATS[plain]
        self._pools = fixtures.build_pools(
            self.world.plan.seed,
            self.world.born - self.world.born % timestamps.DAY,
            nested,
            definitions=quirks.definitions,
            mixed_answers=quirks.answer_values == "mixed",
        )
        self._options = RenderOptions(
            timestamps.TIME_FORMATS[nested],
            self._file_time,
            quirks.form_layout,
            quirks.dangling == "yes",
            self.image_origin,
        )
        self._plain = (
            quirks.ids == "integer"
            and quirks.flags == "integer"
            and quirks.empties == "mixed"
            and quirks.extra_keys == "seen"
        )
        self._bodies.clear()
        self._contents.clear()

    def set_image_host(self, origin: str, sign: Callable[[], bytes]) -> None:
        """Show links to the images of a host from now on; `sign` returns the query of the links of a response."""
        self.image_origin = origin
        self._sign = sign
        self.set_quirks(self.quirks)

    def prerender(self) -> None:
        """Render every file now (about 17 kB of memory each), so that responses need not be rendered."""
        self._max_bodies += 3 * len(self.world.records)
        for record in self.world.records.values():
            for includes in (frozenset[str](), ALL_INCLUDES):
                self.render_item(record, includes, None)
            self.render_detail(record, None)

    # Bytes, for responses.

    def render_item(self, record: FileRecord, includes: frozenset[str], lang: str | None) -> bytes:
        """Return one element of the data array of a list."""
        return self._render(record, (includes, lang), lambda: self.build_item(record, includes, lang))

    def render_detail(self, record: FileRecord, lang: str | None) -> bytes:
        """Return the body of a detail response, without a wrapper."""
        return self._render(record, (lang,), lambda: self.build_detail(record, lang))

    def _render(self, record: FileRecord, variant: tuple[Any, ...], build: Callable[[], JsonObject]) -> bytes:
        key = (record.key, record.revision, record.id, record.scan_code, record.closed, record.updated, variant)
        body = self._bodies.get(key)
        if body is None:
            body = self._bodies[key] = msgspec.json.encode(build())
            if len(self._bodies) > self._max_bodies:
                self._bodies.popitem(last=False)
        if self._sign is not None:
            return body.replace(_SIGNATURE, self._sign())
        if self.quirks.image_urls != "fresh":
            return body
        self._signature_count += 1
        return body.replace(_SIGNATURE, b"signature=%010d" % self._signature_count)

    # Objects, for oracles.

    def build_item(
        self, record: FileRecord, includes: frozenset[str] = ALL_INCLUDES, lang: str | None = None
    ) -> JsonObject:
        """Return a file as a list item; keys that were not requested are absent."""
        content = self.get_content(record)
        document = self._build_head(record, content, record.listed or record.updated)
        if "uploads" in includes:
            uploads = self._translate(content.uploads, lang if self.quirks.lang_texts != "detail-only" else None)
            if "geocoding" in includes:
                uploads = [{**upload, "geocoding": self._find_geocoding(upload)} for upload in uploads]
            document["uploads"] = uploads
        if "forms" in includes:
            document["form_submits"] = content.forms
        if "fields" in includes:
            document["fields"] = [_to_list_field(field) for field in content.fields]
        if "locations" in includes:
            document["locations"] = content.locations
        if "workflows" in includes:
            document["workflow_runs"] = content.runs
        if self.quirks.updated_in_list == "absent":
            del document["updated_at"]
        if self.quirks.instances == "on":
            document["file_id"] = record.key
        return document if self._plain else self._apply_value_quirks(document)

    def build_detail(self, record: FileRecord, lang: str | None = None) -> JsonObject:
        """Return a file as the detail call returns it."""
        quirks, content = self.quirks, self.get_content(record)
        skew = {"same": 0, "newer": 1, "older": -1}[quirks.detail_stamp] * timestamps.SECOND
        document = self._build_head(record, content, record.updated + skew)
        if quirks.detail_keys == "schema":
            for key in ("scan_code_format", "recent_snap_id", "snap_count", "snap_count_with_damage"):
                del document[key]
        if quirks.instances == "on":
            document["file_id"] = record.key
        extra: JsonObject = {"file_id": record.key, "tenant_id": self._pools.tenant, "image_path": ""}
        if quirks.detail_geocoding in {"null", "empty"}:
            extra["geocoding"] = None if quirks.detail_geocoding == "null" else []
        detail_lang = lang if quirks.lang_texts in {"list-and-detail", "detail-only"} else None
        document["uploads"] = [
            {**upload, **extra, "image_path": f"tenants/{self._pools.tenant}/{upload['image_name']}"}
            for upload in self._translate(content.uploads, detail_lang)
        ]
        if quirks.detail_geocoding == "full":
            document["uploads"] = [
                {**upload, "geocoding": self._find_geocoding(upload)} for upload in document["uploads"]
            ]
        if quirks.detail_forms != "no":
            document["form_submits"] = content.forms if quirks.detail_forms == "yes" else []
        document["fields"] = content.fields
        document["locations"] = content.locations
        document["workflow_runs"] = content.runs
        return document if self._plain else self._apply_value_quirks(document)

    def get_content(self, record: FileRecord) -> Content:
        """Return the children of a file; recent ones are cached, because list and detail share them."""
        key = (record.key, record.revision)
        content = self._contents.get(key)
        if content is None:
            content = self._contents[key] = generate_children(self._pools, record, self._options)
            if len(self._contents) > 3000:
                self._contents.popitem(last=False)
        return content

    def _build_head(self, record: FileRecord, content: Content, updated: int) -> JsonObject:
        snaps = [upload["id"] for upload in content.uploads if upload["upload_type"] == "snap"]
        document = {
            "id": record.id,
            "scan_code": record.scan_code,
            "scan_code_format": fixtures.CODE_FORMATS[record.serial * 13 % 6],
            "closed": record.closed,
            "recent_snap_id": snaps[-1] if snaps else None,
            "snap_count": len(snaps),
            "snap_count_with_damage": sum(upload["has_damage"] for upload in content.uploads),
            "created_at": self._file_time(record.created),
            "updated_at": None if record.key in self.world.untimed else self._file_time(updated),
        }
        if record.serial % 101 == 50:
            document["retention_class"] = "long"
        return document

    def _translate(self, uploads: list[JsonObject], lang: str | None) -> list[JsonObject]:
        """Return uploads with damage texts in a language, if the service supports it."""
        if (self.quirks.identifiers, self.quirks.escapes, self.quirks.decimals) != ("integer", "none", "point"):
            uploads = [self._respell_upload(upload) for upload in uploads]
        if lang not in LANGUAGES or lang == LANGUAGES[0] or self.quirks.lang_texts == "off":
            return uploads
        index = LANGUAGES.index(lang)
        return [
            {**upload, "damage_type_desc": DAMAGE_TEXTS[upload["damage_type_id"]][index]}
            if upload["damage_type_id"]
            else upload
            for upload in uploads
        ]

    def _respell_upload(self, upload: JsonObject) -> JsonObject:
        """Return an upload with identifiers and coordinates that are no numbers, and HTML entities in its comment."""
        respelled = dict(upload)
        if self.quirks.identifiers == "text":
            for key, prefix in (("device_id", "dev"), ("workflow_id", "wf"), ("workflow_step_id", "step")):
                respelled[key] = None if upload[key] is None else f"{prefix}-{upload[key]}"
        if self.quirks.decimals == "comma":
            respelled.update({key: (upload[key] or "").replace(".", ",") for key in ("latitude", "longitude")})
        if self.quirks.escapes == "html" and upload["comment"]:
            respelled["comment"] = f"Tom &amp; Jerry &lt;{upload['comment']}&gt;"
        return respelled

    def _find_geocoding(self, upload: JsonObject) -> JsonObject | None:
        return self._pools.geocodings[upload["id"] % 100] if upload["latitude"] else None

    def _apply_value_quirks(self, value: Any, key: str = "") -> Any:
        """Rewrite ids, flags, empty values and extra keys by the quirks."""
        quirks = self.quirks
        if isinstance(value, dict):
            has_extra_keys = quirks.extra_keys != "none"
            document = {
                name: self._apply_value_quirks(child, name)
                for name, child in value.items()
                if has_extra_keys or name not in _SEEN_KEYS
            }
            if quirks.extra_keys == "many" and "id" in document:
                document["x_state"] = {"sync": "ok", "tries": 1}
                document["x_note"] = None
            return document
        if isinstance(value, list):
            return [self._apply_value_quirks(child, "id" if key == "entity_ids" else "") for child in value]
        if key in _TEXT_KEYS and not value and quirks.empties != "mixed":
            return "" if quirks.empties == "empty" else None
        if key in _FLAG_KEYS and quirks.flags != "integer":
            return bool(value) if quirks.flags == "boolean" else str(value)
        if key in _ID_KEYS and quirks.ids == "string" and isinstance(value, int):
            return str(value)
        return value


def _to_list_field(field: JsonObject) -> JsonObject:
    return {name: field[name] for name in ("id", "field_id", "donotuse", "name", "value", "snap_id")}
