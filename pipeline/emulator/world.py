"""The files: a deterministic population that can change while it is served."""

import heapq
import random
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Iterator

from pipeline.emulator.growth import EDIT_KINDS, Edit, EditKind, FileRecord
from pipeline.emulator.options import Quirks, WorldPlan
from pipeline.emulator.stamps import DAY, SECOND, Clock

_STEP = {"seconds": SECOND, "millis": 1000, "micros": 1}
_TOP = 1 << 80
_ORDINARY: tuple[EditKind, ...] = tuple(kind for kind in EDIT_KINDS if kind not in {"touch", "clear"})


class World:
    """All files, an index of what lists show, and every way to change them.

    Deterministic: the same plan, clock and sequence of calls give the same world. Keys are ids, or `file_id`s
    where several instances share an id. Operations take keys and return the keys they changed; a key that
    names no file raises KeyError.
    """

    def __init__(self, plan: WorldPlan, quirks: Quirks) -> None:
        self.plan = plan
        self.quirks = quirks
        self.clock = Clock(plan.now)
        self.born = self.clock.now()
        self.records: dict[int, FileRecord] = {}
        self.deleted: dict[int, FileRecord] = {}
        self.index: list[tuple[int, int]] = []
        self.by_reference: dict[str, list[int]] = {}
        self.instances: dict[int, list[int]] = {}
        self.changes = 0
        self._late: list[tuple[int, int]] = []
        self._order: list[int] = []
        self._rng = random.Random(f"world:{plan.seed}")
        self._serial = 0
        self._populate()

    # Looking things up.

    def find(self, key: int) -> FileRecord | None:
        """Return the file a detail call means: an instance by its file_id, by a shared id the newest one."""
        if key in self.instances:
            siblings = (self.records[one] for one in self.instances[key] if one in self.records)
            return max(siblings, key=lambda record: (record.updated, record.key), default=None)
        return self.records.get(key)

    def window(self, start: int | None, end: int | None) -> list[tuple[int, int]]:
        """Return (listed stamp, key) of the files a list shows, start and end inclusive, oldest first."""
        self.settle()
        low = 0 if start is None else bisect_left(self.index, (start, -_TOP))
        high = len(self.index) if end is None else bisect_right(self.index, (end, _TOP))
        return self.index[low:high]

    def settle(self) -> None:
        """Let changes show in the list whose late commit is due."""
        if self._late:
            now = self.clock.now()
            while self._late and self._late[0][0] <= now:
                self._list(heapq.heappop(self._late)[1])

    def keys(self) -> list[int]:
        """Return the keys of all files, in order of creation."""
        return list(self.records)

    def some(self, count: int) -> list[int]:
        """Choose `count` different files by the world's own dice."""
        # Choosing by position avoids a copy of all keys for every change.
        if count * 4 > len(self.records):
            return self._rng.sample(self.keys(), min(count, len(self.records)))
        chosen: dict[int, None] = {}
        while len(chosen) < count:
            key = self._order[int(self._rng.random() * len(self._order))]
            if key in self.records:
                chosen[key] = None
        return list(chosen)

    # Changing things. Every change stamps the file with the clock's now.

    def create(self, count: int = 1, *, scan_code: str | None = None, at: int | None = None) -> list[int]:
        """Add new files, created and updated now or at a given moment."""
        moment = self._now() if at is None else self._round(at)
        return [self._add(moment, moment, scan_code).key for _ in range(count)]

    def edit(self, key: int, kind: EditKind, *, at: int | None = None) -> int:
        """Change one file in a given way (see `growth.EditKind`) and stamp it."""
        record = self.records[key]
        moment = self._now() if at is None else self._round(at)
        record.edits = (*record.edits, Edit(kind, self._rng.randrange(1 << 40), moment))
        self._stamp(record, moment)
        return key

    def update(self, keys: Iterable[int]) -> list[int]:
        """Change something in each file, drawn by the world's dice."""
        return [self.edit(key, self._rng.choice(_ORDINARY)) for key in keys]

    def touch(self, keys: Iterable[int], at: int | None = None) -> list[int]:
        """Stamp files without changing anything else; `at` may lie in the past or the future."""
        moment = self._now() if at is None else self._round(at)
        touched = list(keys)
        for key in touched:
            self._stamp(self.records[key], moment)
        return touched

    def close(self, keys: Iterable[int]) -> list[int]:
        """Close files."""
        return [self._flag(key, 1) for key in keys]

    def open(self, keys: Iterable[int]) -> list[int]:
        """Clear the closed flag of files."""
        return [self._flag(key, 0) for key in keys]

    def reopen(self, keys: Iterable[int]) -> list[int]:
        """Close files and start a new one, with a new id, for each one's scan code; the new keys."""
        return [self.create(scan_code=self.records[self._flag(key, 1)].scan_code)[0] for key in keys]

    def delete(self, keys: Iterable[int]) -> list[int]:
        """Remove files: no list, detail, share or report knows them any more."""
        gone = list(keys)
        for key in gone:
            record = self.records.pop(key)
            self._unlist(record)
            self.by_reference[record.scan_code].remove(key)
            self.deleted[key] = record
            self.changes += 1
        return gone

    def restore(self, keys: Iterable[int], *, stamp: bool = True) -> list[int]:
        """Bring deleted files back, stamped now, or with `stamp=False` exactly as they were."""
        back = list(keys)
        for key in back:
            record = self.deleted.pop(key)
            self._enter(record)
            if stamp:
                self._stamp(record, self._now())
        return back

    # Inside.

    def _now(self) -> int:
        return self._round(self.clock.now())

    def _round(self, moment: int) -> int:
        return moment - moment % _STEP[self.quirks.precision]

    def _flag(self, key: int, closed: int) -> int:
        record = self.records[key]
        record.closed = closed
        self._stamp(record, self._now())
        return key

    def _stamp(self, record: FileRecord, moment: int) -> None:
        record.updated = moment
        record.revision += 1
        self.changes += 1
        if self.quirks.late_commit_seconds:
            due = moment + round(self.quirks.late_commit_seconds * SECOND)
            heapq.heappush(self._late, (due, record.key))
        else:
            self._list(record.key)

    def _list(self, key: int) -> None:
        """Show a file in lists with its present stamp."""
        record = self.records.get(key)
        if record is None:
            return
        self._unlist(record)
        record.listed = record.updated
        record.revision += 1
        insort(self.index, (record.listed, key))

    def _unlist(self, record: FileRecord) -> None:
        entry = (record.listed, record.key)
        place = bisect_left(self.index, entry)
        if place < len(self.index) and self.index[place] == entry:
            del self.index[place]

    def _add(self, created: int, updated: int, scan_code: str | None) -> FileRecord:
        record = self._seedling(created, updated, scan_code)
        self._enter(record)
        self._stamp(record, updated)
        return record

    def _enter(self, record: FileRecord) -> None:
        self.records[record.key] = record
        self.by_reference.setdefault(record.scan_code, []).append(record.key)
        self._order.append(record.key)
        if record.listed:
            insort(self.index, (record.listed, record.key))

    def _seedling(self, created: int, updated: int, scan_code: str | None, *, growing: bool = False) -> FileRecord:
        """Return a new file that stands nowhere yet; now and then it takes over an earlier scan code."""
        rnd = self._rng.random
        serial = self._serial
        self._serial += 1
        key = _key(serial, self.plan.seed)
        record = FileRecord(
            key, key, serial, scan_code or f"SC{serial * 7919 % 10_000_019:08d}", 0, created, updated, 0
        )
        record.closed = int(rnd() < 0.4)
        draw = rnd()
        if draw < 0.06 and self._order:
            former = self.records.get(self._order[int(rnd() * len(self._order))])
            if former is not None and scan_code is None:
                record.scan_code = former.scan_code
                if draw < 0.04 and self.quirks.instances == "on" and (growing or former.id in self.instances):
                    self._join(record, former)
        return record

    def _join(self, record: FileRecord, former: FileRecord) -> None:
        """Make a file a further instance of an earlier one: one id for both, a file_id each."""
        shared = former.id
        if shared not in self.instances:
            shared = (1 << 40) + former.serial
            former.id = shared
            self.instances[shared] = [former.key]
        record.id = shared
        self.instances[shared].append(record.key)

    def _populate(self) -> None:
        """Grow the files of the plan up to now; the index is sorted once at the end."""
        rng = self._rng
        stamps_ = sorted(_stamps(self.plan, self.born, rng))
        for updated in stamps_:
            age = int(min(rng.expovariate(1 / 3), 60) * DAY) + 60 * SECOND
            record = self._seedling(self._round(updated - age), self._round(updated), None, growing=True)
            self.records[record.key] = record
            self.by_reference.setdefault(record.scan_code, []).append(record.key)
            self._order.append(record.key)
            record.listed = record.updated
        self.index = sorted((record.listed, record.key) for record in self.records.values())


def _key(serial: int, seed: int) -> int:
    """Return the id of the nth file: one in three beyond 2^53 and odd, so that a float would round it."""
    base = serial * 37 + seed % 31
    if serial % 3 == 1:
        return (1 << 53) + 1 + base * 2
    if serial % 17 == 5:
        return (1 << 62) + base
    return 10_000_000 + base


def _stamps(plan: WorldPlan, end: int, rng: random.Random) -> Iterator[int]:
    """Yield an update time for every file, none later than a minute before `end`."""
    end -= 60 * SECOND
    span = plan.days * DAY
    start = end - span
    count = plan.files
    rnd = rng.random
    if plan.spread == "even":
        yield from (start + span * (n + 1) // count for n in range(count))
    elif plan.spread == "same-second":
        hours = range(-(-count // 60))
        top = end - end % (3600 * SECOND)
        yield from (top - hour * 3600 * SECOND for hour in hours for _ in range(min(60, count - hour * 60)))
    elif plan.spread == "burst":
        burst = start + int(rnd() * 0.99 * span)
        for _ in range(count):
            inside = rnd() < 0.8
            yield burst + int(rnd() * span / 100) if inside else start + int(rnd() * span)
    else:
        yield from _natural(count, start, span, rnd)


def _natural(count: int, start: int, span: int, rnd: Callable[[], float]) -> Iterator[int]:
    """Yield a mix: most evenly, many in the last tenth, imports of up to 300 within a minute, a few ties."""
    left = count
    while left > 0:
        draw = rnd()
        moment = start + int(rnd() * span)
        if draw < 0.0005:
            size = min(left, 60 + int(rnd() * 240))
            yield from (moment - int(rnd() * 60) * SECOND for _ in range(size))
        elif draw < 0.01:
            size = min(left, 2 + int(rnd() * 5))
            yield from (moment - moment % SECOND for _ in range(size))
        else:
            size = 1
            yield start + span - int(rnd() * span / 10) if draw < 0.2 else moment
        left -= size
