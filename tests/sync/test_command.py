"""The command as people run it: real processes, real signals, stock clients."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import signal
import sqlite3
import time
from collections import Counter
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import duckdb
import pytest

from pipeline.emulator import Emulator
from schemas.timestamps import to_datetime
from tests.constants import set_run_constants
from tests.forkserver import run_command
from tests.guards import spellings
from tests.processes import DUCKDB_CLIENT, ended, ran, started
from tests.soaking import SOAKING, draw_seed
from tests.sync.sync_harness import SEED, check_equal, count_files, opened

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pipeline.emulator.http import Response

pytestmark = pytest.mark.usefixtures("published")
_ALL_TABLES = "SELECT table_catalog, table_schema, table_name FROM information_schema.tables"
SMALL: Mapping[str, Any] = {**set_run_constants(commit_every_files=25), "SCANLAKE_MAX_CONCURRENCY": "8"}


async def test_environment_drives_it(tmp_path: Path) -> None:
    """With the three variables set, `sync --json` prints one object with what the run did; `--quiet` prints nothing."""
    async with Emulator(30, seed=SEED) as emulator:
        code, out, _ = await ran(emulator, tmp_path / "lake", "sync", "--json")
        check_equal(tmp_path / "lake", emulator)
        assert await ran(emulator, tmp_path / "lake", "sync", "--quiet") == (0, "", "")
    summary = json.loads(out)
    assert code == 0
    assert (summary["details_fetched"], summary["requests"]["detail"]) == (30, 30)
    named = (
        "run_id watermark files_listed files_stored details_fetched files_skipped files_deleted rejects requests state"
        " files_left retries seconds snapshot delta lake publish images verify ok exit_code"
    )
    assert set(summary) == set(named.split())


async def test_settings_file_drives_it(tmp_path: Path) -> None:
    """The same from a settings file and a token file, and flags go before both."""
    async with Emulator(30, seed=SEED) as emulator:
        (tmp_path / "token").write_text(emulator.token + "\n")
        (tmp_path / "token").chmod(0o600)
        (tmp_path / "scanlake.toml").write_text(
            f'base_url = "{emulator.base_url}"\ntoken_file = "{tmp_path / "token"}"\nlake = "{tmp_path / "wrong"}"\n'
        )
        arguments = ("sync", "--lake", str(tmp_path / "right"))
        finished = await asyncio.to_thread(run_command, arguments, cwd=tmp_path, env=os.environ)
        assert finished.code == 0
    assert (tmp_path / "right" / "catalog.duckdb").exists()
    assert not (tmp_path / "wrong").exists()


async def test_one_and_the_same_date_syncs_the_whole_day(tmp_path: Path) -> None:
    """`--since D --until D` fetches what was updated on that day, from its first second to its last."""
    async with Emulator(100, seed=SEED) as emulator:
        days = Counter(f"{to_datetime(file['updated']):%Y-%m-%d}" for file in emulator.truth())
        day, count = days.most_common(1)[0]
        command = ("sync", "--since", day, "--until", day, "--json")
        code, out, _ = await ran(emulator, tmp_path / "lake", *command)
        truth = {file["key"] for file in emulator.truth() if f"{to_datetime(file['updated']):%Y-%m-%d}" == day}
    assert (code, len(truth)) == (0, count)
    with opened(tmp_path / "lake") as db:
        found = {row[0] for row in db.execute("SELECT file_id FROM files").fetchall()}
        beyond = f"updated_at < DATE '{day}' - INTERVAL 1 SECOND OR updated_at > DATE '{day}' + INTERVAL 86401 SECOND"
        assert db.execute(f"SELECT count(*) FROM files WHERE {beyond}").fetchall() == [(0,)]
    assert truth <= found  # a second beyond each bound can be read too
    assert json.loads(out)["details_fetched"] == len(found)


async def test_one_clear_line(tmp_path: Path, canary: str) -> None:
    """A wrong token exits 3 at once and is shown nowhere, a service that cannot be reached exits 1, with one line."""
    async with Emulator(1, seed=SEED) as emulator:
        code, out, err = await ran(emulator, tmp_path / "lake", "sync", SCANLAKE_TOKEN=canary)
        assert (code, emulator.requests) == (3, 1)
        assert "SCANLAKE_TOKEN" in err
        assert len(err.strip().splitlines()[-1]) < 300
        assert canary not in out + err
    code, _, away = await ran(emulator, tmp_path / "lake", "sync", **set_run_constants(max_attempts=2))
    assert code == 1
    assert "no connection" in away.splitlines()[-1]
    assert "Traceback" not in err + away


async def test_the_token_is_nowhere(tmp_path: Path, canary: str) -> None:
    """After syncs that went well and syncs that failed, no output, log, ledger, part or catalog holds the token."""
    streams = ""
    async with Emulator(20, seed=SEED, token=canary) as emulator:
        log = ("--log-file", str(tmp_path / "log.jsonl"), "-v")
        for faults in (
            {},
            {"probabilities": {"500": 0.1, "502": 0.1, "503": 0.1}},
            {"outage": True},
            {"probabilities": {"echo-token": 0.5}},
        ):
            emulator.set_faults(**faults)
            emulator.world.update(emulator.world.pick_random(5))
            _, out, err = await ran(emulator, tmp_path / "lake", "sync", *log, **set_run_constants(max_attempts=2))
            streams += out + err
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


async def test_an_echoed_token_is_stored_nowhere(tmp_path: Path, canary: str) -> None:
    """A token in every text, name and key of lists and details, escaped at random, is in no document, row or column."""
    lake = tmp_path / "lake"
    async with _EchoingEmulator(5, seed=SEED, token=canary) as emulator:
        code, out, err = await ran(emulator, lake, "sync", "--json", "--log-file", str(tmp_path / "log.jsonl"))
    assert code == 0, err
    assert "token.redacted" in err
    with opened(lake) as db:
        names = [f'"{name}".{schema}.{table}' for name, schema, table in db.execute(_ALL_TABLES).fetchall()]
        parts = [f"'{path}'" for path in lake.glob("documents/*.parquet")]
        assert len(names) > 30
        assert parts
        stored = "".join(f"{(shown := db.sql(f'FROM {name}')).columns}{shown.fetchall()}" for name in names + parts)
    with closing(sqlite3.connect(lake / "ledger.sqlite")) as ledger:
        stored += "".join(ledger.iterdump())
    assert stored.count("X***") > 500
    decoded = re.sub(r"\\+u([0-9a-f]{4})", lambda escape: chr(int(escape[1], 16)), stored + out + err)
    assert not any(mark in decoded for mark in spellings(canary))


async def test_stock_clients_during_and_across_publishes(tmp_path: Path) -> None:
    """The stock Python and command-line clients of DuckDB query the catalog while a sync runs and after it."""
    catalog = tmp_path / "lake" / "catalog.duckdb"
    async with Emulator(60, seed=SEED) as emulator:
        await ran(emulator, tmp_path / "lake", "sync")
        emulator.world.update(emulator.world.pick_random(30))
        emulator.world.create(10)
        emulator.set_faults(latency_ms=100.0)
        process = await started(emulator, tmp_path / "lake", "sync", SCANLAKE_MAX_CONCURRENCY="4")
        counts = set()
        while process.returncode is None:
            with duckdb.connect(str(catalog), read_only=True) as db:
                files, uploads = (len(db.execute(f"FROM {name}").fetchall()) for name in ("files", "uploads"))
                counts.add((files, uploads > 150))
            counts.add((int(await _cli(catalog, "SELECT count(*) FROM files")), True))
            await asyncio.sleep(0.2)
        assert process.returncode == 0
        await process.communicate()
    assert counts <= {(60, True), (70, True)}
    assert await _cli(catalog, "SELECT count(*) FROM files") == "70"


async def _cli(catalog: Path, question: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *(DUCKDB_CLIENT, "-readonly", "-noheader", "-csv", str(catalog), question), stdout=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate()
    assert process.returncode == 0
    return out.decode().strip()


async def test_stops_on_request(tmp_path: Path) -> None:
    """Ctrl-C, SIGHUP and SIGTERM, once or again, commit what is whole and exit 130 in ten seconds; the next goes on."""
    lake, stops = tmp_path / "lake", ([signal.SIGINT], [signal.SIGHUP], [signal.SIGTERM, signal.SIGTERM, signal.SIGINT])
    async with Emulator(240, seed=SEED) as emulator:
        emulator.set_faults(latency_ms=60.0)
        for at, signals in enumerate(stops, 1):
            process = await started(emulator, lake, "sync", **SMALL)
            while emulator.counts["detail"] < 60 * at:
                await asyncio.sleep(0.02)
            asked_at = time.monotonic()
            for number in signals:
                process.send_signal(number)
                await asyncio.sleep(0.02)
            code, _, err = await ended(process)
            assert time.monotonic() - asked_at < 60
            assert code == 130
            assert "Traceback" not in err
        emulator.set_faults(latency_ms=0.0)
        done, _, _ = await ran(emulator, lake, "sync")
        assert done == 0
        assert emulator.counts["detail"] <= 240 + 2 * 8 * len(stops)
        check_equal(lake, emulator)


async def test_kills(tmp_path: Path) -> None:
    """After kill -9 at random moments the next run repeats only what was not committed, and nothing is lost."""
    lake, dice = tmp_path / "lake", random.Random(draw_seed(__name__))
    files, kills, options, latency_ms = (8_000, 6, {}, 0.0) if SOAKING else (240, 2, SMALL, 20.0)
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
        code, _, _ = await ran(emulator, lake, "sync", **options)
        assert code == 0
        # Each costs at most the batch that was being committed, the one being gathered, and what was on its way.
        assert emulator.counts["detail"] <= files + (0.3 * files if SOAKING else kills * (2 * 25 + 8))
        check_equal(lake, emulator)
    assert [path.name for path in lake.rglob("*.tmp")] == []


async def test_cron_starts_several(tmp_path: Path) -> None:
    """Of syncs that start together one runs; the others exit 5 at once and name the holder."""
    async with Emulator(40, seed=SEED) as emulator:
        emulator.set_faults(latency_ms=400.0)
        processes = [await started(emulator, tmp_path / "lake", "sync", **SMALL) for _ in range(3)]
        results = await asyncio.gather(*(ended(process) for process in processes))
    assert sorted(code for code, _, _ in results) == [0, 5, 5]
    assert all("pid" in err for code, _, err in results if code == 5)
