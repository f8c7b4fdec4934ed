"""A machine that does to a service and its lake whatever may happen to them, in any order.

Its one invariant: after a quiet sync the lake equals the service in all but deletions, and after a quiet verify
in everything, value by value. How much was done is counted in `DONE`. Kills are simulated at every step of a
commit and a publish; real ones, with real processes, are in tests/sync. Time is virtual. Only
kills within a publish, and the last run of an example with such a kill, write catalogs, in a soak all runs.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections import Counter
from contextlib import contextmanager, nullcontext, suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from unittest import mock

from hypothesis import HealthCheck, Phase, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from pipeline.emulator import EDIT_KINDS, Emulator, WorldPlan
from pipeline.errors import ProtocolError, ScanlakeError
from pipeline.lake.catalog import catalog
from pipeline.lake.ledger.ledger import Ledger
from pipeline.lake.storage import atomic_files, parts
from pipeline.sync.sync import TimeRange
from pipeline.sync.verify import VerifyMode
from tests.lake.fault_injection import ProcessKilled
from tests.oracle import DEFINITIONS, TABLES, differences
from tests.soaking import SOAKING
from tests.stateful.held_catalog import HeldCatalog
from tests.sync.sync_harness import opened, synced, unpublished, verified
from tests.virtual_time import VirtualLoop

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    import pytest

EXAMPLES: Final = int(os.environ.get("SOAK_EXAMPLES", "25"))
STEPS: Final = int(os.environ.get("SOAK_STEPS", "12"))
NOW: Final = "2026-03-29T00:59:30Z"
FAULTS: Final = (
    "500 503 429 refuse html cut-json cut-length cut-chunked cut-close gzip-no-trailer gzip-half drop-before-status"
    " drop-mid-headers drop-mid-body"
).split()
COMMIT_STEPS: Final = (
    (atomic_files, "fsync_file"),
    (atomic_files, "fsync_dir"),
    (parts, "write_raw_part"),
    (Ledger, "commit"),
    (Ledger, "update_run"),
)
PUBLISH_STEPS: Final = ((Ledger, "begin_snapshot"), (Ledger, "end_snapshot"), (catalog, "publish"))
RESTLESS: Final = 0.6  # seconds at most in which the world changes during a crawl
RATES: Final = (50, 400, 1500) if SOAKING else (50, 400)  # changes a second
_MONTH_SECONDS: Final = 30 * 86_400
_OPTIONS: Final[dict[str, Any]] = {
    "max_attempts": 4,
    "commit_every_files": 10,
    "commit_every_seconds": 0.2,
    "max_concurrency": 8,
    "request_timeout_seconds": 5,
}
DONE: Final[Counter[str]] = Counter()
"""What all machines of this process did: steps, changes of the world, changes during a crawl, comparisons."""


class LakeMachine(RuleBasedStateMachine):
    """World, service and lake; every rule is something that happens."""

    files = 12

    @initialize(seed=st.integers(0, 2**32 - 1))
    def begin(self, seed: int) -> None:
        """A service with some files, and no lake yet."""
        note(f"world seed {seed}")
        self.publishes = SOAKING
        later = datetime.fromisoformat(NOW).timestamp() + _MONTH_SECONDS  # than the service's clock will ever be
        self.runner = asyncio.Runner(loop_factory=partial(VirtualLoop, start=later))
        self.folder = Path(tempfile.mkdtemp(prefix="machine-"))
        self.lake = self.folder / "lake"
        plan = WorldPlan(files=self.files, seed=seed, now=NOW, days=30)
        self.emulator = Emulator(plan=plan)
        self.run(self.emulator.__aenter__())
        self.world = self.emulator.world
        self.deletions = self.backdated = self.has_published = False
        self.held = HeldCatalog()

    def teardown(self) -> None:
        """Whatever has happened: after a quiet sync and a verify lake and service are equal."""
        if not hasattr(self, "runner"):
            return
        try:
            self.emulator.faults.clear()
            self.quiet_sync()
            self.quiet_verify(publishes=self.has_published or SOAKING)
        finally:
            DONE["changes"] += self.world.changes
            self.run(self.emulator.__aexit__(None, None, None))
            self.runner.close()
            DONE["catch-ups"] += self.held.caught_up
            DONE["rebuilds"] += self.held.rebuilt
            shutil.rmtree(self.folder)

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine on the machine's loop."""
        # A comment takes a quarter of a millisecond, and there are six hundred.
        with (
            mock.patch("pipeline.lake.catalog.duckdb.sql_comment", return_value="") if self.publishes else unpublished()
        ):
            return self.runner.run(work)

    def check_invariants(self, *arguments: Any, **options: Any) -> None:
        """Called after every step."""
        DONE["steps"] += 1
        super().check_invariants(*arguments, **options)

    # The world changes

    @rule(count=st.integers(1, 8))
    def create(self, count: int) -> None:
        """Files are created."""
        self.world.create(count)

    @rule(count=st.integers(1, 12), kind=st.sampled_from(EDIT_KINDS))
    def edit(self, count: int, kind: str) -> None:
        """Files get or lose children, or change otherwise."""
        for key in self.world.pick_random(count):
            self.world.edit(key, kind)  # type: ignore[arg-type]

    @rule(count=st.integers(51, 56))
    def touch_many_in_one_second(self, count: int) -> None:
        """More files than fit one response share a second."""
        self.world.create(max(0, count - len(self.world.records)))
        self.world.touch(self.world.pick_random(count))

    @rule(count=st.integers(1, 5))
    def close_and_reopen(self, count: int) -> None:
        """Files are closed, and begun anew under the same reference."""
        self.world.reopen(self.world.pick_random(count))

    @rule(count=st.integers(1, 5))
    def delete(self, count: int) -> None:
        """Files are deleted."""
        if len(self.world.records) > 12:
            self.world.delete(self.world.pick_random(count))
            self.deletions = True

    @rule(stamp=st.booleans())
    def restore(self, *, stamp: bool) -> None:
        """A deleted file comes back, stamped anew or exactly as it was."""
        if self.world.deleted:
            self.world.restore([next(iter(self.world.deleted))], stamp=stamp)
            self.backdated |= not stamp

    @rule(count=st.integers(1, 3), kind=st.sampled_from(["lose_times", "lose_index"]), lost=st.booleans())
    def hide(self, count: int, kind: str, *, lost: bool) -> None:
        """No window shows some files any more, or windows show them again."""
        getattr(self.world, kind)(self.world.pick_random(count), lost=lost)

    @rule(seconds=st.sampled_from([0.4, 1, 3, 29, 31, 599, 700, 86_400]))
    def time_passes(self, seconds: float) -> None:
        """The service's clock goes on."""
        self.world.clock.advance(seconds)

    # Runs

    @rule(chosen=st.sampled_from([TimeRange(), TimeRange(), TimeRange(full=True)]))
    def sync_under_faults(self, chosen: TimeRange) -> None:
        """A sync with whatever faults are on; it may fail, and must not do harm."""
        with suppress(ScanlakeError):
            self.run(self._sync(chosen))

    @rule(kinds=st.lists(st.sampled_from(FAULTS), min_size=1, max_size=3), share=st.sampled_from([0.05, 0.3]))
    def faults_begin(self, kinds: list[str], share: float) -> None:
        """The service misbehaves from now on."""
        self.emulator.set_faults(probabilities={kind: share / len(kinds) for kind in kinds}, retry_after_seconds=0)

    @rule()
    def faults_end(self) -> None:
        """The service behaves again."""
        self.emulator.faults.clear()

    @rule(step=st.sampled_from(COMMIT_STEPS), nth=st.integers(1, 12), before=st.booleans())
    def killed_sync(self, step: tuple[Any, str], nth: int, *, before: bool) -> None:
        """A sync that is killed before or after the nth time of some step."""
        with suppress(ProcessKilled, ScanlakeError), _killed_at(step, nth, before=before):
            self.run(self._sync())

    @rule(step=st.sampled_from(PUBLISH_STEPS), before=st.booleans())
    def killed_publish(self, step: tuple[Any, str], *, before: bool) -> None:
        """A sync that is killed before or after a step of its publish."""
        self.publishes = self.has_published = True
        self.killed_sync(step, 1, before=before)
        self.publishes = SOAKING

    @rule(after=st.integers(0, 60))
    def cancelled_sync(self, after: int) -> None:
        """A sync that is asked to stop after so many detail calls."""
        self.run(self._cancelled(after))

    async def _cancelled(self, after: int) -> None:
        task = asyncio.ensure_future(self._sync())
        wanted = self.emulator.counts["detail"] + after
        while not task.done() and self.emulator.counts["detail"] < wanted:
            await asyncio.sleep(0.001)
        task.cancel()
        with suppress(asyncio.CancelledError, ScanlakeError):
            await task

    @rule(rate=st.sampled_from(RATES), latency_ms=st.sampled_from([5, 20]), verified=st.booleans())
    def sync_while_the_world_changes(self, rate: int, latency_ms: int, *, verified: bool) -> None:
        """A sync, and perhaps a verify, in a world that does not stand still."""
        before = self.world.changes
        self.run(self._churned(rate, latency_ms, verified=verified))
        DONE["changes during a crawl"] += self.world.changes - before
        self.deletions = True  # the churn deletes

    async def _churned(self, rate: int, latency_ms: int, *, verified: bool) -> None:
        self.world.clock.resume()
        self.emulator.set_faults(latency_ms=latency_ms)
        self.emulator.set_churn(rate)
        # A world that changes faster than it can be read is never read to its end.
        calm = asyncio.get_running_loop().call_later(RESTLESS, self.emulator.set_churn, 0)
        try:
            with suppress(ScanlakeError):
                await self._sync()
                if verified:
                    await self._verify()
        finally:
            calm.cancel()
            self.emulator.set_churn(0)
            self.emulator.set_faults(latency_ms=0)
            self.world.clock.set(self.world.clock.now())

    @rule()
    def quiet_sync(self) -> None:
        """A sync without faults: the lake equals the service in all but deletions and what was back-dated."""
        self.emulator.faults.clear()
        self.run(self._sync())
        if not self.backdated:
            self.check(but_for_deletions=self.deletions)

    @precondition(lambda self: self.lake.exists())
    @rule()
    def quiet_verify(self, *, publishes: bool = SOAKING) -> None:
        """A sync and a verify without faults: the lake equals the service."""
        self.emulator.faults.clear()
        self.run(self._sync())
        self.publishes = publishes
        assert self.run(self._verify())
        self.deletions = self.backdated = False
        self.check(but_for_deletions=False)

    async def _sync(self, chosen: TimeRange | None = None) -> None:
        """Sync. If the world has lost more files than a sync believes, accept that by a verify, as the error says."""
        try:
            await synced(self.emulator, self.lake, chosen, **_OPTIONS)
        except ProtocolError as error:
            if "--accept-deletions" not in error.hint:
                raise
            await self._verify()
            await synced(self.emulator, self.lake, chosen, **_OPTIONS)

    async def _verify(self) -> bool:
        """Run a verify; whether it says that lake and service are equal."""
        return (await verified(self.emulator, self.lake, VerifyMode(accept_deletions=True), **_OPTIONS)).consistent

    def check(self, *, but_for_deletions: bool) -> None:
        """Compare lake and service, table by table and value by value; of the files that the service has, or all."""
        truth = list(self.emulator.truth())
        DONE["comparisons"] += 1
        with nullcontext() if self.publishes else unpublished(), opened(self.lake) as db:
            # A catalog that is made in steps since the last check, in place and by new rows in turn.
            self.held.catch_up(self.lake, in_place=self.held.caught_up % 2 == 0)
            assert self.held.differing_rows(db) == []
            if but_for_deletions:
                keys = [row["key"] for row in truth]
                db.execute("CREATE TEMP TABLE there AS SELECT unnest(?::BIGINT[]) AS id", [keys])
                [(name,)] = db.execute("SELECT current_database()").fetchall()
                for table in set(TABLES) - DEFINITIONS:
                    db.execute(
                        f"CREATE TEMP VIEW {table} AS FROM {name}.main.{table} WHERE file_id IN (SELECT id FROM there)"
                    )
            assert differences(db, truth, history=True) == []


@contextmanager
def _killed_at(step: tuple[Any, str], nth: int, *, before: bool) -> Iterator[None]:
    """Let the nth call of a step be the last thing that the process does, or does not do any more."""
    owner, name = step
    real: Callable[..., Any] = getattr(owner, name)
    calls = 0
    dead = False

    def counted(*arguments: Any, **options: Any) -> Any:
        nonlocal calls, dead
        calls += 1
        if dead or (calls == nth and before):
            dead = True
            raise ProcessKilled
        result = real(*arguments, **options)
        if calls == nth:
            dead = True
            raise ProcessKilled
        return result

    with mock.patch.object(owner, name, counted):
        yield


def test_whatever_happens_nothing_is_lost(capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever happens to service and lake, in any order: after a quiet sync and a verify they are equal."""
    run_state_machine_as_test(
        LakeMachine,
        settings=settings(
            settings.default,
            max_examples=EXAMPLES,
            stateful_step_count=STEPS,
            # A failure is printed as it was found: shrinking real syncs takes hours. The blob repeats it.
            phases=(Phase.explicit, Phase.reuse, Phase.generate),
            suppress_health_check=list(HealthCheck),
            deadline=None,
            print_blob=True,
        ),
    )
    assert DONE["comparisons"] >= EXAMPLES
    if SOAKING:
        with capsys.disabled():
            print(", ".join(f"{count:,} {what}" for what, count in sorted(DONE.items())))
