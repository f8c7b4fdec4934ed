"""`scanlake record`: real answers, and nothing of what they say."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from pipeline.emulator import Emulator, make_quirks
from pipeline.recording.anonymizer import ENUMERATION_KEYS
from pipeline.urls import API_PREFIX
from tests.commands.cli_process import called, variables
from tests.recording.replay_server import Recording, read_exchanges, unwrap

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.processes import Answer

SEED = 31
HEADER = {"SCANLAKE_TOKEN_LOCATION": "header"}


async def record(emulator: Emulator, folder: Path, *arguments: str, **environment: str) -> Answer:
    """Run the command with a folder `recording`."""
    command = ("record", "--out", "recording", *arguments)
    return await called(folder, *command, **variables(emulator), **environment)


def read_texts(value: Any, key: str = "") -> Iterator[str]:
    """Yield every text and the digits of every id in a document that is no enumeration."""
    if isinstance(value, dict):
        for name, child in value.items():
            yield from read_texts(child, name)
    elif isinstance(value, list):
        for child in value:
            yield from read_texts(child, key)
    elif isinstance(value, str) and key not in ENUMERATION_KEYS:
        yield value


@pytest.mark.parametrize(
    ("profile", "settings"),
    [
        ("seen", {}),
        ("seen", {"identifiers": "text", "escapes": "html", "answer_values": "mixed", "detail_geocoding": "null"}),
        ("contrary", {}),
        ("hostile", {}),
        ("plain", {"paging": "links"}),
    ],
)
async def test_no_text_of_the_service_is_in_a_recording(tmp_path: Path, profile: str, settings: dict[str, str]) -> None:
    """No text of the source with 4 or more characters is a value of the recording, and no long one a part of it."""
    quirks = make_quirks(profile, settings)
    async with Emulator(60, seed=SEED, quirks=quirks) as emulator:
        environment = HEADER if profile == "contrary" else {}
        answer = await record(emulator, tmp_path, "--files", "40", **environment)
        assert answer.code == 0, answer.err
        truth = [[file["item"], file["detail"]] for file in emulator.truth()]
        token = emulator.token
    originals = {text for text in read_texts(truth) if len(text) >= 4 and re.search(r"\w", text)}
    assert len(originals) > 500
    files = sorted((tmp_path / "recording").glob("*.json"))
    recorded = {text for path in files for text in read_texts(json.loads(path.read_text(encoding="utf-8")))}
    assert not recorded & originals
    everything = "\n".join(path.read_text(encoding="utf-8") for path in (tmp_path / "recording").iterdir())
    assert not [text for text in originals if len(text) >= 10 and re.search(r"[^\W\d]", text) and text in everything]
    assert token not in everything
    assert "token" not in everything.replace("(without its token)", "").lower()
    hosts = set(re.findall(r"https?://([^/\"\s?]*)", everything))
    assert hosts <= {"example.invalid"}
    assert not re.findall(r"(?:signature|expires|sig)=", everything)


async def test_a_recording_has_pages_details_an_unknown_id_and_errors(tmp_path: Path) -> None:
    """Two list pages and one without includes, a detail of each file, a page past the end, not found, and two 422."""
    async with Emulator(60, seed=SEED) as emulator:
        answer = await record(emulator, tmp_path, "--files", "10", "--json")
        assert emulator.counts["share"] == emulator.counts["report"] == 0
    assert answer.code == 0
    recording = Recording(tmp_path / "recording")
    assert answer.json["exchanges"] == len(recording.exchanges) == len(list((tmp_path / "recording").iterdir())) - 1
    assert len(recording.pages) == 2
    assert len(recording.items) == 10
    assert recording.items.keys() <= recording.details.keys()
    assert recording.absent["status"] == 404
    statuses = [each["status"] for each in recording.exchanges]
    assert statuses.count(422) == 2
    errors = [each["body"]["errors"] for each in recording.exchanges if each["status"] == 422]
    assert {"limit": ["must not be greater than 50 with include[]"]} in errors
    plain = [each for each in recording.exchanges if each["parameters"][:1] == [["limit", "5"]]]
    assert [len(each["body"]["data"]) for each in plain] == [5, 5, 5, 0]
    for each in recording.exchanges:
        assert each["method"] == "GET"
        assert each["path"].startswith(f"{API_PREFIX}/files")
        assert "token" not in dict(each["parameters"])
        assert set(each["headers"]) <= {"content-type", "date", "retry-after", "cache-control"}
    text = (tmp_path / "recording" / "README.md").read_text()
    assert "scanlake record" in text
    assert not (tmp_path / "lake").exists()


async def test_shapes_and_joins_stay(tmp_path: Path) -> None:
    """Ids keep their digits and still join, instants keep format and order, texts keep length, script and blanks."""
    async with Emulator(60, seed=SEED) as emulator:
        assert (await record(emulator, tmp_path, "--files", "60")).code == 0
        truth = list(emulator.truth())
    recording = Recording(tmp_path / "recording")
    true_pages = sorted(truth, key=lambda file: file["updated"], reverse=True)
    assert len(recording.items) == 60
    for (number, item), true in zip(recording.items.items(), true_pages, strict=True):
        detail = unwrap(recording.details[number]["body"])
        assert len(str(number)) == len(str(true["id"]))
        assert number != true["id"]
        assert detail["scan_code"] == item["scan_code"] != true["scan_code"]
        assert len(item["scan_code"]) == len(true["scan_code"])
        assert item["closed"] == true["item"]["closed"]
        assert [each["id"] for each in detail["uploads"]] == [each["id"] for each in item["uploads"]]
        uploads = {each["id"] for each in item["uploads"]}
        known = {each["id"] for each in true["item"]["uploads"]}
        for field, original in zip(item["fields"], true["item"]["fields"], strict=True):
            assert (field["snap_id"] in uploads) == (original["snap_id"] in known)
            assert [char.isspace() for char in field["name"]] == [char.isspace() for char in original["name"]]
        for upload, original in zip(item["uploads"], true["item"]["uploads"], strict=True):
            assert upload["upload_type"] == original["upload_type"]
            assert upload.keys() == original.keys()
            assert (upload["latitude"] or "") == "" or abs(float(upload["latitude"]) - float(original["latitude"])) <= 1
    ours = [re.sub(r"\d", "9", item["updated_at"]) for item in recording.items.values()]
    assert ours == [re.sub(r"\d", "9", true["item"]["updated_at"]) for true in true_pages]
    updated = [item["updated_at"] for item in recording.items.values()]
    assert updated == sorted(updated, reverse=True)


async def test_two_recordings_have_nothing_in_common(tmp_path: Path) -> None:
    """The salt is of one recording: the same files are other values in the next one."""
    found = []
    async with Emulator(30, seed=SEED) as emulator:
        for name in ("one", "two"):
            (tmp_path / name).mkdir()
            assert (await record(emulator, tmp_path / name, "--files", "8")).code == 0
            found.append({int(number) for number in Recording(tmp_path / name / "recording").items})
    assert not found[0] & found[1]


async def test_a_folder_with_content_is_refused_before_the_first_call(tmp_path: Path) -> None:
    """Nothing is written into a folder with content or over a file; a wrong token is exit 3 and leaves nothing."""
    (tmp_path / "recording").mkdir()
    (tmp_path / "recording" / "mine").write_text("x")
    async with Emulator(5, seed=SEED) as emulator:
        answer = await record(emulator, tmp_path)
        assert (answer.code, emulator.requests) == (2, 0)
        assert "--out recording is not empty" in answer.err
        other = await called(tmp_path, "record", "--out", "recording/mine", **variables(emulator))
        assert other.code == 2
        refused = await called(
            tmp_path, "record", "--out", "new", **variables(emulator) | {"SCANLAKE_TOKEN": "wrong-token"}
        )
        assert refused.code == 3
        assert not (tmp_path / "new").exists()


async def test_answers_that_fail_for_one_file_are_recorded(tmp_path: Path) -> None:
    """A file whose detail is always an error is part of the recording, and does not end it."""
    async with Emulator(12, seed=SEED) as emulator:
        emulator.set_faults(poison=(next(iter(emulator.truth()))["id"],))
        answer = await record(emulator, tmp_path, "--files", "12", SCANLAKE_MAX_ATTEMPTS="1")
        assert answer.code == 0, answer.err
    exchanges = read_exchanges(tmp_path / "recording")
    assert [each["status"] for each in exchanges].count(500) >= 1
