"""A verify: the lake held against the whole list, healed, and the proof of it written down.

Incremental lists never show a deletion. A verify walks the whole list cheaply (no includes, limit 250, windows
cut at the stamps the lake knows), compares ids and stamps, and heals what differs. It proves ids and stamps;
`deep` re-reads details as well.
"""

from __future__ import annotations

import asyncio
import json
from array import array
from bisect import bisect_left
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import structlog

from pipeline.crawl.expansion import answer_for, reference_of
from pipeline.crawl.terms import Known, Revisit, SharedId, Terms
from pipeline.crawl.windows import EVERYTHING, Window, cut
from pipeline.errors import ContractBroken, ScanlakeError, SettingsError
from pipeline.lake.lake import Changes
from pipeline.lake.lookups import details
from pipeline.lake.records import Verification
from pipeline.runs.clients import make_client
from pipeline.runs.session import Session, local_us
from pipeline.service.faults import RequestFailed
from pipeline.service.protocol import Detail, Gone
from schemas.instants import DAY, SECOND
from schemas.requests import MAX_LIMIT
from schemas.versions import Tombstone, say_the_same

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pipeline.crawl.terms import Batch
    from pipeline.lake.lake import Lake
    from pipeline.lake.records import SnapshotRecord
    from pipeline.progress import Progress
    from pipeline.settings import Settings

_log = structlog.get_logger()

_ROOM: Final = MAX_LIMIT * 9 // 10  # files of a window as the lake knows it; the rest is for those it does not
_AT_ONCE: Final = 256  # files asked for by id side by side; the pacer decides how many really are
_GONE_FLOOR: Final = 50
_GONE_SHARE: Final = 20  # one in
_NAMED: Final = 1_000  # ids of each kind that the record names
_NEAR: Final = 3  # seconds between two stamps that are healed by one window
_SHARES: Final = 1_000  # a rotating share is so many thousandths


@dataclass(frozen=True, slots=True)
class Mode:
    """What a verify may do. `deep` is the share of files whose details are read again, 0 to 1."""

    check_only: bool = False
    accept_deletions: bool = False
    deep: float = 0.0

    @property
    def name(self) -> str:
        """As it stands in the record."""
        return ("check" if self.check_only else "heal") + (f", deep {self.deep:g}" if self.deep else "")


@dataclass(frozen=True, slots=True)
class Proof:
    """What a verify found and did; the object that `--json` prints."""

    verification: Verification
    requests: dict[str, int]
    seconds: float
    snapshot: int | None

    @property
    def equal(self) -> bool:
        """Whether lake and service agree (after healing, unless it only checked)."""
        return self.verification.equal

    def as_json(self) -> dict[str, Any]:
        """As a plain dict."""
        found = asdict(self.verification)
        return {
            **found,
            "ids": json.loads(found["ids"]),
            "requests": self.requests,
            "seconds": self.seconds,
            "snapshot": self.snapshot,
        }


@dataclass(slots=True)
class Differences:
    """Files that differ, by id; stamps in microseconds."""

    missing: dict[int, int | None] = field(default_factory=dict)
    stale: dict[int, int | None] = field(default_factory=dict)
    gone: dict[int, str] = field(default_factory=dict)
    unlisted: list[int] = field(default_factory=list)
    moving: dict[int, int | None] = field(default_factory=dict)
    deep: list[Revisit] = field(default_factory=list)
    deep_checked: int = 0

    def ids(self) -> str:
        """The ids that differ, as JSON: the first of each kind."""
        kinds = {
            "missing": list(self.missing),
            "stale": list(self.stale),
            "gone": list(self.gone),
            "unlisted": self.unlisted,
            "moving": list(self.moving),
            "deep": [revisit.file_id for revisit in self.deep],
        }
        return json.dumps({kind: found[:_NAMED] for kind, found in kinds.items()})


class Census:
    """Which of the lake's files the list has shown. Nine bytes a file."""

    def __init__(self, live: Iterable[int]) -> None:
        """`live` are the ids that the lake holds, sorted."""
        self._ids = array("q", live)
        self._seen = bytearray(len(self._ids))
        self.there = 0

    def __len__(self) -> int:
        return len(self._ids)

    def see(self, file_id: int) -> None:
        """Take note of a file that the list shows."""
        place = bisect_left(self._ids, file_id)
        if place < len(self._ids) and self._ids[place] == file_id and not self._seen[place]:
            self._seen[place] = 1
            self.there += 1

    def absent(self) -> list[int]:
        """The lake's files that the list has not shown."""
        return [file_id for file_id, seen in zip(self._ids, self._seen, strict=True) if not seen]


async def verify(lake: Lake, settings: Settings, token: str, mode: Mode, progress: Progress) -> Proof:
    """Hold the lake against the service. Raises a `ScanlakeError`; what was healed by then is published."""
    if mode.deep and settings.expand == "never":
        raise SettingsError(
            'a deep verify compares details, and expand = "never" fetches none',
            remedy="Verify without --deep, or change expand.",
        )
    async with make_client(settings, token, learned=lake.ledger.fact("learned_pace")) as client:
        session = Session(lake, settings, client, progress)
        async with session.running("verify"):
            if session.horizon_us() is None:
                raise SettingsError("the lake is not synced yet", remedy="Run `scanlake sync` first.")
            return await _Verify(session, mode).run()


def is_due(lake: Lake, settings: Settings) -> bool:
    """Whether the last verify, or the first sync, is longer ago than syncs should go without one."""
    last = lake.ledger.fact("last_verify_at") or lake.ledger.fact("verify_from")
    days = settings.verify_every_days
    return bool(days) and last is not None and local_us() - last >= days * DAY


class _Verify:
    """One verify, step by step."""

    def __init__(self, session: Session, mode: Mode) -> None:
        self._session = session
        self._mode = mode
        self._found = Differences()
        self._promise = 0
        self._new: set[int] = set()

    async def run(self) -> Proof:
        session = self._session
        self._promise = await session.first_contact()
        census = await self._compare()
        unproven = list(session.unproven)
        await self._look_for_the_gone(census, unproven)
        if self._mode.deep:
            await self._compare_details()
        here = len(census)
        if not self._mode.check_only:
            await self._heal()
            here = sum(1 for _ in session.ledger.live_files())
        there = census.there + len(self._new)
        return await session.on_thread(self._conclude, here, there, len(unproven))

    # Comparing

    async def _compare(self) -> Census:
        """Walk the whole list without includes, and note what differs."""
        session, ledger = self._session, self._session.ledger
        live = await session.on_thread(lambda: list(ledger.live_files()))
        census = Census(file_id for file_id, _ in live)
        stamps = sorted(stamp // SECOND for _, stamp in live if stamp is not None)
        windows = cut(EVERYTHING, stamps, _ROOM)
        terms = replace(session.terms(), expand="never", includes=(), stamps_only=True, max_rejects=None)

        def lookup(file_ids: Sequence[int]) -> dict[int, Known]:
            for file_id in file_ids:
                census.see(file_id)
            return session.known(file_ids)

        try:
            await session.walk(windows, self._note, lookup, promise=self._promise, terms=terms)
        except SharedId:
            raise ScanlakeError(
                "several files share one id, which the lake does not know yet", remedy="Run `scanlake sync --full`."
            ) from None
        return census

    async def _note(self, batch: Batch) -> None:
        """A list item whose stamp the lake does not hold: missing here, stale here, or still moving."""
        limit = self._limit_us()
        states = self._session.lake.states([version.file_id for version in batch.versions])
        for version in batch.versions:
            state = states.get(version.file_id)
            new = state is None or state.deleted
            if new:
                self._new.add(version.file_id)
            kind = self._found.missing if new else self._found.stale
            if version.updated_at is None and kind is self._found.stale:
                continue  # no stamp, nothing to compare
            if version.updated_at is not None and version.updated_at >= limit:
                self._found.moving[version.file_id] = version.updated_at
            else:
                kind[version.file_id] = version.updated_at

    def _limit_us(self) -> int:
        """From here on differences are not to be wondered at: the lake's own horizon when it is only checked."""
        horizon = self._session.horizon_us()
        promise = self._promise * SECOND
        return min(horizon, promise) if self._mode.check_only and horizon is not None else promise

    async def _look_for_the_gone(self, census: Census, unproven: list[Window]) -> None:
        """A file is gone when the complete list does not show it and its id is not known either."""
        absent = census.absent()
        if unproven:
            # A list that could not be proven complete witnesses nothing in those windows.
            states = self._session.lake.states
            doubtful = {
                file_id
                for start in range(0, len(absent), _AT_ONCE)
                for file_id, state in states(absent[start : start + _AT_ONCE]).items()
                if state.updated_at is None or any(w.holds(state.updated_at // SECOND) for w in unproven)
            }
            absent = [file_id for file_id in absent if file_id not in doubtful]
        most = max(_GONE_FLOOR, len(census) // _GONE_SHARE)
        for start in range(0, len(absent), _AT_ONCE):
            chunk = absent[start : start + _AT_ONCE]
            for file_id, answer in zip(chunk, await self._ask(chunk), strict=True):
                if isinstance(answer, Gone):
                    self._found.gone[file_id] = answer.witness
                else:
                    self._found.unlisted.append(file_id)
            if self._is_too_many(len(self._found.gone), len(census), most):
                raise ContractBroken(
                    f"{len(absent):,} of {len(census):,} files are in the list no more; that many at once is suspect",
                    remedy="Nothing was removed. If they are really deleted: `scanlake verify --accept-deletions`.",
                )

    def _is_too_many(self, gone: int, held: int, most: int) -> bool:
        return not self._mode.accept_deletions and (gone > most or gone == held > 1)

    async def _ask(self, file_ids: Sequence[int]) -> list[Detail | Gone | None]:
        """Files by id, side by side; None where the service failed every try."""
        lang, identity = self._session.settings.lang, self._session.ledger.fact("identity", "id")

        async def one(file_id: int) -> Detail | Gone | None:
            try:
                return answer_for(file_id, identity, await self._session.client.get(file_id, lang=lang))
            except RequestFailed:
                return None

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(file_id)) for file_id in file_ids]
        return [task.result() for task in tasks]

    async def _compare_details(self) -> None:
        """Read the details of a share of the files again, and compare what they say; the share rotates."""
        session, ledger = self._session, self._session.ledger
        low = int(ledger.fact("deep_position", 0)) if self._mode.deep < 1 else 0
        high = low + max(1, round(self._mode.deep * _SHARES))
        chosen = [
            (file_id, seq)
            for file_id, seq in await session.on_thread(ledger.live_seqs)
            if low <= file_id % _SHARES < high or file_id % _SHARES < high - _SHARES
        ]
        for start in range(0, len(chosen), _AT_ONCE):
            chunk = {key: seq for key, seq in chosen[start : start + _AT_ONCE] if key not in self._found.gone}
            held = await session.on_thread(details, session.lake.layout, ledger, chunk)
            for file_id, answer in zip(chunk, await self._ask(list(chunk)), strict=True):
                self._found.deep_checked += isinstance(answer, Detail)
                if isinstance(answer, Detail) and not say_the_same(held.get(file_id) or b"", answer.raw):
                    self._found.deep.append(Revisit(file_id, reference_of(answer.raw), answer.updated))
        if not self._mode.check_only:
            await session.on_thread(ledger.set_fact, "deep_position", high % _SHARES)

    # Healing

    async def _heal(self) -> None:
        session, found = self._session, self._found
        if found.gone:
            at = session.now_us()
            tombstones = [
                Tombstone(file_id, at, f"absent from the complete list, and gone by id ({witness})")
                for file_id, witness in sorted(found.gone.items())
            ]
            await session.on_thread(lambda: session.commit(Changes(tombstones=tombstones)))
            session.tally.gone += len(tombstones)
        windows = _around([*found.missing.values(), *found.stale.values(), *found.moving.values()], session)
        revisits = [*await session.on_thread(session.rejected_files), *found.deep]
        if windows or revisits:
            await session.crawl(windows, promise=self._promise, revisits=revisits)

    # Concluding

    def _conclude(self, here: int, there: int, unproven: int) -> Proof:
        session, found = self._session, self._found
        differs = bool(found.missing or found.stale or found.gone or found.deep)
        left = self._left_over() if not self._mode.check_only else []
        verification = Verification(
            run_id=session.run_id,
            verified_at=session.now_us(),
            mode=self._mode.name,
            equal=not left and not unproven and not (self._mode.check_only and differs),
            horizon=session.horizon_us(),
            files_there=there,
            files_here=here,
            missing=len(found.missing),
            stale=len(found.stale),
            gone=len(found.gone),
            unlisted=len(found.unlisted),
            moving=len(found.moving),
            deep_checked=found.deep_checked,
            deep_different=len(found.deep),
            unproven=unproven,
            ids=found.ids(),
        )
        session.ledger.record_verification(verification)
        session.commit(Changes())  # so that a kill before the publish leaves the ledger ahead, and the proof is shown
        record = session.close("done")
        return self._proof(verification, record)

    def _left_over(self) -> list[int]:
        """Files that differed and were not healed."""
        found = self._found
        wanted = {**found.missing, **found.stale}
        states = {
            file_id: state
            for start in range(0, len(wanted), _AT_ONCE)
            for file_id, state in self._session.lake.states(list(wanted)[start : start + _AT_ONCE]).items()
        }
        return [
            file_id
            for file_id, stamp in wanted.items()
            if file_id not in states or states[file_id].deleted or (states[file_id].updated_at or 0) < (stamp or 0)
        ]

    def _proof(self, verification: Verification, record: SnapshotRecord) -> Proof:
        counts, facts = self._session.client.counts, self._session.facts("done", None)
        _log.info("verify.done", equal=verification.equal, there=verification.files_there)
        requests = {"list": counts.list, "detail": counts.detail, "total": counts.requests}
        return Proof(verification, requests, facts["seconds"], record.snapshot)


def _around(stamps: Sequence[int | None], session: Session) -> list[Window]:
    """Windows that show the files with these stamps; everything where that is cheaper, or a stamp is missing."""
    if not stamps:
        return []
    if any(stamp is None for stamp in stamps):
        return [EVERYTHING]
    windows: list[Window] = []
    for second in sorted({stamp // SECOND for stamp in stamps if stamp is not None}):
        last = windows[-1] if windows else None
        if last is not None and last.end is not None and second - last.end <= _NEAR:
            windows[-1] = Window(last.start, second + 1)
        else:
            windows.append(Window(second, second + 1))
    limit = Terms(includes=session.settings.includes).query().page_size
    held = sum(1 for _ in session.ledger.live_files())
    return windows if len(windows) <= 1 + (held + len(stamps)) // limit else [EVERYTHING]
