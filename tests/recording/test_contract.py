"""A recording as a contract: a real sync of a service that answers as the recorded one did."""

from __future__ import annotations

from pathlib import Path

from tests.commands.cli_process import called
from tests.oracle import differences
from tests.recording.replay_server import TOKEN, ReplayServer
from tests.sync.sync_harness import opened

FIXTURE = Path(__file__).parent / "fixture"


async def test_a_sync_of_a_recording_has_every_recorded_file(tmp_path: Path) -> None:
    """The lake has every recorded file with all its rows, and a second sync and a verify find nothing to do."""
    async with ReplayServer(FIXTURE) as server:
        service = {"SCANLAKE_BASE_URL": server.base_url, "SCANLAKE_TOKEN": TOKEN}
        first = await called(tmp_path, "sync", "--json", **service)
        assert first.code == 0, first.err
        assert first.json["details_fetched"] == len(server.recording.items)
        assert (await called(tmp_path, "sync", "--json", **service)).json["details_fetched"] == 0
        assert (await called(tmp_path, "verify", "--json", **service)).code == 0
        truth = server.recording.truth()
    with opened(tmp_path / "lake") as db:
        ids = {row[0] for row in db.execute("SELECT file_id FROM files").fetchall()}
        assert ids == {file["key"] for file in truth}
        assert db.execute("SELECT count(*) FROM uploads").fetchall() != [(0,)]
        assert differences(db, truth) == []


async def test_a_recorded_file_that_is_not_found_exits_4(tmp_path: Path) -> None:
    """The recorded answer for an unknown id is understood."""
    async with ReplayServer(FIXTURE) as server:
        number = server.recording.absent["path"].rpartition("/")[2]
        service = {"SCANLAKE_BASE_URL": server.base_url, "SCANLAKE_TOKEN": TOKEN}
        answer = await called(tmp_path, "file", number, **service)
        assert answer.code == 4


def test_the_fixture_is_small() -> None:
    """The recording in the repository stays below 200 kB."""
    assert sum(path.stat().st_size for path in FIXTURE.iterdir()) < 200_000
