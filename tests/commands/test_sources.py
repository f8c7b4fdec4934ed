"""Several services in one settings file: one chosen, or all side by side."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import pytest

from pipeline.cli import sources as sources_module
from pipeline.emulator import Emulator
from pipeline.emulator.options import Faults, ImageOptions
from pipeline.errors import ExitCode, SettingsError, most_severe
from pipeline.processes.children import ChildResult
from pipeline.settings.layers import load, load_all_sources, load_layers, source_names
from pipeline.settings.settings import load_token
from tests.commands.cli_process import called, started
from tests.rows import every
from tests.sync.sync_harness import opened, synced

if TYPE_CHECKING:
    from tests.processes import Answer, Scanlake

TWO = """
max_concurrency = 2
lake = "lakes"
log_file = "run.log"
[sources.north]
base_url = "https://north.example"
max_concurrency = 3
[sources.south]
base_url = "https://south.example"
lake = "own"
token_file = "token"
"""


def write(text: str) -> None:
    """The settings file of the test's folder."""
    Path("scanlake.toml").write_text(text, encoding="utf-8")


def test_a_source_has_what_stands_above_and_its_own() -> None:
    """What stands above the tables holds for all; a table wins over it, and each has a lake and a log of its own."""
    write(TWO)
    north, south = (load(None, {}, source=name) for name in ("north", "south"))
    assert source_names(None) == ["north", "south"]
    assert (north.base_url, north.max_concurrency, north.lake) == ("https://north.example", 3, Path("lakes/north"))
    assert (south.base_url, south.max_concurrency, south.lake) == ("https://south.example", 2, Path("own"))
    assert (north.log_file, south.log_file) == (Path("run-north.log"), Path("run-south.log"))
    origins = load_layers(None, {"lang": "de"}, source="north")
    assert [origins.origin(name) for name in ("max_concurrency", "lake", "lang", "fetch_details")] == [
        *("source", "file", "flag", "default")
    ]
    assert load(None, {"lake": Path("x")}, source="north").lake == Path("x")
    assert load(None, {"lake": Path("x")}).max_concurrency == 2, "--lake needs no source"


def test_the_environment_reaches_a_source_but_not_what_tells_it_apart(
    monkeypatch: pytest.MonkeyPatch, canary: str
) -> None:
    """A variable wins over any table, but for address, lake and token: it cannot mean several services.

    SCANLAKE_TOKEN_NAME is a source's token, then its token_file, and SCANLAKE_TOKEN where it has neither.
    """
    write(TWO)
    Path("token").write_text(canary)
    Path("token").chmod(0o600)
    given = {"MAX_CONCURRENCY": "7", "BASE_URL": "https://other.example", "LAKE": "elsewhere", "TOKEN": "of-all"}
    for name, value in given.items():
        monkeypatch.setenv(f"SCANLAKE_{name}", value)
    north, south = (load(None, {}, source=name) for name in ("north", "south"))
    assert (north.max_concurrency, north.base_url, north.lake) == (7, "https://north.example", Path("elsewhere/north"))
    assert (south.max_concurrency, south.lake) == (7, Path("own"))
    assert (load_token(north), load_token(south)) == ("of-all", canary)
    monkeypatch.setenv("SCANLAKE_TOKEN_SOUTH", "of-south")
    assert [load_token(load(None, {}, source=name)) for name in ("north", "south")] == ["of-all", "of-south"]
    monkeypatch.setenv("SCANLAKE_TOKEN_SUOTH", "x")
    with pytest.raises(SettingsError, match="SCANLAKE_TOKEN_SUOTH"):
        load(None, {}, source="south")


def test_one_source_needs_not_be_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A single source is taken by itself; of several one has to be named, by the flag or SCANLAKE_SOURCE."""
    with pytest.raises(SettingsError, match="The settings file has no sources"):
        load_all_sources(None)
    write('[sources.only]\nbase_url = "https://only.example"\n')
    assert load(None, {}).lake == Path("lake/only")
    write(TWO)
    with pytest.raises(SettingsError, match="several sources: north, south") as caught:
        load(None, {})
    assert "--source NAME" in caught.value.hint
    monkeypatch.setenv("SCANLAKE_SOURCE", "south")
    assert load(None, {}).lake == Path("own")


@every(
    ("text", "source", "says"),
    [
        (TWO, "nort", "No source nort in scanlake.toml. Did you mean north"),
        (TWO, "0/2", "No source 0/2 in scanlake.toml"),
        ("max_concurrency = 1", "north", "It has no .sources.NAME. tables"),
        ('sources = "x"', None, "sources must be tables"),
        ("[sources.a]\nconcurency = 3", "a", "unknown setting sources.a.concurency .*, did you mean max_concurrency"),
        (
            "[sources.a]\nmax_concurrency = 0",
            "a",
            r"sources.a.max_concurrency \(scanlake.toml\) must be a whole number",
        ),
        ('[sources.a]\ntoken = "x"', "a", "the token must not be in a settings file"),
        ("[sources.file]\n", "file", "'file' is not a valid name of a source"),
        ("[sources.memory]\n", "memory", "'memory' is not a valid name of a source"),
        ('[sources."a/b"]\n', None, "'a/b' is not a valid name of a source"),
        ("[sources.a-b]\n", "a-b", "'a-b' is not a valid name of a source"),
        ("[sources.North]\n", "North", "'North' is not a valid name of a source"),
        ('[sources.a]\nlake = "x"\n[sources.b]\nlake = "./x"\n', "a", "Sources a and b in .* have the same lake"),
        ('[sources.a]\n[sources.b]\nlake = "lake/a"\n', "b", "have the same lake"),
        ("[sources.a]\nlake = 5\n[sources.b]", "a", r"lake \(scanlake.toml\) must be a path"),
        ("log_file = [1]\n[sources.a]\n[sources.b]", "a", r"log_file \(scanlake.toml\) must be a path"),
        ('metrics_file = "a\\u0000b"', None, r"metrics_file \(scanlake.toml\) must be a path"),
        ('[sources.a]\nlog_file = " "', "a", r"log_file \(scanlake.toml\) is empty"),
    ],
)
def test_a_mistake_in_the_sources_is_one_clear_line(text: str, source: str | None, says: str) -> None:
    """What is wrong with a source is named, with its table and what would be right."""
    write(text)
    with pytest.raises(SettingsError, match=f"(?i){says}") as caught:
        load(None, {}, source=source)
    assert caught.value.hint
    assert "\n" not in caught.value.message


@every(
    "codes, worst",
    [
        ([0, 4, 5, 1], ExitCode.FAILED),
        ([3, 9, 1], ExitCode.DAMAGE),
        ([4, 0], ExitCode.REJECTS),
        ([2, 130], ExitCode.INTERRUPTED),
        ([2, 3, 6], ExitCode.AUTH),
        ([2, 8, 1], ExitCode.USAGE),
        ([3, 7, 8], ExitCode.STORAGE),
        ([77], ExitCode.FAILED),
        ([], ExitCode.OK),
    ],
)
def test_the_worst_code_is_what_needs_somebody_most(codes: list[int], worst: ExitCode) -> None:
    """Damage outweighs what mends itself, whatever the numbers say."""
    assert most_severe(codes) == worst


def sources(*emulators: Emulator, **more: str) -> dict[str, str]:
    """Write a table for each emulator; returns the variables with their tokens."""
    tables = [f'[sources.s{place}]\nbase_url = "{each.base_url}"' for place, each in enumerate(emulators)]
    write("\n".join([*(f"{name} = {value}" for name, value in more.items()), *tables]))
    return {f"SCANLAKE_TOKEN_S{place}": each.token for place, each in enumerate(emulators)}


def test_flags_of_one_source_and_of_all(main: Scanlake) -> None:
    """--all together with a flag that names one service or lake is refused."""
    write(TWO)
    for flag in ("--source north", "--lake north", "--log-file north", "--set base_url=north", "--set token_file=x"):
        refused = main("sync", "--all", *flag.split())
        assert refused.code == 2
        assert f"--all and {re.sub('[ =](north|x)$', '', flag)} exclude each other" in refused.err


async def test_sigterm_is_passed_on_and_waited_for(tmp_path: Path) -> None:
    """A signal ends every source cleanly: what was whole is committed, and a source not begun is named."""
    slow = Faults(latency_ms=150.0)
    async with (
        Emulator(400, faults=slow) as first,
        Emulator(400, faults=slow) as second,
        Emulator(400, faults=slow) as third,
    ):
        tokens = sources(first, second, third, max_concurrency="2")
        process = await started(tmp_path, "sync", "--all", "--json", **tokens)
        ledgers = [tmp_path / "lake" / name / "ledger.sqlite" for name in ("s0", "s1")]
        async with asyncio.timeout(200):
            while not all(list(ledger.parent.glob("documents/*.parquet")) for ledger in ledgers):
                await asyncio.sleep(0.05)
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        out, err = await process.communicate()
    assert process.returncode == 130, err.decode()
    assert time.monotonic() - began < 20
    ended = json.loads(out)["sources"]
    assert {name: each["exit_code"] for name, each in ended.items()} == dict.fromkeys(("s0", "s1", "s2"), 130)
    for lake in ("s0", "s1"):
        with duckdb.connect(str(tmp_path / "lake" / lake / "catalog.duckdb"), read_only=True) as db:
            assert db.sql("SELECT state FROM meta.runs").fetchall() == [("interrupted",)]
            assert db.sql("SELECT count(*) > 0 FROM files").fetchall() == [(True,)]


def test_a_killed_source_is_told(monkeypatch: pytest.MonkeyPatch, main: Scanlake) -> None:
    """What a process printed before it was killed is shown, also if that ends within a character."""
    write(TWO)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2})
    assert sources_module.count_usable_cores() == 3

    async def run_command(argv: list[str], **_: object) -> ChildResult:
        return ChildResult(-9, f"of {argv[-1]}: \u00e9".encode()[:-1], "")

    monkeypatch.setattr(sources_module, "run_command", run_command)
    told = main("status", "--all")
    assert told.code == 130
    assert told.out == "north: exit code 130\n  of north: \ufffdsouth: exit code 130\n  of south: \ufffd"


async def test_syncs_of_all_sources(tmp_path: Path) -> None:
    """Each source has a heading with its code, the code is the worst, and none gets another one's token.

    After a first sync that failed there is no lake; while later syncs fail, status ends with 1.
    """
    async with Emulator(40, token="of-the-first") as first, Emulator(20, token="of-the-second") as second:
        tokens = sources(first, second, request_timeout_seconds="3")

        async def ask(command: str, **others: str) -> Answer:
            return await called(tmp_path, *command.split(), **{"SCANLAKE_TOKEN": "general", **tokens, **others})

        status = await ask("status --all")
        assert (status.code, status.out) == (2, "s0: exit code 2\ns1: exit code 2\n")
        for name in ("s0", "s1"):
            told = f"No lake at {tmp_path}/lake/{name}. Run `scanlake sync --source {name}` first, or correct --lake."
            assert f"{name}: scanlake: {told}\n" in status.err
            assert told.endswith((await ask("status --all --json")).json["sources"][name]["hint"])
        mixed = await ask("sync --all", SCANLAKE_TOKEN_S0="another-token", SCANLAKE_TOKEN_S1="two words")
        assert (mixed.code, mixed.out) == (3, "s0: exit code 3\ns1: exit code 2\n")
        assert "s1: scanlake: SCANLAKE_TOKEN_S1 holds white space." in mixed.err
        for command in ("status --all", "status --source s0"):
            status = await ask(command)
            assert status.code == 2
            assert f"No lake at {tmp_path}/lake/s0. " in status.err
        done = await ask("sync --all --json --log-json")
        assert done.code == 0, done.err
        assert {name: each["details_fetched"] for name, each in done.json["sources"].items()} == {"s0": 40, "s1": 20}
        assert {json.loads(line)["source"] for line in done.err.splitlines()} == {"s0", "s1"}
        second.set_faults(outage=True)
        assert (await ask("sync --all")).code == 1
        shown = (await ask("status --all")).out
        failing = await ask("status --all --json")
    assert shown.startswith("s0: exit code 0\n  Source s0: 40 files of ")
    assert "\ns1: exit code 1\n  Source s1: 20 files of " in shown
    assert shown.count("  Failing: the last run failed: ") == 1
    assert "Never verified; `scanlake verify --source s0` detects deletions." in shown
    assert (failing.code, failing.json["sources"].keys()) == (1, {"s0", "s1"})
    assert [failing.json["sources"][name]["ok"] for name in ("s0", "s1")] == [True, False]
    assert failing.json["sources"]["s1"]["failures"]["count"] == 1


async def test_commands_take_all_sources(tmp_path: Path) -> None:
    """With --all each command prints what it prints for each source, and ends with the most severe code."""
    async with Emulator(20) as north, Emulator(30, seed=5) as south:
        tokens = sources(north, south, request_timeout_seconds="3")
        for name, emulator in (("s0", north), ("s1", south)):
            await synced(emulator, tmp_path / "lake" / name)
        verified = await called(tmp_path, "verify", "--all", "--dry-run", **tokens)
        south.set_faults(outage=True)
        failing = await called(tmp_path, "check", "--all", **tokens)
    assert verified.code == 0, verified.err
    for name, files in (("s0", 20), ("s1", 30)):
        assert f"{name}: exit code 0\n  {files} files in the service's list, {files} in the lake\n" in verified.out
    assert failing.code == 1
    assert failing.out.startswith("s0: exit code 0\n  ok ")
    assert "\n  ERROR     service   " in failing.out


async def test_all_fetch_their_images(tmp_path: Path) -> None:
    """With images_after_sync each source gets its own images; an image host that is down fails no sync."""
    options = ImageOptions()
    async with (
        Emulator(5, token="of-the-first", images=options) as first,
        Emulator(4, token="of-the-second", images=options) as second,
        Emulator(2, token="of-the-third", images=options) as third,
    ):
        tokens = sources(first, second, third, images_after_sync="true", request_timeout_seconds="3")
        assert third.images is not None
        third.images.set_faults(probabilities={"refuse": 1.0})
        done = await called(tmp_path, "sync", "--all", "--json", SCANLAKE_TOKEN="general", **tokens)
    assert done.code == 0, done.err
    images = {name: each["images"] for name, each in done.json["sources"].items()}
    assert images["s0"] == images["s1"] == {"exit_code": 0, "problem": None}
    assert images["s2"]["exit_code"] == 1
    assert "image host is down" in images["s2"]["problem"]
    for emulator, name in ((first, "s0"), (second, "s1")):
        assert emulator.images is not None
        truth = [row["sha256"] for row in emulator.images.truth() if row["kind"] == "image"]
        with opened(tmp_path / "lake" / name) as db:
            assert db.execute("SELECT count(*) FROM images").fetchall() == [(len(truth),)]
            assert len(db.execute("FROM images JOIN uploads USING (file_id)").fetchall()) > 0
        assert emulator.images.leaks == []
        lake = tmp_path / "lake" / name
        assert {path.parent.name + path.stem for path in lake.glob("images/??/*")} == set(truth)
