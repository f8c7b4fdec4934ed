"""GET /files: its parameters, the selection of files, and the body in every style that a deployment may choose."""

import random
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, urlencode

import msgspec
from multidict import MultiMapping

from pipeline.emulator import timestamps
from pipeline.emulator.documents import ALL_INCLUDES, DocumentRenderer
from pipeline.emulator.generator import FileRecord
from pipeline.emulator.options import Quirks

DEFAULT_LIMIT = 50
MAX_LIMIT = 250
MAX_LIMIT_WITH_INCLUDES = 50


class UnprocessableError(Exception):
    """A parameter is invalid; `errors` maps parameters to problems."""

    def __init__(self, **errors: str) -> None:
        super().__init__(str(errors))
        self.errors = errors


@dataclass(frozen=True, slots=True)
class ListQuery:
    """Parameters of a list request; time bounds in microseconds, both inclusive."""

    reference: str | None = None
    find: str | None = None
    closed: int | None = None
    active_from: int | None = None
    active_to: int | None = None
    updated_start: int | None = None
    updated_end: int | None = None
    limit: int = DEFAULT_LIMIT
    page: int = 1
    includes: frozenset[str] = frozenset()
    fields: dict[int, str] = field(default_factory=dict)
    lang: str | None = None

    @property
    def has_filters(self) -> bool:
        """Whether there are filters other than window and reference."""
        return (self.closed, self.find, self.active_from, self.active_to, self.fields) != (None, None, None, None, {})


@dataclass(frozen=True, slots=True)
class Page:
    """Page of a list: its files, the count of all matches, and the page size."""

    records: list[FileRecord]
    total: int
    limit: int
    number: int

    @property
    def last_page(self) -> int:
        """Number of the last page; 1 for an empty list."""
        return max(1, -(-self.total // self.limit))


def parse_query(args: MultiMapping[str], quirks: Quirks) -> ListQuery:
    """Parse the parameters of GET /files; unknown ones are ignored. Raise UnprocessableError for an invalid value."""
    includes = frozenset(args.getall("include[]", [])) | frozenset(args.getall("include", []))
    if includes - ALL_INCLUDES:
        raise UnprocessableError(include=f"unknown include {min(includes - ALL_INCLUDES)!r}")
    closed = args.get("closed")
    if closed not in {None, "0", "1"}:
        raise UnprocessableError(closed="must be 0 or 1")
    if args.get("format", "json") != "json":
        raise UnprocessableError(format="must be json")
    fields = {}
    for name, value in args.items():
        if name.startswith("field_id[") and name.endswith("]"):
            fields[_parse_whole_number(name[9:-1], "field_id")] = value
    start = _parse_time(args, "updated_start")
    end = _parse_time(args, "updated_end", end_of_day=True)
    if quirks.windows == "ignored":
        start = end = None
    if start is not None and quirks.start_bound == "exclusive":
        start += 1
    if end is not None and quirks.end_bound == "exclusive":
        end -= 1
    return ListQuery(
        reference=args.get("reference"),
        find=args.get("find"),
        closed=None if closed is None else int(closed),
        active_from=_parse_time(args, "startdate"),
        active_to=_parse_time(args, "enddate", end_of_day=True),
        updated_start=start,
        updated_end=end,
        limit=_parse_limit(args, includes, quirks),
        page=_parse_whole_number(args.get("page", "1"), "page", minimum=1),
        includes=includes,
        fields=fields,
        lang=None if quirks.lang_texts == "off" else args.get("lang"),
    )


def search(documents: DocumentRenderer, query: ListQuery, rng: random.Random) -> Page:
    """Return one page of the files that match the query, in the order of the quirks."""
    world, quirks = documents.world, documents.quirks
    if query.reference is None:
        entries = world.list_window(query.updated_start, query.updated_end)
    else:
        entries = _files_with_reference(documents, query)
    if query.has_filters:
        entries = [entry for entry in entries if _is_match(documents, world.records[entry[1]], query)]
    if (query.active_from is not None or query.active_to is not None) and world.instances:
        entries = _keep_newest_instances(entries, world.records)
    if quirks.repeats != "no":
        return _repeat_files(documents, entries, query)
    total, start = len(entries), (query.page - 1) * query.limit
    if quirks.order == "updated-desc":
        # The index is ascending: slicing from its end avoids sorting the whole list for one page.
        high = total - start
        chosen = entries[max(0, high - query.limit) : high][::-1] if high > 0 else []
    else:
        if quirks.order == "shuffled":
            rng.shuffle(entries)
        elif quirks.order != "updated-asc":
            entries.sort(key=lambda entry: entry[1], reverse=quirks.order == "id-desc")
        chosen = entries[start : start + query.limit]
    return Page([world.records[key] for _, key in chosen], total, query.limit, query.page)


def _repeat_files(documents: DocumentRenderer, entries: list[tuple[int, int]], query: ListQuery) -> Page:
    """Return a page, newest first, in which some files are twice in a row: the total counts them twice."""
    rows = [record for _, key in reversed(entries) for record in documents.world.list_versions(key)]
    start = (query.page - 1) * query.limit
    return Page(rows[start : start + query.limit], len(rows), query.limit, query.page)


def _files_with_reference(documents: DocumentRenderer, query: ListQuery) -> list[tuple[int, int]]:
    """Return the listed files of a reference in the window; the index by reference avoids a full scan."""
    world = documents.world
    world.apply_late_commits()
    low, high = query.updated_start or 1, query.updated_end
    files = (world.records[key] for key in world.by_reference.get(query.reference or "", ()))
    entries = ((record.listed, record.key) for record in files)
    return sorted(entry for entry in entries if low <= entry[0] and (high is None or entry[0] <= high))


def _is_match(documents: DocumentRenderer, record: FileRecord, query: ListQuery) -> bool:
    """Return whether a file passes the filters other than window and reference, cheap ones first."""
    return (
        query.closed in {None, record.closed}
        and (query.find is None or query.find.casefold() in record.scan_code.casefold())
        and (query.active_from is None or record.listed >= query.active_from)
        and (query.active_to is None or record.created <= query.active_to)
        and (not query.fields or _has_field_values(documents, record, query.fields))
    )


def _has_field_values(documents: DocumentRenderer, record: FileRecord, expected: dict[int, str]) -> bool:
    values = {(row["field_id"], row["value"]) for row in documents.get_content(record).fields}
    return values >= set(expected.items())


def _keep_newest_instances(entries: list[tuple[int, int]], records: dict[int, FileRecord]) -> list[tuple[int, int]]:
    """Keep one object per id: with a file date, the interface does not distinguish instances."""
    newest = {records[entry[1]].id: entry for entry in entries}
    return sorted(newest.values())


def _parse_limit(args: MultiMapping[str], includes: frozenset[str], quirks: Quirks) -> int:
    limit = _parse_whole_number(args.get("limit", str(DEFAULT_LIMIT)), "limit", minimum=1)
    if includes and limit > MAX_LIMIT_WITH_INCLUDES:
        raise UnprocessableError(limit=f"must not be greater than {MAX_LIMIT_WITH_INCLUDES} with include[]")
    if limit > MAX_LIMIT:
        raise UnprocessableError(limit=f"must not be greater than {MAX_LIMIT}")
    return min(limit, quirks.page_cap) if quirks.page_cap else limit


def _parse_whole_number(text: str, name: str, minimum: int = 0) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 18 or int(text) < minimum:
        raise UnprocessableError(**{name: f"must be a whole number from {minimum}"})
    return int(text)


def _parse_time(args: MultiMapping[str], name: str, *, end_of_day: bool = False) -> int | None:
    text = args.get(name)
    if text is None:
        return None
    try:
        return timestamps.parse_timestamp(text, end_of_day=end_of_day)
    except ValueError as error:
        raise UnprocessableError(**{name: str(error)}) from error


# The body


@dataclass(frozen=True, slots=True)
class RequestLocation:
    """Path and query of a list request, the origin of the service, and another origin for wrong links."""

    path_qs: str
    origin: str
    other: str

    def link(self, number: int, style: str) -> str | None:
        """Return the link to a page in a style of `Quirks.next_page_url`."""
        path, _, query = self.path_qs.partition("?")
        if style == "null":
            return None
        if style == "http-page-only":
            return f"http://{self.origin.partition('://')[2]}{path}?page={number}"
        pairs = [pair for pair in parse_qsl(query, keep_blank_values=True) if pair[0] not in {"page", "token"}]
        target = f"{path}?{urlencode([*pairs, ('page', str(number))])}"
        return {"relative": "", "other-host": self.other}.get(style, self.origin) + target


def render_list(page: Page, items: list[bytes], location: RequestLocation, quirks: Quirks) -> bytes:
    """Return the body of a list response with its rendered items."""
    data = b'{"data":[' + b",".join(items) + b"]"
    if quirks.paging == "bare":
        return data + b"}"
    keys = _build_keys(page, len(items), location, quirks)
    if quirks.paging == "none":
        keys = {name: keys[name] for name in keys if name == "next_page_url"}
    elif quirks.paging == "pages":
        keys = {name: keys[name] for name in ("current_page", "last_page", "per_page")}
    elif quirks.paging in {"meta", "pagination"}:
        keys = {quirks.paging: keys}
    elif quirks.paging == "links":
        keys["links"] = _build_links(page, location, quirks)
    return data + (b"," + msgspec.json.encode(keys)[1:] if keys else b"}")


def _build_keys(page: Page, item_count: int, location: RequestLocation, quirks: Quirks) -> dict[str, Any]:
    def link(number: int) -> str | None:
        return location.link(number, quirks.next_page_url) if 1 <= number <= page.last_page else None

    first = (page.number - 1) * page.limit + 1
    keys: dict[str, Any] = {
        "current_page": page.number,
        "last_page": page.last_page,
        "per_page": str(page.limit) if quirks.per_page == "string" else page.limit,
        "total": page.total,
        "from": first if item_count else None,
        "to": first + item_count - 1 if item_count else None,
        "path": location.origin + location.path_qs.partition("?")[0],
        "first_page_url": link(1),
        "last_page_url": link(page.last_page),
        "next_page_url": link(page.number + 1),
        "prev_page_url": link(min(page.number - 1, page.last_page)),
    }
    if quirks.next_page_url == "absent":
        del keys["next_page_url"]
    return keys


def _build_links(page: Page, location: RequestLocation, quirks: Quirks) -> list[dict[str, Any]]:
    """Return the array of numbered links that some frameworks add to a page."""

    def build_entry(label: str, number: int) -> dict[str, Any]:
        url = location.link(number, quirks.next_page_url) if 1 <= number <= page.last_page else None
        return {"url": url, "label": label, "active": label == str(page.number)}

    near = range(max(1, page.number - 3), min(page.last_page, page.number + 3) + 1)
    middle = [build_entry(str(number), number) for number in near]
    return [build_entry("&laquo; Previous", page.number - 1), *middle, build_entry("Next &raquo;", page.number + 1)]
