"""Files of the service on the real command line: by reference, by id and by its search."""

from __future__ import annotations

import shlex
from collections import Counter
from typing import TYPE_CHECKING, Any

from pipeline.cli.commands.files import FoundFiles
from pipeline.emulator import Emulator, make_quirks
from schemas.timestamps import format_instant, parse_instant
from tests.commands.cli_process import called, variables

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


SEED = 23


async def test_each_condition_finds_what_the_service_finds(tmp_path: Path) -> None:
    """Part of a reference, closed, open and times select exactly the matching files.

    `--since D --until D` is one day, from its first second to its last.
    """
    async with Emulator(400, seed=SEED) as emulator:
        truth = list(emulator.truth())
        part = truth[3]["scan_code"][2:6].lower()
        [(day, _)] = Counter(format_instant(file["updated"])[:10] for file in truth).most_common(1)
        first = parse_instant(day) or 0
        following = first + 86_400_000_000

        def is_updated_that_day(file: dict[str, Any]) -> bool:
            return bool(first <= file["updated"] < following)

        conditions: dict[str, Callable[[dict[str, Any]], bool]] = {
            f"--find {part}": lambda file: part in file["scan_code"].lower(),
            "--closed": lambda file: file["item"]["closed"] == 1,
            "--open": lambda file: file["item"]["closed"] == 0,
            f"--since {day} --until {day}": is_updated_that_day,
            f"--since {day}T00:00:00Z --until {day}T23:59:59Z": is_updated_that_day,
        }
        for arguments, is_match in conditions.items():
            expected = {file["id"] for file in truth if is_match(file)}
            command = ("files", *shlex.split(arguments), "--limit", "1000", "--json")
            answer = await called(tmp_path, *command, **variables(emulator))
            assert answer.code == 0, answer.err
            assert {file["id"] for file in answer.json["files"]} == expected != set(), arguments
        assert not (tmp_path / "lake").exists()  # no lake and no file beside it


async def test_limit_bounds_what_is_shown_and_says_that_there_is_more(tmp_path: Path) -> None:
    """`--limit` shows so many files, over several pages too, and stderr says how many there are, if that is known."""
    async with Emulator(330, seed=SEED) as emulator:
        for limit, calls in ((7, 1), (300, 2), (330, 2), (1000, 2)):
            emulator.reset()
            answer = await called(tmp_path, "files", "--limit", str(limit), "--json", **variables(emulator))
            found = answer.json
            assert len({file["id"] for file in found["files"]}) == len(found["files"]) == min(limit, 330)
            assert (found["ok"], found["has_more"], found["total"]) == (True, limit < 330, 330)
            assert emulator.counts["list"] == calls
            said = f"{limit} of 330 files are shown, and there are more; --limit N shows more."
            assert (said in answer.err) == (limit < 330)
        answer = await called(tmp_path, "files", **variables(emulator))
        assert ("50 files" in answer.out, "50 of 330" in answer.err) == (True, True)
    async with Emulator(90, seed=SEED, quirks=make_quirks("sparse")) as emulator:
        answer = await called(tmp_path, "files", "--limit", "60", "--json", **variables(emulator))
    assert (len(answer.json["files"]), answer.json["total"], answer.json["has_more"]) == (60, None, True)
    assert "60 files are shown, and there are more" in answer.err


async def test_json_is_exact(tmp_path: Path) -> None:
    """JSON holds each document as sent, with the requested includes."""
    async with Emulator(60, seed=SEED, quirks=make_quirks(settings={"precision": "micros"})) as emulator:
        arguments = ("files", "--include", "uploads", "--include", "forms", "--limit", "60")
        answer = await called(tmp_path, *arguments, "--json", **variables(emulator))
        expected = {
            record.id: emulator.documents.build_item(record, frozenset({"uploads", "forms"}))
            for record in emulator.world.records.values()
        }
    assert {file["id"]: file for file in answer.json["files"]} == expected


async def test_values_of_any_type_are_listed(tmp_path: Path) -> None:
    """Ids as text, flags as booleans, nested counts and late types are no reason to fail."""
    for profile in ("contrary", "hostile", "instances"):
        async with Emulator(60, seed=SEED, quirks=make_quirks(profile, {"order": "id-asc"})) as emulator:
            place = {"SCANLAKE_TOKEN_LOCATION": "header"} if profile == "contrary" else {}
            arguments = ("--limit", "100", "--include", "uploads")
            answer = await called(tmp_path, "files", *arguments, **variables(emulator), **place)
            assert answer.code == 0, answer.err
            assert all(str(file["id"]) in answer.out for file in emulator.truth())


def test_a_document_that_no_parser_reads() -> None:
    """A list item that is nested deeper than the interpreter's stack is a file without values, not a bug."""
    found = FoundFiles()
    for document in (b'{"id": 1, "deep": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", b"7", b'{"id": 2}'):
        found.add(document)
    assert found.files == [{}, {}, {"id": 2}]


async def test_a_refused_search_names_the_parameter(tmp_path: Path) -> None:
    """The service's own errors are on the one line: the parameter and what it says of it."""
    async with Emulator(3, seed=SEED) as emulator:
        emulator.script("422", path="/api/v2/files")
        answer = await called(tmp_path, "files", "--limit", "20", **variables(emulator))
    [line] = answer.lines
    assert (answer.code, "HTTP 422: " in line) == (6, True)
    assert emulator.token not in answer.out + answer.err


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


async def test_one_id_is_shown_with_its_children_in_a_language(tmp_path: Path) -> None:
    """On the screen a file by its id has the numbers of its children, without image links; `lang` is sent along."""
    async with Emulator(60, seed=29, quirks=make_quirks(settings={"detail_forms": "yes"})) as emulator:
        keys = ("uploads", "fields", "locations", "form_submits", "workflow_runs")
        file = next(file for file in emulator.truth() if all(file["detail"].get(key) for key in keys))
        answer = await called(tmp_path, "files", str(file["id"]), **variables(emulator))
        german = [(each, emulator.documents.build_detail(each, "de")) for each in emulator.world.records.values()]
        own, text = next((each, text) for each, text in german if text != emulator.documents.build_detail(each))
        other = await called(tmp_path, "files", str(own.id), "--set", "lang=de", "--json", **variables(emulator))
    assert (answer.code, file["scan_code"] in answer.out, "https://" in answer.out) == (0, True, False)
    for key, noun in zip(keys, ("upload", "field", "location", "form", "workflow"), strict=True):
        assert f"{len(file['detail'][key])} {noun}" in answer.out
    assert other.json["files"] == [text]
