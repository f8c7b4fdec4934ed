"""What GET /files asks for, and which files that is."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from multidict import MultiMapping

from pipeline.emulator import stamps
from pipeline.emulator.documents import ALL_INCLUDES, Documents
from pipeline.emulator.growth import FileRecord
from pipeline.emulator.options import Quirks

DEFAULT_LIMIT = 50
MAX_LIMIT = 250
MAX_LIMIT_WITH_INCLUDES = 50


class Unprocessable(Exception):
    """A parameter breaks a rule of the interface; `errors` maps parameters to what is wrong with them."""

    def __init__(self, **errors: str) -> None:
        super().__init__(str(errors))
        self.errors = errors


@dataclass(frozen=True, slots=True)
class ListQuery:
    """One request for a list; bounds are moments, both inclusive."""

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


@dataclass(frozen=True, slots=True)
class Page:
    """One page of a list: its files, how many files match, and how many a page holds."""

    records: list[FileRecord]
    total: int
    limit: int
    number: int

    @property
    def last(self) -> int:
        """The number of the last page; 1 for an empty list."""
        return max(1, -(-self.total // self.limit))


def read_query(args: MultiMapping[str], quirks: Quirks) -> ListQuery:
    """Read the parameters of GET /files, ignoring unknown ones; Unprocessable for what is forbidden."""
    includes = frozenset(args.getall("include[]", [])) | frozenset(args.getall("include", []))
    if includes - ALL_INCLUDES:
        raise Unprocessable(include=f"unknown include {min(includes - ALL_INCLUDES)!r}")
    closed = args.get("closed")
    if closed not in {None, "0", "1"}:
        raise Unprocessable(closed="must be 0 or 1")
    if args.get("format", "json") != "json":
        raise Unprocessable(format="must be json")
    fields = {}
    for name, value in args.items():
        if name.startswith("field_id[") and name.endswith("]"):
            fields[_whole(name[9:-1], "field_id")] = value
    start = _moment(args, "updated_start")
    end = _moment(args, "updated_end", end_of_day=True)
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
        active_from=_moment(args, "startdate"),
        active_to=_moment(args, "enddate", end_of_day=True),
        updated_start=start,
        updated_end=end,
        limit=_limit(args, includes, quirks),
        page=_whole(args.get("page", "1"), "page", least=1),
        includes=includes,
        fields=fields,
        lang=None if quirks.lang_texts == "off" else args.get("lang"),
    )


def search(documents: Documents, query: ListQuery, rng: random.Random) -> Page:
    """Return the page of files a query asks for, in the order the quirks say."""
    world, quirks = documents.world, documents.quirks
    if query.reference is None:
        entries = world.window(query.updated_start, query.updated_end)
    else:
        entries = _bearers(documents, query)
    for test in _tests(documents, query):
        entries = [entry for entry in entries if test(world.records[entry[1]])]
    if (query.active_from is not None or query.active_to is not None) and world.instances:
        entries = _newest_instances(entries, world.records)
    total, start = len(entries), (query.page - 1) * query.limit
    if quirks.order == "updated-desc":
        # The last entries come first; slicing from the end spares sorting the whole list for a page.
        high = total - start
        chosen = entries[max(0, high - query.limit) : high][::-1] if high > 0 else []
    else:
        if quirks.order == "shuffled":
            rng.shuffle(entries)
        elif quirks.order != "updated-asc":
            entries.sort(key=lambda entry: entry[1], reverse=quirks.order == "id-desc")
        chosen = entries[start : start + query.limit]
    return Page([world.records[key] for _, key in chosen], total, query.limit, query.page)


def _bearers(documents: Documents, query: ListQuery) -> list[tuple[int, int]]:
    """Return the listed files with the reference in the window: from the few that bear it, not from all."""
    world = documents.world
    world.settle()
    low, high = query.updated_start or 1, query.updated_end
    files = (world.records[key] for key in world.by_reference.get(query.reference or "", ()))
    stamps_ = ((record.listed, record.key) for record in files)
    return sorted(entry for entry in stamps_ if low <= entry[0] and (high is None or entry[0] <= high))


def _tests(documents: Documents, query: ListQuery) -> list[Callable[[FileRecord], bool]]:
    """Return the conditions beyond window and reference, cheap ones first."""
    tests: list[Callable[[FileRecord], bool]] = []
    if query.closed is not None:
        tests.append(lambda record: record.closed == query.closed)
    if query.find is not None:
        part = query.find.casefold()
        tests.append(lambda record: part in record.scan_code.casefold())
    if query.active_from is not None:
        since = query.active_from
        tests.append(lambda record: record.listed >= since)
    if query.active_to is not None:
        until = query.active_to
        tests.append(lambda record: record.created <= until)
    if query.fields:
        tests.append(lambda record: _bears(documents, record, query.fields))
    return tests


def _bears(documents: Documents, record: FileRecord, wanted: dict[int, str]) -> bool:
    shown = {(row["field_id"], row["value"]) for row in documents.content(record).fields}
    return shown >= set(wanted.items())


def _newest_instances(entries: list[tuple[int, int]], records: dict[int, FileRecord]) -> list[tuple[int, int]]:
    """Keep one object an id: with a file date given, the interface tells no instances apart."""
    newest = {records[entry[1]].id: entry for entry in entries}
    return sorted(newest.values())


def _limit(args: MultiMapping[str], includes: frozenset[str], quirks: Quirks) -> int:
    limit = _whole(args.get("limit", str(DEFAULT_LIMIT)), "limit", least=1)
    if includes and limit > MAX_LIMIT_WITH_INCLUDES:
        raise Unprocessable(limit=f"must not be greater than {MAX_LIMIT_WITH_INCLUDES} with include[]")
    if limit > MAX_LIMIT:
        if quirks.limit_over_max == "422":
            raise Unprocessable(limit=f"must not be greater than {MAX_LIMIT}")
        limit = MAX_LIMIT
    return min(limit, quirks.page_cap) if quirks.page_cap else limit


def _whole(text: str, name: str, least: int = 0) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 18 or int(text) < least:
        raise Unprocessable(**{name: f"must be a whole number from {least}"})
    return int(text)


def _moment(args: MultiMapping[str], name: str, *, end_of_day: bool = False) -> int | None:
    text = args.get(name)
    if text is None:
        return None
    try:
        return stamps.read(text, end_of_day=end_of_day)
    except ValueError as error:
        raise Unprocessable(**{name: str(error)}) from error
