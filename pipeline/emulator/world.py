"""The files of the service: generated from a plan, changed while they are served."""

import asyncio
import dataclasses
import heapq
import random
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Iterator

from pipeline.emulator.generator import EDIT_KINDS, Edit, EditKind, FileRecord
from pipeline.emulator.options import Quirks, WorldPlan
from pipeline.emulator.timestamps import DAY, SECOND, Clock

_STEP = {"seconds": SECOND, "millis": 1000, "micros": 1}
_TOP = 1 << 80
_MIN_CHURNED_FILES = 10
_REPEATED_EVERY = 4
_TICK_SECONDS = 0.05
_ORDINARY: tuple[EditKind, ...] = tuple(kind for kind in EDIT_KINDS if kind not in {"touch", "clear"})


class World:
    """All files, the index of the list, and the operations that change files.

    Deterministic: the same plan, clock and calls give the same world. A key is an id, or a `file_id` if several
    instances share an id. Operations take keys and return the changed keys; an unknown key raises KeyError.
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
        self.untimed: set[int] = set()
        self.unindexed: set[int] = set()
        self.former: dict[int, FileRecord] = {}
        self.changes = 0
        self._late: list[tuple[int, int]] = []
        self._latest: dict[int, FileRecord] = {}
        self._order: list[int] = []
        self._rng = random.Random(f"world:{plan.seed}")
        self._serial = 0
        self._populate()

    # Queries.

    def find(self, key: int) -> FileRecord | None:
        """Return the file of a detail call: an instance by file_id, the newest one by a shared id."""
        if key in self.instances:
            siblings = (self.records[sibling] for sibling in self.instances[key] if sibling in self.records)
            return max(siblings, key=lambda record: (record.updated, record.key), default=None)
        return self.records.get(key)

    def find_serial(self, serial: int) -> FileRecord | None:
        """Return the nth file that was created, None if it was deleted or never existed."""
        return self.records.get(_build_key(serial, self.plan.seed))

    def list_window(self, start: int | None, end: int | None) -> list[tuple[int, int]]:
        """Return (listed time, key) of the files in a window, both ends inclusive, oldest first.

        As in SQL, a comparison with no time is false: a window shows no untimed file, and none that its index misses.
        """
        self.apply_late_commits()
        low = 0 if start is None else bisect_left(self.index, (start, -_TOP))
        high = len(self.index) if end is None else bisect_right(self.index, (end, _TOP))
        entries, hidden = self.index[low:high], self.untimed | self.unindexed
        if hidden and (start is not None or end is not None):
            entries = [entry for entry in entries if entry[1] not in hidden]
        return entries

    def list_versions(self, key: int) -> list[FileRecord]:
        """Return what a list shows of a file: one version, or two by the quirks; these differ in their update times."""
        record, repeats = self.records[key], self.quirks.repeats
        if repeats == "no" or record.serial % _REPEATED_EVERY:
            return [record]
        former = record if repeats == "same" or key in self.untimed else self.former.get(key, record)
        return [record, former] if repeats == "older-last" else [former, record]

    def apply_late_commits(self) -> None:
        """Make changes visible in the list after their delay."""
        if self._late:
            now = self.clock.now()
            while self._late and self._late[0][0] <= now:
                self._update_index(heapq.heappop(self._late)[1])

    def keys(self) -> list[int]:
        """Return the keys of all files, in order of creation."""
        return list(self.records)

    def pick_random(self, count: int) -> list[int]:
        """Choose `count` different files at random."""
        return self._rng.sample(self.keys(), min(count, len(self.records)))

    # Operations. Each sets the update time of the file to the current time of the clock.

    def create(self, count: int = 1, *, scan_code: str | None = None, at: int | None = None) -> list[int]:
        """Add new files, created and updated now or at a time."""
        time_us = self._now() if at is None else self._round(at)
        return [self._add(time_us, scan_code) for _ in range(count)]

    def edit(self, key: int, kind: EditKind, *, at: int | None = None) -> int:
        """Change one file by an edit (see `generator.EditKind`) and set its update time."""
        record = self.records[key]
        time_us = self._now() if at is None else self._round(at)
        record.edits = (*record.edits, Edit(kind, self._rng.randrange(1 << 40), time_us))
        self._set_updated(record, time_us)
        return key

    def update(self, keys: Iterable[int]) -> list[int]:
        """Apply a random edit to each file."""
        return [self.edit(key, self._rng.choice(_ORDINARY)) for key in keys]

    def touch(self, keys: Iterable[int], at: int | None = None) -> list[int]:
        """Set only the update time of files; `at` may be in the past or the future."""
        time_us = self._now() if at is None else self._round(at)
        changed = list(keys)
        for key in changed:
            self._set_updated(self.records[key], time_us)
        return changed

    def lose_times(self, keys: Iterable[int], *, lost: bool = True) -> list[int]:
        """Take the update times of files away, or give them back; nothing else shows the change."""
        return self._set_hidden(self.untimed, keys, is_hidden=lost)

    def lose_index(self, keys: Iterable[int], *, lost: bool = True) -> list[int]:
        """Take files out of the index of update times, or put them back; nothing else shows the change."""
        return self._set_hidden(self.unindexed, keys, is_hidden=lost)

    def _set_hidden(self, hidden: set[int], keys: Iterable[int], *, is_hidden: bool) -> list[int]:
        changed = list(keys)
        for key in changed:
            (hidden.add if is_hidden else hidden.discard)(key)
            self.records[key].revision += 1  # bodies are kept by it
            self.changes += 1
        return changed

    def close(self, keys: Iterable[int]) -> list[int]:
        """Close files."""
        return [self._close(key) for key in keys]

    def reopen(self, keys: Iterable[int]) -> list[int]:
        """Close files and create a new file with the scan code of each; return the new keys."""
        return [self.create(scan_code=self.records[self._close(key)].scan_code)[0] for key in keys]

    def delete(self, keys: Iterable[int]) -> list[int]:
        """Delete files from list, detail, shares and reports."""
        deleted = list(keys)
        for key in deleted:
            record = self.records.pop(key)
            self._remove_from_index(record)
            self.by_reference[record.scan_code].remove(key)
            self.deleted[key] = record
            self.changes += 1
        return deleted

    def restore(self, keys: Iterable[int], *, stamp: bool = True) -> list[int]:
        """Restore deleted files, updated now, or unchanged with `stamp=False`."""
        restored = list(keys)
        for key in restored:
            record = self.deleted.pop(key)
            self._insert(record)
            if stamp:
                self._set_updated(record, self._now())
        return restored

    def _now(self) -> int:
        return self._round(self.clock.now())

    def _round(self, time_us: int) -> int:
        return time_us - time_us % _STEP[self.quirks.precision]

    def _close(self, key: int) -> int:
        record = self.records[key]
        record.closed = 1
        self._set_updated(record, self._now())
        return key

    def _set_updated(self, record: FileRecord, time_us: int) -> None:
        record.updated = time_us
        record.revision += 1
        self.changes += 1
        if self.quirks.late_commit_seconds:
            visible_at = time_us + round(self.quirks.late_commit_seconds * SECOND)
            heapq.heappush(self._late, (visible_at, record.key))
        else:
            self._update_index(record.key)

    def _update_index(self, key: int) -> None:
        """List a file with its current update time."""
        record = self.records.get(key)
        if record is None:
            return
        self._remove_from_index(record)
        record.listed = record.updated
        record.revision += 1
        self._keep_former(record)
        insort(self.index, (record.listed, key))

    def _keep_former(self, record: FileRecord) -> None:
        """Keep the state of a file before the present one, for lists that repeat it."""
        if self.quirks.repeats != "no":
            self.former[record.key] = self._latest.get(record.key, record)
            self._latest[record.key] = dataclasses.replace(record)

    def _remove_from_index(self, record: FileRecord) -> None:
        entry = (record.listed, record.key)
        position = bisect_left(self.index, entry)
        if position < len(self.index) and self.index[position] == entry:
            del self.index[position]

    def _add(self, time_us: int, scan_code: str | None) -> int:
        record = self._new_record(time_us, time_us, scan_code)
        self._insert(record)
        self._set_updated(record, time_us)
        return record.key

    def _insert(self, record: FileRecord) -> None:
        self.records[record.key] = record
        self._keep_former(record)
        self.by_reference.setdefault(record.scan_code, []).append(record.key)
        self._order.append(record.key)
        if record.listed:
            insort(self.index, (record.listed, record.key))

    def _new_record(self, created: int, updated: int, scan_code: str | None, *, is_initial: bool = False) -> FileRecord:
        """Return a new file that is not in the index; some reuse an earlier scan code."""
        draw = self._rng.random
        serial = self._serial
        self._serial += 1
        key = _build_key(serial, self.plan.seed)
        code = scan_code or f"SC{serial * 7919 % 10_000_019:08d}"
        for share, hidden in ((self.quirks.null_times, self.untimed), (self.quirks.filter_misses, self.unindexed)):
            if share and draw() < share:
                hidden.add(key)
        record = FileRecord(key, key, serial, code, int(draw() < 0.4), created, updated, 0)
        fraction = draw()
        if fraction < 0.06 and self._order:
            earlier = self.records.get(self._order[int(draw() * len(self._order))])
            if earlier is not None and scan_code is None:
                record.scan_code = earlier.scan_code
                if fraction < 0.04 and self.quirks.instances == "on" and (is_initial or earlier.id in self.instances):
                    self._make_instance(record, earlier)
        return record

    def _make_instance(self, record: FileRecord, earlier: FileRecord) -> None:
        """Make a file another instance of an earlier one: the same id, different file_id."""
        shared = earlier.id
        if shared not in self.instances:
            shared = (1 << 40) + earlier.serial
            earlier.id = shared
            self.instances[shared] = [earlier.key]
        record.id = shared
        self.instances[shared].append(record.key)

    def _populate(self) -> None:
        """Generate the files of the plan; the index is sorted once at the end."""
        rng = self._rng
        for updated in sorted(_generate_update_times(self.plan, self.born, rng)):
            age = int(min(rng.expovariate(1 / 3), 60) * DAY) + 60 * SECOND
            record = self._new_record(self._round(updated - age), self._round(updated), None, is_initial=True)
            self._insert(record)
            record.listed = record.updated
        self.index = sorted((record.listed, record.key) for record in self.records.values())


def _build_key(serial: int, seed: int) -> int:
    """Return the id of the nth file; one in three is odd and above 2^53, which floats round."""
    base = serial * 37 + seed % 31
    if serial % 3 == 1:
        return (1 << 53) + 1 + base * 2
    if serial % 17 == 5:
        return (1 << 62) + base
    return 10_000_000 + base


def _generate_update_times(plan: WorldPlan, end: int, rng: random.Random) -> Iterator[int]:
    """Yield the update time of each file, at least one minute before `end`."""
    end -= 60 * SECOND
    span = plan.days * DAY
    start = end - span
    count = plan.files
    draw = rng.random
    if plan.spread == "even":
        yield from (start + span * (n + 1) // count for n in range(count))
    elif plan.spread == "same-second":
        hours = range(-(-count // 60))
        top = end - end % (3600 * SECOND)
        yield from (top - hour * 3600 * SECOND for hour in hours for _ in range(min(60, count - hour * 60)))
    elif plan.spread == "burst":
        burst = start + int(draw() * 0.99 * span)
        for _ in range(count):
            inside = draw() < 0.8
            yield burst + int(draw() * span / 100) if inside else start + int(draw() * span)
    else:
        yield from _generate_natural_times(count, start, span, draw)


def _generate_natural_times(count: int, start: int, span: int, draw: Callable[[], float]) -> Iterator[int]:
    """Yield a mix: mostly even, many in the last tenth, imports of up to 300 per minute, few equal times."""
    left = count
    while left > 0:
        fraction = draw()
        time_us = start + int(draw() * span)
        if fraction < 0.0005:
            size = min(left, 60 + int(draw() * 240))
            yield from (time_us - int(draw() * 60) * SECOND for _ in range(size))
        elif fraction < 0.01:
            size = min(left, 2 + int(draw() * 5))
            yield from (time_us - time_us % SECOND for _ in range(size))
        else:
            size = 1
            yield start + span - int(draw() * span / 10) if fraction < 0.2 else time_us
        left -= size


def change_one(world: World, rng: random.Random) -> None:
    """Make one change: mostly updates, some new files, few deletions, closings and restores."""
    draw = rng.random()
    if draw < 0.15 or len(world.records) < _MIN_CHURNED_FILES:
        world.create()
    elif draw < 0.21:
        world.delete(world.pick_random(1))
    elif draw < 0.26:
        world.close(world.pick_random(1))
    elif draw < 0.28:
        world.reopen(world.pick_random(1))
    elif draw < 0.29 and world.deleted:
        world.restore([next(iter(world.deleted))])
    elif draw < 0.34:
        world.touch(world.pick_random(1))
    else:
        world.update(world.pick_random(1))


async def run_churn(world: World, rate: float, seed: int) -> None:
    """Make `rate` changes a second until cancelled."""
    rng = random.Random(f"churn:{seed}")
    pending = 0.0
    loop = asyncio.get_running_loop()
    last = loop.time()
    while True:
        await asyncio.sleep(max(_TICK_SECONDS, 1 / rate) if rate else 1.0)
        now = loop.time()
        pending += (now - last) * rate
        last = now
        while pending >= 1:
            change_one(world, rng)
            pending -= 1
