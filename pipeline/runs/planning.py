"""A plan: what a sync would ask for and bring, told from one cheap look at the list. Nothing is changed by it.

A list of a few thousand files is read whole, without includes; of a longer one some pages, spread over it. The
windows are then cut as the crawl would cut them.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from pipeline.crawl.terms import Terms
from pipeline.crawl.windows import EVERYTHING, Window, cut, gaps, uncover
from pipeline.lake.files import Layout
from pipeline.runs.clients import make_client
from pipeline.runs.looking import looked_at
from pipeline.runs.sampling import NOTHING, Weight, weigh_lake, weigh_sample
from pipeline.runs.session import local_us
from pipeline.wording import many
from schemas.instants import DAY, SECOND
from schemas.requests import FileQuery

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pipeline.runs.looking import Look
    from pipeline.service.client import Client
    from pipeline.service.protocol import ListItem, ListPage
    from pipeline.settings import Settings

_PAGES: Final = 20  # of the cheap list: 5,000 files are read whole, of more only so many pages
_ITEM_PAGES: Final = 4  # with includes, for what files weigh
_CATALOG_BYTES: Final = (1_310_720, 2_371_584, 262_144)  # of an empty lake's, of a new one's, and by what it grows
_LEDGER_BYTES: Final = (160_000, 172)  # once, and a file
_VERIFY_PAGE: Final = 225
_TELLING: Final = 50  # calls of a run from which on its pace says something


@dataclass(frozen=True, slots=True)
class Pace:
    """Calls a second, None where nothing tells; and what they are told from."""

    calls_per_second: float | None
    basis: str


@dataclass(frozen=True, slots=True)
class Disk:
    """Bytes that a sync adds."""

    parts: int
    catalogs: int
    ledger: int

    @property
    def total(self) -> int:
        """All of them."""
        return self.parts + self.catalogs + self.ledger


@dataclass(frozen=True, slots=True)
class Plan:
    """What a sync would do; the object that `--json` prints. `exact`: every stamp was seen, nothing scaled up."""

    kind: str
    files_there: int | None
    files_to_fetch: int
    list_calls: int
    detail_calls: int
    rows: int
    disk: Disk
    seconds: float | None
    pace: Pace
    weight: Weight
    exact: bool
    verify_calls: int
    asked: int
    notes: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """As a plain dict."""
        return asdict(self) | {
            "calls": {
                "list": self.list_calls,
                "detail": self.detail_calls,
                "total": self.list_calls + self.detail_calls,
            },
            "disk": asdict(self.disk) | {"total": self.disk.total},
        }


@dataclass(frozen=True, slots=True)
class Known:
    """What the lake tells a plan: where it stands, what its versions weigh, how fast its runs were."""

    windows: tuple[Window, ...] = (EVERYTHING,)
    first: bool = True
    identity: str = "id"
    weight: Weight | None = None
    pace: Pace | None = None
    owed: int = 0
    files: int = 0
    verify_due: bool = False
    catalog_bytes: int = _CATALOG_BYTES[1]


@dataclass(slots=True)
class Seen:
    """What the list has shown of one window: some of its files, and how many there are."""

    total: int
    items: list[ListItem] = field(default_factory=list)
    exact: bool = True
    pages: list[list[int]] = field(default_factory=list)  # stamps in seconds, page by page, where not all were read


async def plan(settings: Settings, token: str) -> Plan:
    """What a sync would do now. Raises a `ScanlakeError`."""
    layout = Layout(settings.lake.absolute())
    known = _known(layout, settings)
    terms = Terms(expand=settings.expand, includes=settings.includes, lang=settings.lang)
    terms = replace(terms, identity="file_id" if known.identity == "file_id" else "id")
    async with make_client(settings, token) as client:
        there = (await client.list(FileQuery(limit=1))).total
        return await _Planner(client, terms, settings, known).plan(layout, there)


def _known(layout: Layout, settings: Settings) -> Known:
    if not layout.ledger.exists():
        return Known()
    with looked_at(layout) as look:
        coverage = tuple((row["low"], row["high"]) for row in look.query("SELECT low, high FROM coverage ORDER BY low"))
        last = look.fact("horizon")
        if last is not None and look.fact("look_back_due", default=False):
            coverage = uncover(coverage, last - int(settings.look_back_seconds), None)
        verified = look.fact("last_verify_at", look.fact("verify_from"))
        every = settings.verify_every_days * DAY
        return Known(
            windows=tuple(gaps(coverage, None, None)),
            first=last is None,
            identity=look.fact("identity", "id"),
            weight=weigh_lake(look),
            pace=_learned(look),
            owed=look.number("SELECT count(*) FROM reject WHERE file_id IS NOT NULL")
            + look.number("SELECT count(*) FROM owed"),
            files=look.number("SELECT count(*) FROM file_version WHERE NOT deleted"),
            verify_due=bool(every and verified is not None and local_us() - verified >= every),
            catalog_bytes=layout.catalog.stat().st_size if layout.catalog.exists() else _CATALOG_BYTES[1],
        )


def _learned(look: Look) -> Pace | None:
    """The pace of the run with the most calls among the latest."""
    runs = look.query(
        "SELECT run_id, requests_list + requests_detail + retries AS calls, seconds FROM run"
        " WHERE seconds > 0 ORDER BY started_at DESC LIMIT 20"
    )
    telling = [run for run in runs if (run["calls"] or 0) >= _TELLING]
    if not telling:
        return None
    best = max(telling, key=lambda run: int(run["calls"]))
    return Pace(best["calls"] / best["seconds"], f"run {best['run_id']} had ({many(best['calls'], 'call')})")


class _Planner:
    """One look at the list, and what follows from it."""

    def __init__(self, client: Client, terms: Terms, settings: Settings, known: Known) -> None:
        self._client = client
        self._terms = terms
        self._settings = settings
        self._known = known
        self._notes: list[str] = []
        self._cap = terms.query().page_size  # files that a list with includes shows at once
        self._counted = True
        self._sample: list[ListItem] = []

    async def plan(self, layout: Layout, there: int | None) -> Plan:
        """The plan; `there` is what the service counts."""
        seen = [(window, await self._see(window)) for window in self._known.windows]
        files = sum([self._to_fetch(layout, each) for _, each in seen]) + self._known.owed
        weight = self._known.weight or await self._weigh(seen)
        lists = 1 + sum(self._calls(window, each) for window, each in seen) + self._known.owed
        lists += sum(self._sweep_calls(each) for window, each in seen if window.end is None)
        details = 0 if self._terms.expand == "never" else files
        pace = self._known.pace or self._measured(weight)
        seconds = (lists + details) / pace.calls_per_second if pace.calls_per_second else None
        return Plan(
            kind="first" if self._known.first else "incremental",
            files_there=there,
            files_to_fetch=files,
            list_calls=lists,
            detail_calls=details,
            rows=weight.rows_of(files),
            disk=self._disk(weight, files, seconds),
            seconds=None if seconds is None else round(seconds, 1),
            pace=pace,
            weight=weight,
            exact=all(each.exact for _, each in seen),
            verify_calls=2 + self._known.files // _VERIFY_PAGE if self._known.verify_due else 0,
            asked=self._client.counts.requests,
            notes=tuple(self._notes),
        )

    # The list

    async def _see(self, window: Window) -> Seen:
        query = self._terms.query(window, cheap=True)
        page = await self._client.list(query)
        seen = Seen(page.total if page.total is not None else len(page.items), list(page.items))
        self._counted = page.total is not None or page.last_page is not None
        if page.more is False or not page.items:
            return seen
        if page.total is None:
            return await self._walk(query, seen)
        size = len(page.items)
        last = -(-page.total // size)
        if last <= _PAGES:
            for number in range(2, last + 1):
                seen.items += (await self._client.list(query, page=number)).items
            return seen
        seen.exact = False
        seen.pages.append(_stamps(page.items))
        for number in sorted({2 + (last - 2) * step // (_PAGES - 1) for step in range(_PAGES)}):
            found = await self._client.list(query, page=number)
            seen.items += found.items
            seen.pages.append(_stamps(found.items))
        self._notes.append(f"{len(seen.items):,} of {many(seen.total, 'file')} were looked at; the rest is scaled up.")
        return seen

    async def _walk(self, query: FileQuery, seen: Seen) -> Seen:
        """A list that is not counted has to be read to its end, or as far as a plan may go."""
        for number in range(2, _PAGES + 1):
            page: ListPage = await self._client.list(query, page=number)
            seen.items += page.items
            if page.more is False or not page.items:
                seen.total = len(seen.items)
                return seen
        seen.total, seen.exact = len(seen.items), False
        self._notes.append(f"The service does not count its files: there are at least {seen.total:,}.")
        return seen

    def _to_fetch(self, layout: Layout, seen: Seen) -> int:
        """How many of a window's files the lake does not hold in this version."""
        if self._terms.expand == "always" or not self._known.files or not seen.items:
            return seen.total
        keyed = {self._key(item): item for item in seen.items if item.id is not None}
        with looked_at(layout) as look:
            held = look.states([key for key in keyed if key is not None])
        new = 0
        for key, item in keyed.items():
            state = held.get(key or 0)
            same = state is not None and not state["deleted"] and state["updated_at"] == item.updated
            new += not (same and state is not None and state["settled"] and state["shape"] == self._terms.shape)
        return round(new * seen.total / len(seen.items))

    def _key(self, item: ListItem) -> int | None:
        by_instance = self._terms.identity == "file_id" and item.instance is not None
        return item.instance if by_instance else item.id

    # What it costs

    def _calls(self, window: Window, seen: Seen) -> int:
        """List calls of a window: one when it fits, else the first page, the sketch, and the windows it is cut into."""
        limit = self._cap if self._counted else self._cap - 1
        if seen.total <= limit:
            return 1
        sketch = -(-seen.total // self._terms.query(cheap=True).page_size)
        if not seen.pages:
            return 1 + sketch + self._cut_calls(cut(window, sorted(_stamps(seen.items)), limit), _stamps(seen.items))
        spans = [sorted(page) for page in seen.pages if len(page) > limit]
        calls = files = 0
        for page in spans if _in_order(spans) else []:
            # The last window of a page is cut off by the page's end, not by its files.
            *whole, rest = cut(Window(page[0], page[-1] + 1), page, limit)
            calls += self._cut_calls(whole, page)
            files += sum(stamp < (rest.start or 0) for stamp in page)
        share = calls / files if files else 1.02 / limit
        return 1 + sketch + round(seen.total * share)

    def _sweep_calls(self, seen: Seen) -> int:
        """The newest window is read once more at the end, for what moved meanwhile."""
        if seen.total <= self._cap:
            return 0
        now = (self._client.clock.now() or local_us()) // SECOND
        promise = Window(now - int(self._settings.settle_seconds), None)
        late = [item for item in seen.items if item.updated is not None and promise.holds(item.updated // SECOND)]
        return self._calls(promise, Seen(len(late), late))

    def _cut_calls(self, tiles: Sequence[Window], stamps: Sequence[int]) -> int:
        """One call a window; a crowded one is paged, and read once more without includes."""
        calls = 0
        for tile in tiles:
            if tile.crowded:
                inside = sum(tile.holds(stamp) for stamp in stamps)
                calls += -(-inside // self._cap) + -(-inside // self._terms.query(cheap=True).page_size)
            else:
                calls += 1
        return calls

    async def _weigh(self, seen: Sequence[tuple[Window, Seen]]) -> Weight:
        """A sample, bounded: a few pages with includes, and some details."""
        window, most = max(seen, key=lambda each: each[1].total)
        if not most.total:
            return NOTHING
        query = self._terms.query(window)
        pages = max(1, -(-most.total // self._cap))
        listed: list[ListItem] = []
        for number in sorted({1 + (pages - 1) * step // (_ITEM_PAGES - 1) for step in range(_ITEM_PAGES)}):
            page = await self._client.list(query, page=number)
            if number == 1 and page.more:
                self._cap = min(self._cap, len(page.items))
            listed += page.items
        return await weigh_sample(self._client, self._terms, listed, at=local_us())

    def _measured(self, weight: Weight) -> Pace:
        """How fast the sample came: a few calls at once, so a sync is faster unless the service limits it."""
        if weight.details_a_second is None or weight.files < _TELLING:
            return Pace(None, "nothing is learned yet")
        self._notes.append(
            "No run has shown the pace yet: the time is that of a few calls at once, without the work of writing."
        )
        return Pace(weight.details_a_second, "the sample came")

    def _disk(self, weight: Weight, files: int, seconds: float | None) -> Disk:
        settings, first = self._settings, self._known.first
        by_time = int((seconds or 0) / settings.commit_seconds)
        commits = max(-(-files // settings.commit_files), min(by_time, files)) if files else 0
        published = int((seconds or 0) / settings.publish_every_seconds)
        empty, _, growth = _CATALOG_BYTES
        catalogs = (1 + published) * self._known.catalog_bytes
        # A new lake begins with an empty snapshot; the newest stands twice, as a snapshot and as the catalog.
        catalogs += empty + self._known.catalog_bytes if first and not self._known.files else growth * bool(files)
        once, each = _LEDGER_BYTES
        ledger = each * (max(0, files - self._known.files) if not first else files)
        return Disk(
            parts=weight.bytes_of(files, commits),
            catalogs=catalogs,
            ledger=ledger + (once if first and not self._known.files else 0),
        )


def _in_order(pages: Sequence[Sequence[int]]) -> bool:
    """Whether sorted pages of stamps lie one behind the other, as in a list that is sorted by them."""
    covered = sum(page[-1] - page[0] for page in pages)
    return bool(pages) and covered <= max(page[-1] for page in pages) - min(page[0] for page in pages)


def _stamps(items: Sequence[ListItem]) -> list[int]:
    return [item.updated // SECOND for item in items if item.updated is not None]
