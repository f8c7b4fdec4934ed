"""One file of the service on the real command line."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from pipeline.emulator import Emulator, make_quirks
from tests.commands.cli_process import called, variables

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.processes import Answer

SEED = 29


async def test_json_is_the_whole_document(tmp_path: Path) -> None:
    """JSON is what `GET /files/{id}` sent, every key of it."""
    async with Emulator(20, seed=SEED) as emulator:
        file = next(file for file in emulator.truth() if file["detail"]["workflow_runs"])
        for arguments in (("--format", "json"), ("--json",)):
            answer = await called(tmp_path, "file", str(file["id"]), *arguments, **variables(emulator))
            assert (answer.code, answer.err) == (0, "")
            assert json.loads(answer.out) == file["detail"]
        assert not (tmp_path / "lake").exists()


async def test_the_children_are_sections(tmp_path: Path) -> None:
    """On the screen a file is its own values, then uploads, fields, locations, forms and runs, without image links."""
    quirks = make_quirks(settings={"detail_forms": "yes"})
    async with Emulator(60, seed=SEED, quirks=quirks) as emulator:
        keys = ("uploads", "fields", "locations", "form_submits", "workflow_runs")
        file = next(file for file in emulator.truth() if all(file["detail"].get(key) for key in keys))
        answer = await called(tmp_path, "file", str(file["id"]), **variables(emulator))
    assert answer.code == 0
    detail = file["detail"]
    assert file["scan_code"] in answer.out
    for key in ("uploads", "fields", "locations"):
        assert f"{key} ({len(detail[key])})" in answer.out
        assert all(str(child.get("field_id", child["id"])) in answer.out for child in detail[key])
    assert answer.out.count("form_submits:") == len(detail["form_submits"])
    assert answer.out.count("workflow_runs:") == len(detail["workflow_runs"])
    assert " ".join(detail["workflow_runs"][0]["workflow"]["name"].split()) in answer.out
    assert "https://" not in answer.out


@pytest.mark.parametrize("not_found", ["404", "empty", "data-null", "envelope-300"])
async def test_a_file_that_the_service_does_not_have_is_4(tmp_path: Path, not_found: str) -> None:
    """A deleted or unknown id is one clear line and exit code 4, however the service says so."""
    async with Emulator(20, seed=SEED, quirks=make_quirks(settings={"not_found": not_found})) as emulator:
        answer = await called(tmp_path, "file", "5", "--json", **variables(emulator))
    assert answer.code == 4
    [line] = answer.lines
    assert line.startswith("scanlake: File 5: the service does not have it (")
    assert answer.json["exit_code"] == 4


async def test_lang_selects_the_language(tmp_path: Path) -> None:
    """`--lang` is sent with the call, and its texts are shown."""
    async with Emulator(60, seed=SEED) as emulator:
        record = next(
            record
            for record in emulator.world.records.values()
            if emulator.documents.build_detail(record, "de") != emulator.documents.build_detail(record)
        )
        answer = await called(tmp_path, "file", str(record.id), "--set", "lang=de", "--json", **variables(emulator))
        assert json.loads(answer.out) == emulator.documents.build_detail(record, "de")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "ID"),
        (("abc",), "should be a valid integer"),
        (("-5",), "-5"),
        (("99999999999999999999",), "less than or equal to 9223372036854775807"),
        (("1", "2"), "2"),
    ],
)
def test_a_mistake_is_one_line(arguments: tuple[str, ...], says: str, main: Callable[..., Answer]) -> None:
    """A missing, wrong or second id is exit code 2 and one line."""
    answer = main("file", *arguments, SCANLAKE_BASE_URL="http://127.0.0.1:9", SCANLAKE_TOKEN="a-token")
    assert answer.code == 2
    [line] = answer.lines
    assert says in line
