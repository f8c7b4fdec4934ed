"""Files of the service on the real command line: by reference, by id and by its search."""

from __future__ import annotations

import asyncio
import csv
import io
import os
from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from pipeline.emulator import Emulator, make_quirks
from schemas.timestamps import format_instant, parse_instant, to_datetime
from tests.commands.cli_process import called, variables
from tests.forkserver import run_on_terminal
from tests.rows import every

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.processes import Scanlake

SEED = 23
REACHABLE = {"SCANLAKE_BASE_URL": "http://127.0.0.1:9", "SCANLAKE_TOKEN": "a-token"}


async def find_ids(emulator: Emulator, folder: Path, *arguments: str) -> set[int]:
    """Run a search and return the ids of its files."""
    answer = await called(folder, "files", *arguments, "--limit", "1000", "--json", **variables(emulator))
    assert answer.code == 0, answer.err
    return {file["id"] for file in answer.json["files"]}


async def test_each_condition_finds_what_the_service_finds(tmp_path: Path) -> None:
    """Part of a reference, closed, open and custom fields select exactly the matching files."""
    async with Emulator(150, seed=SEED) as emulator:
        truth = list(emulator.truth())
        reference = truth[3]["scan_code"]
        part = reference[2:6].lower()
        field = next(field for file in truth for field in file["detail"]["fields"] if field["value"])
        pair = (field["field_id"], field["value"])

        def matching(is_match: Callable[[dict[str, Any]], bool]) -> set[int]:
            return {file["id"] for file in truth if is_match(file)}

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
            assert len({file["id"] for file in found["files"]}) == len(found["files"]) == min(limit, 330)
            assert (found["ok"], found["has_more"], found["total"]) == (True, limit < 330, 330)
            assert emulator.counts["list"] == calls
            said = f"{limit} of 330 files are shown, and there are more; --limit N shows more."
            assert (said in answer.err) == (limit < 330)
        answer = await called(tmp_path, "files", **variables(emulator))
        assert "50 files" in answer.out
        assert "50 of 330" in answer.err


async def test_a_service_without_counts_says_only_that_there_is_more(tmp_path: Path) -> None:
    """A service that names no total still shows the limit's worth and that there are more."""
    async with Emulator(90, seed=SEED, quirks=make_quirks("sparse")) as emulator:
        answer = await called(tmp_path, "files", "--limit", "60", "--format", "json", **variables(emulator))
    assert len(answer.json["files"]) == 60
    assert (answer.json["total"], answer.json["has_more"]) == (None, True)
    assert "60 files are shown, and there are more" in answer.err


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
        arguments = ("--format", "csv", "--include", "uploads")
        answer = await called(tmp_path, "files", *arguments, **variables(emulator))
        truth = {str(file["id"]): file for file in emulator.truth()}
    rows = list(csv.DictReader(io.StringIO(answer.out)))
    assert len(rows) == 50
    for row in rows:
        file = truth[row["id"]]
        assert row["scan_code"] == file["scan_code"]
        assert parse_instant(row["updated_at"]) == file["updated"]
        assert row["closed"] == str(file["item"]["closed"])
        assert row["uploads"] == str(len(file["item"]["uploads"]))
        assert row["recent_snap_id"] == str(file["item"]["recent_snap_id"] or "")


async def test_a_table_fits_a_terminal_of_80_columns(tmp_path: Path) -> None:
    """On a terminal no line is wider than 80 columns, and every id stands on it whole."""
    shown = bytearray()

    def read(screen: int) -> None:
        while chunk := os.read(screen, 65_536):
            shown.extend(chunk)

    async with Emulator(40, seed=SEED) as emulator:
        env = {**os.environ, **variables(emulator), "NO_COLOR": "1", "TERM": "dumb"}
        for more in ((), ("--include", "uploads", "--include", "forms", "--include", "workflows")):
            shown.clear()
            arguments = ("files", *more)
            code = await asyncio.to_thread(run_on_terminal, arguments, cwd=tmp_path, env=env, columns=80, talk=read)
            assert code == 0
            lines = shown.decode().replace("\r", "").splitlines()
            assert max(map(len, lines)) <= 80
            assert all(any(str(file["id"]) in line for line in lines) for file in emulator.truth())


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


@every(
    ("arguments", "says"),
    [
        (("--since", "yesterday"), "--since is not an instant"),
        (("--end-date", "2026-02-30"), "--end-date is not an instant"),
        (("--since", "2026-02-02", "--until", "2026-02-01"), "--until is not after --since"),
        (("--start-date", "2026-02-02", "--end-date", "2026-02-01"), "--end-date is not after --start-date"),
        (("--field", "blue"), "--field is not ID=VALUE"),
        (("--field", "seven=blue"), "--field is not ID=VALUE"),
        (("--field", "7=a", "--field", "7=b"), "--field 7 is given twice"),
        (("",), "A reference is empty"),
        (("A", "--open"), "FILES and --open exclude each other"),
        (("7", "--limit", "3"), "FILES and --limit exclude each other"),
        (("--include", "images"), "'images' is not one of"),
        (("--include", "geocoding"), "--include geocoding requires uploads"),
        (("--limit", "0"), "--limit"),
        (("--limit", "many"), "--limit"),
        (("--json", "--format", "csv"), "--json and another --format exclude each other"),
        (("--refrence", "A"), "--refrence"),
        (("--format", "xlsx"), "'xlsx' is not one of table, csv, json"),
    ],
)
def test_a_mistake_is_one_line_and_nothing_is_sent(arguments: tuple[str, ...], says: str, main: Scanlake) -> None:
    """Each mistake is exit code 2 and one line with what to do, before any request."""
    answer = main("files", *arguments, **REACHABLE)
    assert answer.code == 2
    [line] = answer.lines
    assert says in line


def test_a_reference_of_any_length_can_be_searched(main: Scanlake) -> None:
    """The 255 characters of `/share` are no limit of the search: the request is sent, and fails for its address."""
    answer = main("files", "A" * 300, **REACHABLE, SCANLAKE_REQUEST_TIMEOUT_SECONDS="1")
    assert answer.code == 1
    assert "no connection" in answer.err


# By reference and by id


async def test_references_and_ids_are_found_together(tmp_path: Path) -> None:
    """A number is an id, another text a reference; what the service does not have is named, with exit code 4."""
    async with Emulator(150, seed=SEED) as emulator:
        truth = list(emulator.truth())
        reference, one = truth[3]["scan_code"], truth[7]
        expected = {file["id"] for file in truth if file["scan_code"] == reference} | {one["id"]}
        arguments = (reference, str(one["id"]), "--include", "uploads")
        answer = await called(tmp_path, "files", *arguments, "--json", **variables(emulator))
        assert (answer.code, answer.err) == (0, "")
        by_id = {file["id"]: file for file in answer.json["files"]}
        assert by_id.keys() == expected
        assert by_id[one["id"]] == one["detail"]
        assert (answer.json["total"], answer.json["missing"]) == (len(expected), [])
        listed = await called(tmp_path, "files", reference, **variables(emulator))
        assert f"{len(expected) - 1} file" in listed.out
        partly = await called(tmp_path, "files", "5", "NO-SUCH", str(one["id"]), "--json", **variables(emulator))
    assert (partly.code, partly.json["ok"], partly.json["missing"]) == (4, False, ["5", "NO-SUCH"])
    assert [file["id"] for file in partly.json["files"]] == [one["id"]]
    assert partly.lines == [
        "scanlake: 5: the service does not have the file.",
        "scanlake: NO-SUCH: the service does not have the file.",
    ]
    assert not (tmp_path / "lake").exists()


async def test_the_children_of_one_id_are_counted(tmp_path: Path) -> None:
    """On the screen a file by its id is one line with the numbers of its children, without image links."""
    async with Emulator(60, seed=29, quirks=make_quirks(settings={"detail_forms": "yes"})) as emulator:
        keys = ("uploads", "fields", "locations", "form_submits", "workflow_runs")
        file = next(file for file in emulator.truth() if all(file["detail"].get(key) for key in keys))
        answer = await called(tmp_path, "files", str(file["id"]), **variables(emulator))
    assert answer.code == 0
    assert file["scan_code"] in answer.out
    for key, noun in zip(keys, ("upload", "field", "location", "form", "workflow"), strict=True):
        assert f"{len(file['detail'][key])} {noun}" in answer.out
    assert "https://" not in answer.out


async def test_a_file_that_the_service_does_not_have_is_4(tmp_path: Path) -> None:
    """A deleted or unknown id is one clear line and exit code 4, however the service says so."""
    for not_found in ("404", "empty", "data-null", "envelope-300"):
        async with Emulator(20, seed=29, quirks=make_quirks(settings={"not_found": not_found})) as emulator:
            answer = await called(tmp_path, "files", "5", "--json", **variables(emulator))
        assert (answer.code, answer.json["exit_code"]) == (4, 4)
        assert answer.lines == ["scanlake: 5: the service does not have the file."]


async def test_lang_selects_the_language(tmp_path: Path) -> None:
    """The setting `lang` is sent with the call, and its texts are shown."""
    async with Emulator(60, seed=29) as emulator:
        record = next(
            record
            for record in emulator.world.records.values()
            if emulator.documents.build_detail(record, "de") != emulator.documents.build_detail(record)
        )
        arguments = (str(record.id), "--set", "lang=de", "--json")
        answer = await called(tmp_path, "files", *arguments, **variables(emulator))
        assert answer.json["files"] == [emulator.documents.build_detail(record, "de")]
