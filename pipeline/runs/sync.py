"""A sync: everything the service holds and the lake does not, up to the horizon."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from pipeline.crawl.terms import SharedId
from pipeline.crawl.windows import EVERYTHING, Window, cover, gaps, horizon, uncover
from pipeline.lake.lake import Changes
from pipeline.runs.clients import make_client
from pipeline.runs.session import Session
from schemas.instants import as_datetime

if TYPE_CHECKING:
    from pipeline.lake.lake import Lake
    from pipeline.lake.records import SnapshotRecord
    from pipeline.progress import Progress
    from pipeline.settings import Settings


@dataclass(frozen=True, slots=True)
class Range:
    """What of update time a sync is to read, in seconds. Without bounds: what the lake does not hold yet."""

    since: int | None = None
    until: int | None = None
    full: bool = False

    @property
    def is_given(self) -> bool:
        """Whether the person named it."""
        return self.full or self.since is not None or self.until is not None


@dataclass(frozen=True, slots=True)
class Summary:
    """What a run did; the object that `--json` prints."""

    run_id: str
    horizon: str | None
    files_listed: int
    files_expanded: int
    files_skipped: int
    files_gone: int
    rejects: int
    requests: dict[str, int]
    retries: int
    seconds: float
    snapshot: int

    def as_json(self) -> dict[str, Any]:
        """As a plain dict."""
        return asdict(self)


async def sync(
    lake: Lake, settings: Settings, token: str, chosen: Range, progress: Progress, *, moved: bool = False
) -> Summary:
    """Bring the lake up to date. Raises a `ScanlakeError`; what was whole by then is committed and published."""
    async with make_client(settings, token, learned=lake.ledger.fact("learned_pace")) as client:
        session = Session(lake, settings, client, progress)
        async with session.running("sync", moved=moved):
            promise = await session.first_contact()
            windows = await session.on_thread(_plan, session, chosen)
            revisits = await session.on_thread(session.rejected_files)
            try:
                await session.crawl(windows, promise=promise, revisits=revisits)
            except SharedId:
                await session.begin_anew()
                windows = [EVERYTHING]
                await session.crawl(windows, promise=promise)
            record = await session.on_thread(_finish, session, windows, promise)
            return summarise(session, record)


def _plan(session: Session, chosen: Range) -> list[Window]:
    ledger = session.ledger
    coverage = ledger.coverage()
    last = ledger.fact("horizon")
    if last is not None and ledger.fact("look_back_due", default=False):
        # Late commits and skewed clocks: what came just before the last horizon is read once more.
        coverage = uncover(coverage, last - int(session.settings.look_back_seconds), None)
        ledger.set_coverage(coverage)
        ledger.set_fact("look_back_due", value=False)
    if chosen.full:
        return [EVERYTHING]
    if chosen.is_given:
        return [Window(chosen.since, chosen.until)]
    return gaps(coverage, None, None)


def _finish(session: Session, windows: list[Window], promise: int) -> SnapshotRecord:
    """Move the horizon over what was read whole, and publish."""
    promise = session.within_sight(promise)
    coverage = session.ledger.coverage()
    for window in windows:
        coverage = cover(coverage, window.start, promise if window.end is None else min(window.end, promise))
    for window in session.unproven:
        coverage = uncover(coverage, window.start, window.end)
    reached, before = horizon(coverage), session.ledger.fact("horizon")
    if reached is not None:
        session.ledger.set_fact("horizon", reached if before is None or session.unproven else max(before, reached))
        session.ledger.set_fact("look_back_due", value=True)
    if session.ledger.fact("verify_from") is None:
        session.ledger.set_fact("verify_from", session.now_us())
    session.commit(Changes(coverage=coverage))
    return session.close("done")


def summarise(session: Session, record: SnapshotRecord) -> Summary:
    """What the run did, told from its facts."""
    counts, facts = session.client.counts, session.facts("done", None)
    names = ("files_listed", "files_expanded", "files_skipped", "files_gone", "rejects", "retries", "seconds")
    return Summary(
        run_id=session.run_id,
        horizon=None if record.horizon is None else f"{as_datetime(record.horizon):%Y-%m-%dT%H:%M:%SZ}",
        requests={"list": counts.list, "detail": counts.detail, "total": counts.requests},
        snapshot=record.snapshot,
        **{name: facts[name] for name in names},
    )
