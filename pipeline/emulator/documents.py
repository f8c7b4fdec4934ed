"""Files as the bytes the service sends: list items with the chosen includes, and details."""

from collections import OrderedDict
from typing import Any

import msgspec

from pipeline.emulator import pools, stamps
from pipeline.emulator.growth import Content, FileRecord, Style, grow
from pipeline.emulator.options import Quirks
from pipeline.emulator.pools import DAMAGE_TEXTS, LANGUAGES, JsonObject
from pipeline.emulator.world import World

INCLUDES = ("uploads", "geocoding", "forms", "fields", "locations", "workflows")
ALL_INCLUDES = frozenset(INCLUDES)

_SIGNATURE = b"signature=0000000000"
_ID_KEYS = frozenset(
    (
        "id",
        "file_id",
        "tenant_id",
        "device_id",
        "workflow_id",
        "workflow_step_id",
        "workflow_run_id",
        "field_id",
        "snap_id",
        "recent_snap_id",
        "form_id",
        "damage_type_id",
        "document_type_id",
    )
)
_FLAG_KEYS = frozenset(("closed", "has_damage"))
_TEXT_KEYS = frozenset(("comment", "damage_type_desc", "document_type_desc", "latitude", "longitude"))
# What only the field notes know of; the interface names none of these.
_SEEN_KEYS = frozenset(
    (
        "recent_snap_id",
        "snap_count",
        "snap_count_with_damage",
        "device_nick",
        "damage_type_id",
        "document_type_id",
        "client_key",
        "deleted_at",
        "started_on_device_at",
        "finished_on_device_at",
        "force",
        "language",
        "location_filter",
        "close_file_after_completion",
        "info_url",
        "data",
        "retention_class",
    )
)


class Documents:
    """Renders files, and keeps the bytes of what was shown lately within a budget.

    Keys of the cache carry the file's revision, so a change needs no invalidation.
    """

    def __init__(self, world: World, quirks: Quirks, image_origin: str, cache_bytes: int = 256_000_000) -> None:
        self.world = world
        self.image_origin = image_origin
        self._budget = cache_bytes
        self._kept = 0
        self._shown = 0
        self._bytes: OrderedDict[tuple[Any, ...], bytes] = OrderedDict()
        self._grown: OrderedDict[tuple[int, int], Content] = OrderedDict()
        self.restyle(quirks)

    def restyle(self, quirks: Quirks) -> None:
        """Show everything by other quirks from now on."""
        self.quirks = quirks
        nested: stamps.Spelling = "micros-z" if quirks.times == "mixed" else quirks.times
        plain: stamps.Spelling = "offset" if quirks.times == "mixed" else quirks.times
        self._file_time = stamps.SPELLINGS[plain]
        self._pools = pools.dig(self.world.plan.seed, self.world.born - self.world.born % stamps.DAY, nested)
        self._style = Style(
            stamps.SPELLINGS[nested],
            self._file_time,
            quirks.form_spelling,
            quirks.dangling == "yes",
            self.image_origin,
        )
        self._plain = (
            quirks.ids == "integer"
            and quirks.flags == "integer"
            and quirks.empties == "mixed"
            and quirks.extra_keys == "seen"
        )
        self._bytes.clear()
        self._grown.clear()
        self._kept = 0

    def prerender(self) -> None:
        """Render every file now, at about 17 kB of memory each, so that answers cost next to nothing."""
        self._budget = 1 << 62
        for record in self.world.records.values():
            for includes in (frozenset[str](), ALL_INCLUDES):
                self.item_bytes(record, includes, None)
            self.detail_bytes(record, None)

    # Bytes, for answers.

    def item_bytes(self, record: FileRecord, includes: frozenset[str], lang: str | None) -> bytes:
        """Return one element of a list's data array."""
        key = (record.key, record.revision, includes, lang)
        found = self._bytes.get(key)
        if found is None:
            found = self._keep(key, msgspec.json.encode(self.item(record, includes, lang)))
        return self._signed(found) if self.quirks.image_urls == "fresh" else found

    def detail_bytes(self, record: FileRecord, lang: str | None) -> bytes:
        """Return the body of a detail answer, without any wrapping."""
        key = (record.key, record.revision, lang)
        found = self._bytes.get(key)
        if found is None:
            found = self._keep(key, msgspec.json.encode(self.detail(record, lang)))
        return self._signed(found) if self.quirks.image_urls == "fresh" else found

    # Objects, for oracles.

    def item(self, record: FileRecord, includes: frozenset[str] = ALL_INCLUDES, lang: str | None = None) -> JsonObject:
        """Return a file as an element of a list with these includes; keys not asked for are absent."""
        content = self.content(record)
        shown = self._head(record, content, record.listed or record.updated)
        if "uploads" in includes:
            uploads = self._texts(content.uploads, lang)
            if "geocoding" in includes:
                uploads = [{**upload, "geocoding": self._geocoding(upload)} for upload in uploads]
            shown["uploads"] = uploads
        if "forms" in includes:
            shown["form_submits"] = content.forms
        if "fields" in includes:
            shown["fields"] = [_list_field(field) for field in content.fields]
        if "locations" in includes:
            shown["locations"] = content.locations
        if "workflows" in includes:
            shown["workflow_runs"] = content.runs
        if self.quirks.updated_in_list == "absent":
            del shown["updated_at"]
        if self.quirks.instances == "on":
            shown["file_id"] = record.key
        return shown if self._plain else self._respelt(shown)

    def detail(self, record: FileRecord, lang: str | None = None) -> JsonObject:
        """Return a file as the detail call shows it."""
        quirks, content = self.quirks, self.content(record)
        skew = {"same": 0, "newer": 1, "older": -1}[quirks.detail_stamp] * stamps.SECOND
        shown = self._head(record, content, record.updated + skew)
        if quirks.detail_keys == "schema":
            for key in ("scan_code_format", "recent_snap_id", "snap_count", "snap_count_with_damage"):
                del shown[key]
        if quirks.instances == "on":
            shown["file_id"] = record.key
        more = {"file_id": record.key, "tenant_id": self._pools.tenant, "image_path": ""}
        heeded = lang if quirks.lang_texts == "list-and-detail" else None
        shown["uploads"] = [
            {**upload, **more, "image_path": f"tenants/{self._pools.tenant}/{upload['image_name']}"}
            for upload in self._texts(content.uploads, heeded)
        ]
        if quirks.detail_forms == "yes":
            shown["form_submits"] = content.forms
        shown["fields"] = content.fields
        shown["locations"] = content.locations
        shown["workflow_runs"] = content.runs
        return shown if self._plain else self._respelt(shown)

    def content(self, record: FileRecord) -> Content:
        """Return a file's children; those shown lately are kept, as list and detail share them."""
        key = (record.key, record.revision)
        found = self._grown.get(key)
        if found is None:
            found = self._grown[key] = grow(self._pools, record, self._style)
            if len(self._grown) > 3000:
                self._grown.popitem(last=False)
        return found

    # Inside.

    def _head(self, record: FileRecord, content: Content, updated: int) -> JsonObject:
        snaps = [upload["id"] for upload in content.uploads if upload["upload_type"] == "snap"]
        shown = {
            "id": record.id,
            "scan_code": record.scan_code,
            "scan_code_format": self._pools.code_formats[record.serial * 13 % 6],
            "closed": record.closed,
            "recent_snap_id": snaps[-1] if snaps else None,
            "snap_count": len(snaps),
            "snap_count_with_damage": sum(upload["has_damage"] for upload in content.uploads),
            "created_at": self._file_time(record.created),
            "updated_at": self._file_time(updated),
        }
        if record.serial % 101 == 50:
            shown["retention_class"] = "long"
        return shown

    def _texts(self, uploads: list[JsonObject], lang: str | None) -> list[JsonObject]:
        """Return uploads with damage texts in a language, if it is available and heeded."""
        if lang not in LANGUAGES or lang == LANGUAGES[0] or self.quirks.lang_texts == "off":
            return uploads
        place = LANGUAGES.index(lang)
        return [
            {**upload, "damage_type_desc": DAMAGE_TEXTS[upload["damage_type_id"]][place]}
            if upload["damage_type_id"]
            else upload
            for upload in uploads
        ]

    def _geocoding(self, upload: JsonObject) -> JsonObject | None:
        return self._pools.geocodings[upload["id"] % 100] if upload["latitude"] else None

    def _respelt(self, value: Any, key: str = "") -> Any:
        """Rewrite ids, flags, blanks and extra keys by the quirks."""
        quirks = self.quirks
        if isinstance(value, dict):
            kept = quirks.extra_keys != "none"
            shown = {name: self._respelt(one, name) for name, one in value.items() if kept or name not in _SEEN_KEYS}
            if quirks.extra_keys == "many" and "id" in shown:
                shown["x_state"] = {"sync": "ok", "tries": 1}
                shown["x_note"] = None
            return shown
        if isinstance(value, list):
            return [self._respelt(one, "id" if key == "entity_ids" else "") for one in value]
        if key in _TEXT_KEYS and not value and quirks.empties != "mixed":
            return "" if quirks.empties == "empty" else None
        if key in _FLAG_KEYS and quirks.flags != "integer":
            return bool(value) if quirks.flags == "boolean" else str(value)
        if key in _ID_KEYS and quirks.ids == "string" and isinstance(value, int):
            return str(value)
        return value

    def _keep(self, key: tuple[Any, ...], body: bytes) -> bytes:
        self._bytes[key] = body
        self._kept += len(body)
        while self._kept > self._budget and self._bytes:
            self._kept -= len(self._bytes.popitem(last=False)[1])
        return body

    def _signed(self, body: bytes) -> bytes:
        self._shown += 1
        return body.replace(_SIGNATURE, b"signature=%010d" % self._shown)


def _list_field(field: JsonObject) -> JsonObject:
    return {name: field[name] for name in ("id", "field_id", "donotuse", "name", "value", "snap_id")}
