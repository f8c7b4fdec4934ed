"""Share links: no e-mail without --send-email, and no link requested twice."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from pipeline.emulator import Emulator
from pipeline.errors import ExitCode, ScanlakeError, SettingsError
from pipeline.lake.ledger.request_log import open_request_log
from pipeline.lake.storage.layout import LakeLayout
from pipeline.reports.shares import ShareOutcome, ShareRun, build_requests
from schemas.timestamps import SECOND, now_us
from tests.processes import ended, started_at
from tests.reports.report_harness import quick_client
from tests.rows import every
from tests.sync.sync_harness import opened

if TYPE_CHECKING:
    from pathlib import Path

    from tests.reports.report_harness import Scene


async def create_shares(
    emulator: Emulator, lake: Path, *wanted: dict[str, Any], send_email: bool = False, force_new: bool = False
) -> list[ShareOutcome]:
    """Create shares, as one run of the command does."""
    now = now_us()
    requests = [
        request
        for share in map(dict, wanted)
        for request in build_requests([share.pop("reference")], send_email=send_email, now=now, **share)
    ]
    with open_request_log(LakeLayout(lake)) as request_log:
        share_run = ShareRun(quick_client(emulator), request_log, force_new=force_new)
        await share_run.request_shares(requests, now)
    return share_run.outcomes


def pick_references(scene: Scene, count: int) -> list[str]:
    """Return references of the service."""
    return sorted(scene.emulator.world.by_reference)[:count]


def read_states(lake: Path) -> dict[str, int]:
    """Return the number of published shares by state."""
    with closing(opened(lake)) as db:
        return dict(db.execute("SELECT state, count(*) FROM meta.shares GROUP BY 1").fetchall())


async def test_no_email_without_send_email(scene: Scene) -> None:
    """Links with recipients send no e-mail; with send_email each recipient gets one."""
    emulator = scene.emulator
    references = pick_references(scene, 20)
    wanted = [{"reference": each, "email": f"{n}@x.example"} for n, each in enumerate(references)]
    quiet = await create_shares(emulator, scene.lake, *wanted)
    assert {each.state for each in quiet} == {"created"}
    assert len(emulator.shares.by_secret) == len(wanted) > 10
    assert emulator.emails == []
    for _ in range(2):
        await create_shares(emulator, scene.lake, *wanted, send_email=True)
    assert sorted(emulator.emails) == sorted((each["email"], each["reference"]) for each in wanted)


@pytest.mark.virtual_time
@pytest.mark.parametrize("kind", ["drop-before-status", "drop-mid-body", "cut-json", "503"])
async def test_a_call_without_response_is_never_repeated(scene: Scene, kind: str) -> None:
    """A share whose response is lost is unknown; neither this run nor the next repeats the call."""
    emulator = scene.emulator
    emulator.script(kind, path="/api/v2/share")
    wanted = [{"reference": each, "email": "a@x.example"} for each in pick_references(scene, 2)]
    for _ in range(2):
        found = await create_shares(emulator, scene.lake, *wanted, send_email=True)
        assert found[0].reference == wanted[0]["reference"]
        assert found[0].state == "unknown"
    assert emulator.counts["share"] == 2
    assert len(emulator.emails) == (1 if kind == "503" else 2)
    renewed = await create_shares(emulator, scene.lake, wanted[0], send_email=True, force_new=True)
    assert renewed[0].state == "created"


async def test_a_valid_identical_share_is_reused(scene: Scene) -> None:
    """The same request reuses the link until it expires; another recipient or `force_new` gets a new link."""
    emulator, lake = scene.emulator, scene.lake
    wish = {"reference": pick_references(scene, 1)[0], "expires": "2030-01-01T12:00:00Z"}
    (first,) = await create_shares(emulator, lake, wish)
    (again,) = await create_shares(emulator, lake, wish)
    assert (first.state, again.state, again.share_url) == ("created", "reused", first.share_url)
    (other,) = await create_shares(emulator, lake, {**wish, "email": "b@x.example"})
    (renewed,) = await create_shares(emulator, lake, wish, force_new=True)
    assert len({first.share_url, other.share_url, renewed.share_url}) == 3
    with closing(sqlite3.connect(lake / "ledger.sqlite")) as ledger, ledger:
        ledger.execute("UPDATE share SET expires_at = ?", (now_us() - SECOND,))
    (after,) = await create_shares(emulator, lake, wish)
    assert after.state == "created"
    assert emulator.counts["share"] == 4


async def test_each_reference_has_its_own_error(scene: Scene) -> None:
    """NO FILE FOUND and INVALID TIMEZONE are reported by reference; the others are created.

    Without a connection nothing was sent, and nothing is unknown: the next run creates the link.
    """
    one, two = pick_references(scene, 2)
    async with Emulator(1) as elsewhere:
        pass
    with pytest.raises(ScanlakeError, match="no connection"):
        await create_shares(elsewhere, scene.lake, {"reference": two})
    wanted = ({"reference": "NOPE"}, {"reference": one, "timezone": "Mars/Olympus"}, {"reference": two})
    found = [(each.state, each.error) for each in await create_shares(scene.emulator, scene.lake, *wanted)]
    assert found == [("failed", "NO FILE FOUND"), ("failed", "INVALID TIMEZONE"), ("created", None)]


async def test_a_refused_token_stops_the_run(scene: Scene) -> None:
    """The first 401 stops the run with exit 3; the links created before are printed and kept."""
    scene.emulator.script("401", path="/api/v2/share", skip=2, times=100)
    answer = await scene.command("share", *pick_references(scene, 10), "--json")
    assert (answer.code, scene.emulator.counts["share"]) == (ExitCode.AUTH, 3)
    assert answer.err.count("  created  ") == 2
    assert answer.json["exit_code"] == 3
    assert read_states(scene.lake) == {"created": 2}


async def test_a_killed_run(scene: Scene) -> None:
    """After SIGKILL each link was requested at most once; the next run reports the one in flight as unknown.

    While it runs, no other run creates links.
    """
    emulator, given = scene.emulator, pick_references(scene, 12)
    emulator.script("stall", path="/api/v2/share", skip=5)
    process = await scene.start("share", *given)
    while emulator.injected_faults["stall"] < 1:
        await asyncio.sleep(0.01)
    assert (await scene.command("share", given[0])).code == ExitCode.LOCKED
    process.kill()
    await process.communicate()
    answer = await scene.command("share", *given, "--json")
    assert answer.code == ExitCode.REJECTS
    states = {each["reference"]: each["state"] for each in answer.json["shares"]}
    assert [states[each] for each in given] == ["reused"] * 5 + ["unknown"] + ["created"] * 6
    assert sorted(emulator.shares.by_secret.values()) == given
    assert read_states(scene.lake) == {"created": 11, "unknown": 1}


async def test_a_stop_waits_for_the_link(scene: Scene) -> None:
    """A run that is stopped during a request records its link, so that the next run does not create it again."""
    emulator, wanted = scene.emulator, [{"reference": each} for each in pick_references(scene, 3)]
    task = asyncio.create_task(create_shares(emulator, scene.lake, *wanted))

    def stop(endpoint: str) -> None:
        if endpoint == "share":
            task.cancel()

    emulator.on_request = stop
    with pytest.raises(asyncio.CancelledError):
        await task
    emulator.on_request = None
    states = [each.state for each in await create_shares(emulator, scene.lake, *wanted)]
    assert (states, emulator.counts["share"]) == (["reused", "created", "created"], 3)


async def test_emails_need_a_confirmation(scene: Scene) -> None:
    """A script needs --yes with --send-email; without it nothing is shared, and number and recipient are printed."""
    emulator, references = scene.emulator, pick_references(scene, 7)
    command = ("share", *references, *references[:2], "--send-email", "--email", "r@x.example", "--dl", "team")
    answer = await scene.command(*command)
    assert answer.code == ExitCode.USAGE
    assert "7 links would be e-mailed to r@x.example and team. Nothing was shared." in answer.err
    assert (emulator.counts["share"], emulator.emails) == (0, [])
    answer = await scene.command(*command, "--yes", "--json")
    assert answer.code == ExitCode.OK
    assert "7 links will be e-mailed to r@x.example and team." in answer.err
    assert [recipient for recipient, _ in emulator.emails].count("r@x.example") == 7
    assert answer.json["counts"] == {"created": 7}


@pytest.mark.parametrize(("typed", "code", "sent"), [(b"n\n", ExitCode.USAGE, 0), (b"y\n", ExitCode.OK, 1)])
async def test_a_terminal_prompts_before_emails(scene: Scene, typed: bytes, code: ExitCode, sent: int) -> None:
    """On a terminal the command prints the number of recipients and waits for a yes."""
    emulator = scene.emulator
    ours, theirs = pty.openpty()
    try:
        command = ("share", *pick_references(scene, 1), "--send-email", "--email", "a@x.example")
        process = await started_at(theirs, emulator, scene.lake, *command)
        os.write(ours, typed)
        found, _, err = await ended(process)
    finally:
        os.close(ours)
        os.close(theirs)
    assert "1 link would be e-mailed to a@x.example. Continue?" in err
    assert (found, len(emulator.emails), len(emulator.shares.by_secret)) == (code, sent, sent)


async def test_shares_by_condition(scene: Scene) -> None:
    """--where shares each reference of the selected files once, and names one that several files have before."""
    emulator, lake = scene.emulator, scene.lake
    files = {name: len(keys) for name, keys in emulator.world.by_reference.items()}
    shared = [name for name, count in files.items() if count > 1]
    assert shared
    answer = await scene.command("share", "--where", "TRUE", "--json")
    assert answer.code == ExitCode.OK
    assert sorted(each["reference"] for each in answer.json["shares"]) == sorted(files)
    warnings = [line for line in answer.lines if "share.reference_ambiguous" in line]
    assert len(warnings) == len(shared)
    assert all(any(name in line and f"files={files[name]}" in line for line in warnings) for name in shared)
    emulator.reset()
    name = shared[0]
    await create_shares(emulator, lake, {"reference": name, "email": "a@x.example"})
    paths = [request.raw_path.partition("?")[0].rpartition("/")[2] for request in emulator.log]
    assert paths == ["files", "share"], "the service picks one of the files only when that has been said"
    with closing(sqlite3.connect(lake / "ledger.sqlite")) as ledger:
        ((file_ids,),) = ledger.execute("SELECT file_ids FROM share WHERE email IS NOT NULL").fetchall()
    assert sorted(json.loads(file_ids)) == sorted(emulator.world.by_reference[name])
    emulator.reset()
    answer = await scene.command("share", name)
    assert (answer.code, emulator.requests) == (ExitCode.OK, 0), "the link is not reused"


async def test_everything_that_was_sent_is_recorded(scene: Scene) -> None:
    """An auditor reads in meta.shares what was sent: both recipients, languages, time zone and user."""
    (reference,) = pick_references(scene, 1)
    options = ("--email", "a@x.example", "--dl", "team-7", "--language", "de", "--timezone", "Europe/Berlin")
    command = ("share", reference, *options, "--username", "audit")
    answer = await scene.command(*command, "--json")
    assert answer.code == ExitCode.OK
    (share,) = answer.json["shares"]
    assert (share["email"], share["dl"]) == ("a@x.example", "team-7")
    with closing(opened(scene.lake)) as db:
        columns = "reference, email, dl, language, lang, timezone, username"
        sent = db.execute(f"SELECT {columns} FROM meta.shares WHERE email IS NOT NULL").fetchall()
    assert sent == [(reference, "a@x.example", "team-7", "de", "de", "Europe/Berlin", "audit")]
    table = (await scene.command(*command)).out
    assert all(text in table for text in (reference, "a@x.example", "team-7", "reused", share["share_url"]))
    assert table.splitlines()[-1] == "1 reused; no e-mail was sent: that needs --send-email"
    assert "e-mail" not in (await scene.command("share", reference)).out


@every(
    ("wanted", "says"),
    [
        ({"reference": "A" * 256}, "reference"),
        ({"reference": ""}, "^reference: "),
        ({"reference": "A", "language": "deutsch"}, "language"),
        ({"reference": "A", "expires": "soon"}, "not a date or time"),
        ({"reference": "A", "expires": "2020-01-01"}, "in the past"),
    ],
)
def test_invalid_requests_are_not_sent(wanted: dict[str, Any], says: str) -> None:
    """All requests are validated before the first call, and the message shows no value."""
    with pytest.raises(SettingsError, match=says) as caught:
        build_requests(["fine", wanted.pop("reference")], send_email=False, now=now_us(), **wanted)
    assert "scanlake.toml" not in caught.value.hint


def test_build_requests() -> None:
    """A reference that is given twice is one share; an e-mail needs a recipient."""
    requests = build_requests(["A", "A", "B"], send_email=True, now=now_us(), email="a@x")
    assert [request.reference for request in requests] == ["A", "B"]
    with pytest.raises(SettingsError, match="without a recipient"):
        build_requests(["A"], send_email=True, now=now_us())
