"""Share links: no e-mail without --send-email, and no link requested twice."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import os
import pty
import sqlite3
from typing import TYPE_CHECKING, Any

import pytest

from pipeline.emulator import Emulator
from pipeline.errors import ScanlakeError, SettingsError
from pipeline.lake.layout import LakeLayout
from pipeline.lake.request_log import open_request_log
from pipeline.shares import ShareOutcome, ShareRun, build_requests, count_recipients, read_share_csv
from schemas.timestamps import SECOND, now_us
from tests.processes import ended, ran, started, started_at
from tests.reports.report_harness import SEED, make_empty_lake, quick_client, sync_lists
from tests.rows import every
from tests.sync.sync_harness import opened

if TYPE_CHECKING:
    from pathlib import Path


async def create_shares(
    emulator: Emulator,
    lake: Path,
    *shares: dict[str, Any],
    send_email: bool = False,
    force_new: bool = False,
    now: int = 0,
) -> list[ShareOutcome]:
    """Create shares, as one run of the command does."""
    now = now or now_us()
    requests = build_requests(shares, send_email=send_email, now=now)
    with open_request_log(LakeLayout(lake)) as request_log:
        client = quick_client(emulator)
        share_run = ShareRun(client, request_log, force_new=force_new)
        async with client:
            await share_run.run(requests, now)
    return share_run.outcomes


def pick_references(emulator: Emulator, count: int) -> list[str]:
    """Return references of the service."""
    return sorted(emulator.world.by_reference)[:count]


async def test_no_email_without_send_email(tmp_path: Path) -> None:
    """Forty links with recipients send no e-mail; with send_email each recipient gets one."""
    async with Emulator(60, seed=SEED) as emulator:
        make_empty_lake(tmp_path / "lake")
        wanted = [
            {"reference": each, "email": f"{n}@x.example"} for n, each in enumerate(pick_references(emulator, 40))
        ]
        quiet = await create_shares(emulator, tmp_path / "lake", *wanted)
        assert {each.state for each in quiet} == {"created"}
        assert len(emulator.shares.by_secret) == 40
        assert emulator.emails == []
        for _ in range(2):
            await create_shares(emulator, tmp_path / "lake", *wanted, send_email=True)
        assert sorted(emulator.emails) == sorted((each["email"], each["reference"]) for each in wanted)


@pytest.mark.parametrize("kind", ["drop-before-status", "drop-mid-headers", "drop-mid-body", "cut-json", "500", "503"])
async def test_a_call_without_response_is_never_repeated(tmp_path: Path, kind: str) -> None:
    """A share whose response is lost is unknown; neither this run nor the next repeats the call."""
    async with Emulator(60, seed=SEED) as emulator:
        make_empty_lake(tmp_path / "lake")
        first, second = pick_references(emulator, 2)
        emulator.script(kind, path="/api/v2/share")
        wanted = ({"reference": first, "email": "a@x.example"}, {"reference": second, "email": "a@x.example"})
        for _ in range(2):
            found = await create_shares(emulator, tmp_path / "lake", *wanted, send_email=True)
            assert found[0].reference == first
            assert found[0].state == "unknown"
        assert emulator.counts["share"] == 2
        assert len(emulator.emails) == (1 if kind in {"500", "503"} else 2)
        renewed = await create_shares(emulator, tmp_path / "lake", wanted[0], send_email=True, force_new=True)
        assert renewed[0].state == "created"


async def test_a_share_that_was_not_sent_is_not_unknown(tmp_path: Path) -> None:
    """Without a connection nothing was sent: the run ends, and the next run creates the link."""
    async with Emulator(60, seed=SEED) as emulator:
        make_empty_lake(tmp_path / "lake")
        reference = pick_references(emulator, 1)[0]
        elsewhere = Emulator(1, seed=SEED)
        async with elsewhere:
            pass
        with pytest.raises(ScanlakeError, match="no connection"):
            await create_shares(elsewhere, tmp_path / "lake", {"reference": reference})
        assert [each.state for each in await create_shares(emulator, tmp_path / "lake", {"reference": reference})] == [
            "created"
        ]


async def test_a_valid_identical_share_is_reused(tmp_path: Path) -> None:
    """The same request reuses the link until it expires; another recipient or `force_new` gets a new link."""
    async with Emulator(60, seed=SEED) as emulator:
        make_empty_lake(tmp_path / "lake")
        reference = pick_references(emulator, 1)[0]
        wish = {"reference": reference, "expires": "2030-01-01T12:00:00Z"}
        (first,) = await create_shares(emulator, tmp_path / "lake", wish)
        (again,) = await create_shares(emulator, tmp_path / "lake", wish)
        assert (first.state, again.state, again.share_url) == ("created", "reused", first.share_url)
        (other,) = await create_shares(emulator, tmp_path / "lake", {**wish, "email": "b@x.example"})
        (renewed,) = await create_shares(emulator, tmp_path / "lake", wish, force_new=True)
        assert len({first.share_url, other.share_url, renewed.share_url}) == 3
        with sqlite3.connect(tmp_path / "lake" / "ledger.sqlite") as ledger:
            ledger.execute("UPDATE share SET expires_at = ?", (now_us() - SECOND,))
        ledger.close()
        (after,) = await create_shares(emulator, tmp_path / "lake", wish)
        assert after.state == "created"
        assert emulator.counts["share"] == 4


async def test_each_reference_has_its_own_error(tmp_path: Path) -> None:
    """NO FILE FOUND and INVALID TIMEZONE are reported by reference; the others are created."""
    async with Emulator(60, seed=SEED) as emulator:
        make_empty_lake(tmp_path / "lake")
        one, two = pick_references(emulator, 2)
        found = await create_shares(
            emulator,
            tmp_path / "lake",
            {"reference": "NOPE"},
            {"reference": one, "timezone": "Mars/Olympus"},
            {"reference": two},
        )
    assert [(each.state, each.error) for each in found] == [
        ("failed", "NO FILE FOUND"),
        ("failed", "INVALID TIMEZONE"),
        ("created", None),
    ]


async def test_a_refused_token_stops_the_run(tmp_path: Path) -> None:
    """The first 401 stops the run with exit 3; the links created before are printed and kept."""
    async with Emulator(60, seed=SEED) as emulator:
        await sync_lists(emulator, tmp_path / "lake")
        emulator.script("401", path="/api/v2/share", skip=2, times=100)
        process = await started(emulator, tmp_path / "lake", "share", *pick_references(emulator, 10), "--json")
        code, out, err = await ended(process)
        assert (code, emulator.counts["share"]) == (3, 3)
        assert err.count(",created,") == 2
        assert json.loads(out)["exit_code"] == 3
    with opened(tmp_path / "lake") as db:
        assert db.execute("SELECT state, count(*) FROM meta.shares GROUP BY 1").fetchall() == [("created", 2)]


async def test_a_killed_run(tmp_path: Path) -> None:
    """After SIGKILL each link was requested at most once; the next run reports the one in flight as unknown."""
    async with Emulator(60, seed=SEED) as emulator:
        await sync_lists(emulator, tmp_path / "lake")
        given = pick_references(emulator, 12)
        emulator.script("stall", path="/api/v2/share", skip=5)
        process = await started(emulator, tmp_path / "lake", "share", *given)
        while emulator.injected_faults["stall"] < 1:
            await asyncio.sleep(0.01)
        process.kill()
        await process.communicate()
        code, out, _ = await ran(emulator, tmp_path / "lake", "share", *given, "--format", "json")
        assert code == 4
        states = {each["reference"]: each["state"] for each in json.loads(out)["shares"]}
        assert [states[each] for each in given] == ["reused"] * 5 + ["unknown"] + ["created"] * 6
        assert sorted(emulator.shares.by_secret.values()) == given
    with opened(tmp_path / "lake") as db:
        found = db.execute("SELECT state, count(*) FROM meta.shares GROUP BY 1 ORDER BY 1").fetchall()
    assert found == [("created", 11), ("unknown", 1)]


async def test_emails_need_a_confirmation(tmp_path: Path) -> None:
    """A script needs --yes with --send-email; without it nothing is shared and the number is printed."""
    async with Emulator(60, seed=SEED) as emulator:
        await sync_lists(emulator, tmp_path / "lake")
        table = tmp_path / "wanted.csv"
        rows = [f"{each},r{n % 3}@x.example" for n, each in enumerate(pick_references(emulator, 7))]
        table.write_text("reference,email\n" + "\n".join(rows) + "\n")
        command = ("share", "--file", str(table), "--send-email", "--format", "csv")
        code, _, err = await ran(emulator, tmp_path / "lake", *command)
        assert code == 2
        assert "7 links would be e-mailed to 3 recipients" in err
        assert (emulator.counts["share"], emulator.emails) == (0, [])
        code, out, _ = await ran(emulator, tmp_path / "lake", *command, "--yes")
        assert code == 0
        assert len(emulator.emails) == 7
        assert [row["state"] for row in csv.DictReader(io.StringIO(out))] == ["created"] * 7


@pytest.mark.parametrize(("answer", "code", "sent"), [(b"n\n", 2, 0), (b"y\n", 0, 1)])
async def test_a_terminal_prompts_before_emails(tmp_path: Path, answer: bytes, code: int, sent: int) -> None:
    """On a terminal the command prints the number of recipients and waits for a yes."""
    async with Emulator(60, seed=SEED) as emulator:
        await sync_lists(emulator, tmp_path / "lake")
        ours, theirs = pty.openpty()
        try:
            command = ("share", pick_references(emulator, 1)[0], "--send-email", "--email", "a@x.example")
            process = await started_at(theirs, emulator, tmp_path / "lake", *command)
            os.write(ours, answer)
            found, _, err = await ended(process)
        finally:
            os.close(ours)
            os.close(theirs)
        assert "E-mail 1 link to 1 recipient?" in err
        assert (found, len(emulator.emails), len(emulator.shares.by_secret)) == (code, sent, sent)


async def test_shares_by_condition(tmp_path: Path) -> None:
    """--where shares each reference of the selected files once, although several files can have it."""
    async with Emulator(80, seed=SEED) as emulator:
        await sync_lists(emulator, tmp_path / "lake")
        code, out, _ = await ended(
            await started(emulator, tmp_path / "lake", "share", "--where", "TRUE", "--format", "json")
        )
        assert code == 0
        assert sorted(each["reference"] for each in json.loads(out)["shares"]) == sorted(emulator.world.by_reference)
        assert len(emulator.world.by_reference) < 80


async def test_everything_that_was_sent_is_recorded(tmp_path: Path) -> None:
    """An auditor reads in meta.shares what was sent: both recipients, languages, time zone and user."""
    async with Emulator(60, seed=SEED) as emulator:
        await sync_lists(emulator, tmp_path / "lake")
        reference = pick_references(emulator, 1)[0]
        options = ("--email", "a@x.example", "--dl", "team-7", "--language", "de", "--timezone", "Europe/Berlin")
        command = ("share", reference, *options, "--username", "audit", "--json")
        code, out, _ = await ran(emulator, tmp_path / "lake", *command)
        assert code == 0
        (share,) = json.loads(out)["shares"]
        assert (share["email"], share["dl"]) == ("a@x.example", "team-7")
        table = (await ran(emulator, tmp_path / "lake", *command[:-1]))[1]
        assert table.splitlines()[-1] == "1 reused; no e-mail was sent: that needs --send-email"
        table = (await ran(emulator, tmp_path / "lake", "share", reference))[1]
        assert "e-mail" not in table
    with opened(tmp_path / "lake") as db:
        columns = "reference, email, dl, language, lang, timezone, username"
        sent = db.execute(f"SELECT {columns} FROM meta.shares WHERE email IS NOT NULL").fetchall()
    assert sent == [(reference, "a@x.example", "team-7", "de", "de", "Europe/Berlin", "audit")]


async def test_a_reference_of_several_files_is_a_warning_before_the_share(tmp_path: Path) -> None:
    """The service picks one of several files: stderr names the reference and their number before the link is made."""
    async with Emulator(80, seed=SEED) as emulator:
        await sync_lists(emulator, tmp_path / "lake")
        counts = {name: len(keys) for name, keys in emulator.world.by_reference.items()}
        shared = next(name for name, count in sorted(counts.items()) if count > 1)
        single = next(name for name, count in sorted(counts.items()) if count == 1)
        emulator.reset()
        code, _, err = await ran(emulator, tmp_path / "lake", "share", shared, single)
        assert code == 0
        (line,) = [line for line in err.splitlines() if "share.reference_ambiguous" in line]
        assert shared in line
        assert f"files={counts[shared]}" in line
        paths = [request.raw_path.partition("?")[0].rpartition("/")[2] for request in emulator.log]
        assert paths == ["files", "share", "files", "share"]
        emulator.reset()
        code, _, err = await ran(emulator, tmp_path / "lake", "share", shared, single)
        assert (code, emulator.requests) == (0, 0)  # both links are reused


@every(
    ("text", "says"),
    [
        ("name,email\nA,b@x\n", "unknown column 'name'"),
        ("email\nb@x\n", "reference"),
        ("reference,email\nA\n", "line 2"),
        ("reference,email\nA,b,c\n", "line 2"),
        ('reference,email\n"A"b,c\n', "line 2"),
    ],
)
def test_a_malformed_csv_is_refused(text: str, says: str) -> None:
    """The error has the line number."""
    with pytest.raises(SettingsError, match=says) as caught:
        read_share_csv(io.StringIO(text), "--file x.csv", {})
    assert ("Fix this line" in caught.value.hint) == ("line 2" in says)
    assert "scanlake.toml" not in caught.value.hint


@every(
    ("wanted", "says"),
    [
        ({"reference": "A" * 256}, "reference"),
        ({"reference": ""}, "Share 2: reference"),
        ({"reference": "A", "language": "deutsch"}, "language"),
        ({"reference": "A", "expires": "soon"}, "not a date or time"),
        ({"reference": "A", "expires": "2020-01-01"}, "in the past"),
    ],
)
def test_invalid_requests_are_not_sent(wanted: dict[str, Any], says: str) -> None:
    """All requests are validated before the first call, and the message shows no value."""
    for source in (None, "x.csv"):
        with pytest.raises(SettingsError, match=says) as caught:
            build_requests([{"reference": "fine"}, wanted], send_email=False, now=now_us(), source=source)
        assert "scanlake.toml" not in caught.value.hint
        if says.endswith(("reference", "language")):
            assert ("row 2 below the header of x.csv" in caught.value.hint) == (source is not None)


def test_build_requests_and_count_recipients() -> None:
    """Equal lines are one share; an address counts once in upper and lower case; an e-mail needs a recipient."""
    wanted = [
        {"reference": "A", "email": "a@x"},
        {"reference": "A", "email": "a@x"},
        {"reference": "B", "email": "A@X"},
        {"reference": "B", "dl": "team"},
    ]
    requests = build_requests(wanted, send_email=True, now=now_us())
    assert len(requests) == 3
    assert count_recipients(requests) == (1, 1)
    with pytest.raises(SettingsError, match="without a recipient"):
        build_requests([{"reference": "A"}], send_email=True, now=now_us())
