"""The command as people run it: real processes, real signals, stock clients."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import signal
import sqlite3
import sys
import time
from collections import Counter
from contextlib import closing
from dataclasses import replace
from subprocess import DEVNULL, PIPE
from typing import TYPE_CHECKING, Any, Final

import pytest

from pipeline.emulator import Emulator
from pipeline.errors import RunInterrupted
from pipeline.processes.event_loop import run_async
from pipeline.processes.signals import record_stop
from schemas.timestamps import to_datetime
from tests.constants import set_run_constants
from tests.forked_process import fork_command
from tests.guards import spellings
from tests.processes import ended, ran, started
from tests.soaking import SOAKING, draw_seed, sample, unmeasured
from tests.sync.sync_harness import SEED, check_equal, count_files, opened, synced

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pipeline.emulator.http import Response


pytestmark = pytest.mark.usefixtures("published")
_ALL_TABLES = "SELECT table_catalog, table_schema, table_name FROM information_schema.tables"
SMALL: Mapping[str, Any] = {**set_run_constants(commit_every_files=25), "SCANLAKE_MAX_CONCURRENCY": "8"}


async def test_one_and_the_same_date_syncs_the_whole_day(lake: Path) -> None:
    """`--since D --until D` fetches what was updated on that day, from its first second to its last.

    With the three variables set, `--json` prints one object with what the run did; `--quiet` prints nothing.
    """
    async with Emulator(40, seed=SEED) as emulator:
        days = Counter(f"{to_datetime(file['updated']):%Y-%m-%d}" for file in emulator.truth())
        day, count = days.most_common(1)[0]
        chosen = ("--since", day, "--until", day)
        code, out, _ = await ran(emulator, lake, "sync", *chosen, "--json")
        assert await ran(emulator, lake, "sync", *chosen, "--quiet") == (0, "", "")
        truth = {file["key"] for file in emulator.truth() if f"{to_datetime(file['updated']):%Y-%m-%d}" == day}
    assert (code, len(truth)) == (0, count)
    with opened(lake) as db:
        found = {row[0] for row in db.execute("SELECT file_id FROM files").fetchall()}
        beyond = f"updated_at < DATE '{day}' - INTERVAL 1 SECOND OR updated_at > DATE '{day}' + INTERVAL 86401 SECOND"
        assert db.execute(f"SELECT count(*) FROM files WHERE {beyond}").fetchall() == [(0,)]
    assert truth <= found  # a second beyond each bound can be read too
    summary = json.loads(out)
    assert summary["details_fetched"] == summary["requests"]["detail"] == len(found)


async def test_the_token_is_nowhere(lake: Path, tmp_path: Path, canary: str) -> None:
    """After syncs that were refused, went well or failed, no output, log, ledger, part or catalog holds the token."""
    log, streams, codes = ("--log-file", str(tmp_path / "log.jsonl"), "-v"), "", []
    async with Emulator(6, seed=SEED, token=canary) as emulator:
        for faults in ({"revoked": True}, {"probabilities": {"500": 0.2, "echo-token": 0.4}}, {"outage": True}):
            emulator.faults.clear()
            emulator.set_faults(**faults)
            emulator.world.update(emulator.world.pick_random(5))
            code, out, err = await ran(emulator, lake, "sync", *log, **set_run_constants(max_attempts=2))
            codes.append(code)
            streams += out + err
            assert len(err.strip().splitlines()[-1]) < 300
    assert (codes[0], codes[2]) == (3, 1)
    assert "SCANLAKE_TOKEN" in streams
    assert "Traceback" not in streams
    assert canary not in streams


class _EchoingEmulator(Emulator):
    """Writes its token into every text and key that starts with a capital letter, each character escaped at random."""

    async def _respond(self, *request: Any) -> tuple[Response, str]:
        response, endpoint = await super()._respond(*request)
        dice = random.Random(len(response.body))

        def echo(_: re.Match[bytes]) -> bytes:
            escapes = (char if dice.random() < 0.7 else f"\\u{ord(char):04x}" for char in self.token)
            return f'"X{"".join(escapes)}"'.encode()

        body = re.sub(rb'"[A-Z][^"\\]*"', echo, response.body.replace(b'"donotuse"', b'"Donotuse"'))
        return replace(response, body=body), endpoint


async def test_an_echoed_token_is_stored_nowhere(lake: Path, tmp_path: Path, canary: str) -> None:
    """A token in every text, name and key of lists and details, escaped at random, is in no document, row or column."""
    async with _EchoingEmulator(5, seed=SEED, token=canary) as emulator:
        code, out, err = await ran(emulator, lake, "sync", "--json", "--log-file", str(tmp_path / "log.jsonl"))
    assert code == 0, err
    assert "token.redacted" in err
    with opened(lake) as db:
        names = [f'"{name}".{schema}.{table}' for name, schema, table in db.execute(_ALL_TABLES).fetchall()]
        parts = [f"'{path}'" for path in (lake / "documents").glob("*.parquet")]
        assert len(names) > 30
        assert parts
        stored = "".join(f"{(shown := db.sql(f'FROM {name}')).columns}{shown.fetchall()}" for name in names + parts)
    with closing(sqlite3.connect(lake / "ledger.sqlite")) as ledger:
        stored += "".join(ledger.iterdump())
    assert stored.count("X***") > 500
    decoded = re.sub(r"\\+u([0-9a-f]{4})", lambda escape: chr(int(escape[1], 16)), stored + out + err)
    assert not any(mark in decoded for mark in spellings(canary))


async def test_stops_on_request(lake: Path) -> None:
    """Ctrl-C, SIGHUP and SIGTERM, once or again, commit what is whole and exit 130 in ten seconds; the next goes on.

    The last one goes to the whole group, as systemd sends it.
    """
    stops = ([signal.SIGINT], [signal.SIGHUP], [signal.SIGTERM, signal.SIGTERM, signal.SIGINT])
    async with Emulator(160, seed=SEED) as emulator:
        emulator.set_faults(latency_ms=60.0)
        service = {"SCANLAKE_BASE_URL": emulator.base_url, "SCANLAKE_TOKEN": emulator.token}
        env = {**os.environ, **SMALL, **service, "SCANLAKE_LAKE": str(lake)}
        for at, signals in enumerate(stops, 1):
            process = await fork_command(["sync"], env=env, session=True)
            while emulator.counts["detail"] < 40 * at:
                await asyncio.sleep(0.02)
            asked_at, fetched = time.monotonic(), emulator.counts["detail"]
            for number in signals:
                (os.killpg if at == len(stops) else os.kill)(process.pid, number)
                await asyncio.sleep(0.02)
            code, _, err = await ended(process)
            assert time.monotonic() - asked_at < 60
            assert (code, "Traceback" in err) == (130, False), err
            assert count_files(lake) >= fetched - at * 2 * 8
        emulator.set_faults(latency_ms=0.0)
        await synced(emulator, lake)
        assert emulator.counts["detail"] <= 160 + 2 * 8 * len(stops)
        check_equal(lake, emulator)


async def test_kills(lake: Path) -> None:
    """After kill -9 at random moments the next run repeats only what was not committed, and nothing is lost."""
    dice = random.Random(draw_seed(__name__))
    files, kills, options, latency_ms = (8_000, 6, {}, 0.0) if SOAKING else (160, 2, SMALL, 20.0)
    async with Emulator(files, seed=SEED, prerender=SOAKING) as emulator:
        emulator.set_faults(latency_ms=latency_ms)
        for moment in sorted(dice.uniform(0.1, 0.8) * files for _ in range(kills)):
            process = await started(emulator, lake, "sync", **options)
            while emulator.counts["detail"] < moment and process.returncode is None:
                await asyncio.sleep(0.001 if SOAKING else 0.02)
            assert process.returncode is None, await process.communicate()
            process.kill()
            await process.communicate()
            assert not (lake / "catalog.duckdb").exists() or count_files(lake) <= files  # published at its end
        emulator.set_faults(latency_ms=0.0)
        await synced(emulator, lake)
        # Each costs at most the batch that was being committed, the one being gathered, and what was on its way.
        assert emulator.counts["detail"] <= files + (0.3 * files if SOAKING else kills * (2 * 25 + 8))
        check_equal(lake, emulator)
    assert list(lake.parent.rglob("*.tmp")) == []


async def test_cron_starts_several(lake: Path) -> None:
    """Of syncs that start together one runs; the others exit 5 at once and name the holder."""
    async with Emulator(20, seed=SEED) as emulator:
        emulator.set_faults(latency_ms=400.0)
        processes = [await started(emulator, lake, "sync", **SMALL) for _ in range(3)]
        results = await asyncio.gather(*(ended(process) for process in processes))
    assert sorted(code for code, _, _ in results) == [0, 5, 5]
    assert all("pid" in err for code, _, err in results if code == 5)


_START: Final = """
import os
from pipeline.__main__ import end_process, main, replace_handlers
replace_handlers(end_process)
os.write(1, b"there\\n")
main()
"""
"""`scanlake`, with a line as soon as it handles signals: what comes before is Python's own start."""


@pytest.mark.usefixtures("published")
async def test_ctrl_c_at_any_moment(tmp_path: Path) -> None:
    """In steps of 5 ms over three seconds: exit 130 and one last line, never a traceback or another cause."""
    async with Emulator(1_600, seed=3) as emulator:  # so many are written by a process of its own
        emulator.set_faults(latency_ms=150.0)
        service = {"SCANLAKE_BASE_URL": emulator.base_url, "SCANLAKE_TOKEN": emulator.token}
        for milliseconds in sample(range(0, 3_000, 5), 2):
            environment = {**unmeasured(), **service, "SCANLAKE_LAKE": str(tmp_path / f"lake-{milliseconds}")}
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-c", _START, "sync"), env=environment, start_new_session=True,
                stdin=DEVNULL, stdout=PIPE, stderr=PIPE,
            )  # fmt: skip
            assert process.stdout is not None
            assert await process.stdout.readline() == b"there\n"
            await asyncio.sleep(milliseconds / 1_000)
            os.killpg(process.pid, signal.SIGINT)
            _, err = await asyncio.wait_for(process.communicate(), 300)
            lines = err.decode().splitlines()
            assert process.returncode == 130, (milliseconds, lines)
            assert lines[-1].startswith(("scanlake: Interrupted.", "scanlake: Stopped on request:")), milliseconds
            assert not any("Traceback" in line or "memory" in line for line in lines), (milliseconds, lines)


def test_a_stop_before_the_loop_runs() -> None:
    """A signal whose exception was lost, or that came while the loop started, stops the next work before its start."""
    begun = []

    async def work(name: str) -> None:
        begun.append(name)

    record_stop()
    with pytest.raises(RunInterrupted):
        run_async(work("first"))
    run_async(work("second"))
    assert begun == ["second"]
