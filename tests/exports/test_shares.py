"""Share links: none e-mailed unless asked for, none asked for twice."""

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
from pipeline.exports.jobs import now_us
from pipeline.exports.shares import ShareOutcome, Sharing, read_file, recipients, requests_of
from pipeline.lake.files import Layout
from pipeline.lake.orders import order_book
from schemas.instants import SECOND
from tests.exports.exporting import SEED, listed, quick_client
from tests.processes import ended, started, started_at
from tests.sync.running import opened

if TYPE_CHECKING:
    from pathlib import Path


async def shared(
    emulator: Emulator, lake: Path, *wanted: dict[str, Any], send_email: bool = False, renew: bool = False, now: int = 0
) -> list[ShareOutcome]:
    """Create shares, as one run of the command would."""
    now = now or now_us()
    requests = requests_of(wanted, send_email=send_email, now=now)
    with order_book(Layout(lake)) as book:
        client = quick_client(emulator)
        work = Sharing(client, book, renew=renew)
        async with client:
            await work.run(requests, now)
    return work.outcomes


def references(emulator: Emulator, count: int) -> list[str]:
    """Some references that the service knows."""
    return sorted(emulator.world.by_reference)[:count]


async def test_no_e_mail_unless_asked_for(tmp_path: Path) -> None:
    """Forty links with recipients named send nothing; with send_email each recipient is written to once."""
    async with Emulator(60, seed=SEED) as emulator:
        await listed(emulator, tmp_path / "lake")
        wanted = [{"reference": each, "email": f"{n}@x.example"} for n, each in enumerate(references(emulator, 40))]
        quiet = await shared(emulator, tmp_path / "lake", *wanted)
        assert {each.state for each in quiet} == {"created"}
        assert len(emulator.shares.made) == 40
        assert emulator.emails == []
        for _ in range(2):
            await shared(emulator, tmp_path / "lake", *wanted, send_email=True)
        assert sorted(emulator.emails) == sorted((each["email"], each["reference"]) for each in wanted)


@pytest.mark.parametrize("kind", ["drop-before-status", "drop-mid-headers", "drop-mid-body", "cut-json", "500", "503"])
async def test_a_dropped_answer_is_never_repeated(tmp_path: Path, kind: str) -> None:
    """A share whose answer is lost is unknown, with its reference; neither this run nor the next asks again."""
    async with Emulator(60, seed=SEED) as emulator:
        await listed(emulator, tmp_path / "lake")
        first, second = references(emulator, 2)
        emulator.script(kind, path="/api/v2/share")
        wanted = ({"reference": first, "email": "a@x.example"}, {"reference": second, "email": "a@x.example"})
        for _ in range(2):
            found = await shared(emulator, tmp_path / "lake", *wanted, send_email=True)
            assert found[0].reference == first
            assert found[0].state == "unknown"
        assert emulator.counts["share"] == 2
        assert len(emulator.emails) == (1 if kind in {"500", "503"} else 2)
        renewed = await shared(emulator, tmp_path / "lake", wanted[0], send_email=True, renew=True)
        assert renewed[0].state == "created"


async def test_a_share_that_never_left_is_not_unknown(tmp_path: Path) -> None:
    """Without a connection nothing was asked: the run ends, and the next one creates the link."""
    async with Emulator(60, seed=SEED) as emulator:
        await listed(emulator, tmp_path / "lake")
        reference = references(emulator, 1)[0]
        elsewhere = Emulator(1, seed=SEED)
        async with elsewhere:
            pass
        with pytest.raises(ScanlakeError, match="no connection"):
            await shared(elsewhere, tmp_path / "lake", {"reference": reference})
        assert [each.state for each in await shared(emulator, tmp_path / "lake", {"reference": reference})] == [
            "created"
        ]


async def test_a_valid_identical_share_is_used_again(tmp_path: Path) -> None:
    """The same request gives the same link until it expires; another recipient, or `renew`, gets one of its own."""
    async with Emulator(60, seed=SEED) as emulator:
        await listed(emulator, tmp_path / "lake")
        reference = references(emulator, 1)[0]
        wish = {"reference": reference, "expires": "2030-01-01T12:00:00Z"}
        (first,) = await shared(emulator, tmp_path / "lake", wish)
        (again,) = await shared(emulator, tmp_path / "lake", wish)
        assert (first.state, again.state, again.share_url) == ("created", "reused", first.share_url)
        (other,) = await shared(emulator, tmp_path / "lake", {**wish, "email": "b@x.example"})
        (renewed,) = await shared(emulator, tmp_path / "lake", wish, renew=True)
        assert len({first.share_url, other.share_url, renewed.share_url}) == 3
        with sqlite3.connect(tmp_path / "lake" / "ledger.sqlite") as ledger:
            ledger.execute("UPDATE share SET expires_at = ?", (now_us() - SECOND,))
        ledger.close()
        (after,) = await shared(emulator, tmp_path / "lake", wish)
        assert after.state == "created"
        assert emulator.counts["share"] == 4


async def test_each_reference_has_its_own_error(tmp_path: Path) -> None:
    """NO FILE FOUND and INVALID TIMEZONE are told beside the reference; the others are created."""
    async with Emulator(60, seed=SEED) as emulator:
        await listed(emulator, tmp_path / "lake")
        one, two = references(emulator, 2)
        found = await shared(
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


async def test_unauthorized_stops(tmp_path: Path) -> None:
    """The first 401 ends it with exit 3; what was created before is told and kept."""
    async with Emulator(60, seed=SEED) as emulator:
        await listed(emulator, tmp_path / "lake")
        emulator.script("401", path="/api/v2/share", skip=2, times=100)
        process = await started(emulator, tmp_path / "lake", "share", *references(emulator, 10), "--json")
        code, out, err = await ended(process)
        assert (code, emulator.counts["share"]) == (3, 3)
        assert err.count(",created,") == 2
        assert json.loads(out)["exit_code"] == 3
    with opened(tmp_path / "lake") as db:
        assert db.execute("SELECT state, count(*) FROM meta.shares GROUP BY 1").fetchall() == [("created", 2)]


async def test_killed_in_between(tmp_path: Path) -> None:
    """After kill -9 each link was asked for at most once; the one under way is named as unknown by the next run."""
    async with Emulator(60, seed=SEED) as emulator:
        await listed(emulator, tmp_path / "lake")
        given = references(emulator, 12)
        emulator.script("stall", path="/api/v2/share", skip=5)
        process = await started(emulator, tmp_path / "lake", "share", *given)
        while emulator.struck["stall"] < 1:
            await asyncio.sleep(0.01)
        process.kill()
        await process.communicate()
        code, out, _ = await ended(await started(emulator, tmp_path / "lake", "share", *given, "--format", "json"))
        assert code == 4
        states = {each["reference"]: each["state"] for each in json.loads(out)["shares"]}
        assert [states[each] for each in given] == ["reused"] * 5 + ["unknown"] + ["created"] * 6
        assert sorted(share.reference for share in emulator.shares.made.values()) == given
    with opened(tmp_path / "lake") as db:
        found = db.execute("SELECT state, count(*) FROM meta.shares GROUP BY 1 ORDER BY 1").fetchall()
    assert found == [("created", 11), ("unknown", 1)]


async def test_e_mails_need_a_second_word(tmp_path: Path) -> None:
    """With --send-email a script must say --yes; without it nothing is shared and the number is named."""
    async with Emulator(60, seed=SEED) as emulator:
        await listed(emulator, tmp_path / "lake")
        table = tmp_path / "wanted.csv"
        rows = [f"{each},r{n % 3}@x.example" for n, each in enumerate(references(emulator, 7))]
        table.write_text("reference,email\n" + "\n".join(rows) + "\n")
        command = ("share", "--file", str(table), "--send-email", "--format", "csv")
        code, _, err = await ended(await started(emulator, tmp_path / "lake", *command))
        assert code == 2
        assert "7 links go to 3 recipients" in err
        assert (emulator.counts["share"], emulator.emails) == (0, [])
        code, out, _ = await ended(await started(emulator, tmp_path / "lake", *command, "--yes"))
        assert code == 0
        assert len(emulator.emails) == 7
        assert [row["state"] for row in csv.DictReader(io.StringIO(out))] == ["created"] * 7


@pytest.mark.parametrize(("says", "code", "sent"), [(b"n\n", 2, 0), (b"y\n", 0, 1)])
async def test_a_person_is_asked(tmp_path: Path, says: bytes, code: int, sent: int) -> None:
    """On a terminal the number of recipients is named and a yes awaited."""
    async with Emulator(60, seed=SEED) as emulator:
        await listed(emulator, tmp_path / "lake")
        ours, theirs = pty.openpty()
        try:
            command = ("share", references(emulator, 1)[0], "--send-email", "--email", "a@x.example")
            process = await started_at(theirs, emulator, tmp_path / "lake", *command)
            os.write(ours, says)
            found, _, err = await ended(process)
        finally:
            os.close(ours)
            os.close(theirs)
        assert "1 link go to 1 recipient. Send them?" in err
        assert (found, len(emulator.emails), len(emulator.shares.made)) == (code, sent, sent)


async def test_by_condition(tmp_path: Path) -> None:
    """--where shares each reference of the files it names once, although several files may bear it."""
    async with Emulator(80, seed=SEED) as emulator:
        await listed(emulator, tmp_path / "lake")
        code, out, _ = await ended(
            await started(emulator, tmp_path / "lake", "share", "--where", "TRUE", "--format", "json")
        )
        assert code == 0
        assert sorted(each["reference"] for each in json.loads(out)["shares"]) == sorted(emulator.world.by_reference)
        assert len(emulator.world.by_reference) < 80


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("name,email\nA,b@x\n", "unknown column 'name'"),
        ("email\nb@x\n", "reference"),
        ("reference,email\nA\n", "line 2"),
        ("reference,email\nA,b,c\n", "line 2"),
        ('reference,email\n"A"b,c\n', "line 2"),
    ],
)
def test_a_table_that_is_none_is_refused_before_anything_is_shared(text: str, says: str) -> None:
    """What is wrong is named with its line."""
    with pytest.raises(SettingsError, match=says) as caught:
        read_file(io.StringIO(text), "--file x.csv", {})
    assert ("Mend that line" in caught.value.remedy) == ("line 2" in says)
    assert "scanlake.toml" not in caught.value.remedy


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        ({"reference": "A" * 256}, "reference"),
        ({"reference": ""}, "share 2: reference"),
        ({"reference": "A", "language": "deutsch"}, "language"),
        ({"reference": "A", "expires": "soon"}, "not a moment"),
        ({"reference": "A", "expires": "2020-01-01"}, "in the past"),
    ],
)
def test_what_the_interface_forbids_is_not_sent(wanted: dict[str, Any], says: str) -> None:
    """Every request is checked before the first is made, and the message shows no value."""
    for source in (None, "x.csv"):
        with pytest.raises(SettingsError, match=says) as caught:
            requests_of([{"reference": "fine"}, wanted], send_email=False, now=now_us(), source=source)
        assert "scanlake.toml" not in caught.value.remedy
        if says.endswith(("reference", "language")):
            assert ("row 2 below the head of x.csv" in caught.value.remedy) == (source is not None)


def test_requests_are_made_once_and_count_their_recipients() -> None:
    """Repeated lines are one share; an address counts once however it is spelled; an e-mail needs somebody."""
    wanted = [
        {"reference": "A", "email": "a@x"},
        {"reference": "A", "email": "a@x"},
        {"reference": "B", "email": "A@X"},
        {"reference": "B", "dl": "team"},
    ]
    requests = requests_of(wanted, send_email=True, now=now_us())
    assert len(requests) == 3
    assert recipients(requests) == (1, 1)
    with pytest.raises(SettingsError, match="nobody"):
        requests_of([{"reference": "A"}], send_email=True, now=now_us())
