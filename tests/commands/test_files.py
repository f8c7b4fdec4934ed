"""The service's own search on the real command line."""

from __future__ import annotations

import asyncio
import csv
import io
import os
import pty
import sys
from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from pipeline.emulator import Emulator, make_quirks
from schemas.timestamps import format_instant, parse_instant, to_datetime
from tests.commands.cli_process import called, variables

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.processes import Answer

    Main = Callable[..., Answer]

SEED = 23
REACHABLE = {"SCANLAKE_BASE_URL": "http://127.0.0.1:9", "SCANLAKE_TOKEN": "a-token"}


async def find_ids(emulator: Emulator, folder: Path, *arguments: str) -> set[int]:
    """Run a search and return the ids of its files."""
    answer = await called(folder, "files", *arguments, "--limit", "1000", "--json", **variables(emulator))
    assert answer.code == 0, answer.err
    return {file["id"] for file in answer.json["files"]}


async def test_each_condition_finds_what_the_service_finds(tmp_path: Path) -> None:
    """Reference, part of a reference, closed, open and custom fields select exactly the matching files."""
    async with Emulator(150, seed=SEED) as emulator:
        truth = list(emulator.truth())
        reference = truth[3]["scan_code"]
        part = reference[2:6].lower()
        field = next(field for file in truth for field in file["detail"]["fields"] if field["value"])
        pair = (field["field_id"], field["value"])

        def matching(is_match: Callable[[dict[str, Any]], bool]) -> set[int]:
            return {file["id"] for file in truth if is_match(file)}

        assert await find_ids(emulator, tmp_path, "--reference", reference) == matching(
            lambda file: file["scan_code"] == reference
        )
        assert await find_ids(emulator, tmp_path, "--find", part) == matching(
            lambda file: part in file["scan_code"].lower()
        )
        for flag, value in (("--closed", 1), ("--open", 0)):
            assert await find_ids(emulator, tmp_path, flag) == matching(
                lambda file, value=value: file["item"]["closed"] == value  # type: ignore[misc]
            )
        assert await find_ids(emulator, tmp_path, "--field", f"{pair[0]}={pair[1]}") == matching(
            lambda file: pair in {(each["field_id"], each["value"]) for each in file["detail"]["fields"]}
        )
        assert not (tmp_path / "lake").exists()  # no lake and no file beside it


async def test_one_and_the_same_date_is_the_whole_day(tmp_path: Path) -> None:
    """`--since D --until D` and `--start-date D --end-date D` are one day, from its first second to its last."""
    async with Emulator(400, seed=SEED) as emulator:
        truth = list(emulator.truth())
        days = Counter(format_instant(file["updated"])[:10] for file in truth)
        day = days.most_common(1)[0][0]
        first = parse_instant(day)
        assert first is not None
        last = to_datetime(first) + timedelta(days=1)
        updated = {file["id"] for file in truth if format_instant(file["updated"])[:10] == day}
        assert updated
        assert await find_ids(emulator, tmp_path, "--since", day, "--until", day) == updated
        exact = ("--since", f"{day}T00:00:00Z", "--until", f"{last - timedelta(seconds=1):%Y-%m-%dT%H:%M:%SZ}")
        assert await find_ids(emulator, tmp_path, *exact) == updated
        active = {
            file["id"]
            for file in truth
            if file["updated"] >= first and (parse_instant(file["item"]["created_at"]) or 0) < first + 86_400_000_000
        }
        assert updated <= active
        assert await find_ids(emulator, tmp_path, "--start-date", day, "--end-date", day) == active


async def test_limit_bounds_what_is_shown_and_says_that_there_is_more(tmp_path: Path) -> None:
    """`--limit` shows so many files, over several pages too, and stderr says how many there are."""
    async with Emulator(330, seed=SEED) as emulator:
        for limit, calls in ((7, 1), (300, 2), (330, 2), (1000, 2)):
            emulator.reset()
            answer = await called(tmp_path, "files", "--limit", str(limit), "--format", "json", **variables(emulator))
            found = answer.json
            assert len({file["id"] for file in found["files"]}) == found["shown"] == min(limit, 330)
            assert found["more"] == (limit < 330)
            assert emulator.counts["list"] == calls
            said = f"{limit} of 330 files are shown; --limit N shows more."
            assert (said in answer.err) == (limit < 330)
        answer = await called(tmp_path, "files", **variables(emulator))
        assert "50 files" in answer.out
        assert "50 of 330" in answer.err


async def test_a_service_without_counts_says_only_that_there_is_more(tmp_path: Path) -> None:
    """A service that names no total still shows the limit's worth and that there are more."""
    async with Emulator(90, seed=SEED, quirks=make_quirks("sparse")) as emulator:
        answer = await called(tmp_path, "files", "--limit", "60", "--format", "json", **variables(emulator))
    assert answer.json["shown"] == 60
    assert (answer.json["total"], answer.json["more"]) == (None, True)
    assert "60 files shown, and there are more" in answer.err


async def test_json_has_the_files_as_sent(tmp_path: Path) -> None:
    """JSON holds every document of the service with the requested includes, and no other."""
    async with Emulator(30, seed=SEED) as emulator:
        arguments = ("--include", "uploads", "--include", "forms", "--format", "json")
        answer = await called(tmp_path, "files", *arguments, **variables(emulator))
        expected = {
            record.id: emulator.documents.build_item(record, frozenset({"uploads", "forms"}))
            for record in emulator.world.records.values()
        }
    assert {file["id"]: file for file in answer.json["files"]} == expected
    assert "fields" not in answer.json["files"][0]


async def test_csv_has_one_exact_row_for_each_file(tmp_path: Path) -> None:
    """CSV read back has the service's values: exact ids, instants to the microsecond, empty for null."""
    async with Emulator(60, seed=SEED, quirks=make_quirks(settings={"precision": "micros"})) as emulator:
        out = tmp_path / "found.csv"
        arguments = ("-o", str(out), "--include", "uploads", "--json")
        answer = await called(tmp_path, "files", *arguments, **variables(emulator))
        truth = {str(file["id"]): file for file in emulator.truth()}
    assert answer.json == {"out": str(out), "format": "csv", "files": 50}
    rows = list(csv.DictReader(io.StringIO(out.read_text(encoding="utf-8"))))
    assert len(rows) == 50
    for row in rows:
        file = truth[row["id"]]
        assert row["scan_code"] == file["scan_code"]
        assert parse_instant(row["updated_at"]) == file["updated"]
        assert row["closed"] == ("true" if file["item"]["closed"] else "false")
        assert row["uploads"] == str(len(file["item"]["uploads"]))
        assert row["recent_snap_id"] == str(file["item"]["recent_snap_id"] or "")


@pytest.mark.parametrize("arguments", [(), ("--include", "uploads", "--include", "forms", "--include", "workflows")])
async def test_a_table_fits_a_terminal_of_80_columns(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    """On a terminal no line is wider than 80 columns, and every id stands on it whole."""
    async with Emulator(40, seed=SEED) as emulator:
        ours, theirs = pty.openpty()
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "pipeline", "files", *arguments),
            cwd=tmp_path,
            env={**os.environ, **variables(emulator), "COLUMNS": "80", "NO_COLOR": "1", "TERM": "dumb"},
            stdout=theirs,
        )
        os.close(theirs)
        text = await asyncio.to_thread(read_terminal, ours)
        assert await process.wait() == 0
        lines = text.replace("\r", "").splitlines()
        assert max(map(len, lines)) <= 80
        assert all(any(str(file["id"]) in line for line in lines) for file in emulator.truth())


def read_terminal(descriptor: int) -> str:
    """Return everything that is written to a terminal."""
    parts = []
    while True:
        try:
            part = os.read(descriptor, 65_536)
        except OSError:
            break
        if not part:
            break
        parts.append(part)
    os.close(descriptor)
    return b"".join(parts).decode()


async def test_values_of_any_type_are_listed(tmp_path: Path) -> None:
    """Ids as text, flags as booleans, nested counts and late types are no reason to fail."""
    for profile in ("contrary", "hostile", "instances"):
        async with Emulator(60, seed=SEED, quirks=make_quirks(profile, {"order": "id-asc"})) as emulator:
            for output_format in ("table", "csv"):
                arguments = ("--format", output_format, "--limit", "100", "--include", "uploads")
                place = {"SCANLAKE_TOKEN_LOCATION": "header"} if profile == "contrary" else {}
                answer = await called(tmp_path, "files", *arguments, **variables(emulator), **place)
                assert answer.code == 0, answer.err
                assert all(str(file["id"]) in answer.out for file in emulator.truth())


async def test_a_refused_search_names_the_parameter(tmp_path: Path) -> None:
    """The service's own errors are on the one line: the parameter and what it says of it."""
    async with Emulator(3, seed=SEED) as emulator:
        emulator.script("422", path="/api/v2/files")
        answer = await called(tmp_path, "files", "--limit", "20", **variables(emulator))
        assert answer.code == 6
        [line] = answer.lines
        assert "HTTP 422: " in line
        assert emulator.token not in answer.out + answer.err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--since", "yesterday"), "--since is not an instant"),
        (("--end-date", "2026-02-30"), "--end-date is not an instant"),
        (("--since", "2026-02-02", "--until", "2026-02-01"), "--until is not after --since"),
        (("--start-date", "2026-02-02", "--end-date", "2026-02-01"), "--end-date is not after --start-date"),
        (("--field", "blue"), "--field is not ID=VALUE"),
        (("--field", "seven=blue"), "--field is not ID=VALUE"),
        (("--field", "7=a", "--field", "7=b"), "--field 7 is given twice"),
        (("--reference", ""), "--reference: String should have at least 1 character"),
        (("--include", "images"), "'images' is not one of"),
        (("--include", "geocoding"), "--include geocoding requires uploads"),
        (("--limit", "0"), "--limit"),
        (("--limit", "many"), "--limit"),
        (("--json", "--format", "csv"), "--json and another --format exclude each other"),
        (("--refrence", "A"), "--refrence"),
        (("stray",), "stray"),
        (("-o", "missing/x.csv"), "folder missing does not exist"),
    ],
)
def test_a_mistake_is_one_line_and_nothing_is_sent(arguments: tuple[str, ...], says: str, main: Main) -> None:
    """Each mistake is exit code 2 and one line with what to do, before any request."""
    answer = main("files", *arguments, **REACHABLE)
    assert answer.code == 2
    [line] = answer.lines
    assert says in line


def test_a_reference_of_any_length_can_be_searched(main: Main) -> None:
    """The 255 characters of `/share` are no limit of the search: the request is sent, and fails for its address."""
    answer = main("files", "--reference", "A" * 300, **REACHABLE, SCANLAKE_REQUEST_TIMEOUT_SECONDS="1")
    assert answer.code == 1
    assert "no connection" in answer.err
