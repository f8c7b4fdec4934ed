"""The output blocks of the documents equal the printed output, except for numbers and widths."""

from __future__ import annotations

import os
import re
import subprocess
from itertools import combinations
from typing import TYPE_CHECKING, Final

import pytest

from pipeline.cli import COMMANDS
from pipeline.emulator import Emulator
from schemas.tables import TABLES as DECLARED
from tests.commands.cli_process import called, variables
from tests.docs.conftest import FILES
from tests.docs.diagram import draw_diagram, place_boxes
from tests.docs.documents import CLI, INDEX, QUERIES, README, ROOT, TABLES, Document
from tests.docs.generate import DOCS, PAGES, PICTURE, render
from tests.rows import every

if TYPE_CHECKING:
    from pathlib import Path

    from tests.docs.conftest import PopulatedLake

_NUMBER: Final = re.compile(r"\d[\d,.:TZ-]*(?: (?:bytes|kB|MB|GB)\b)?")
_ADDRESS: Final = re.compile(r"https?://\S+|/\S*/")


def _shape(text: str) -> list[str]:
    """Return the lines without numbers, their units of size, addresses and widths."""
    plain = (" ".join(_NUMBER.sub("#", _ADDRESS.sub("@", line)).split()) for line in text.splitlines())
    return [line for line in plain if line]


def _documented(command: str, document: Document = INDEX) -> str:
    return next(step.output for step in document.steps if step.command.startswith(command) and step.output)


def test_first_commands_print_the_documented_output(populated_lake: PopulatedLake) -> None:
    """The first commands print the start page's lines; only the line about the disk can differ."""
    for command in ("scanlake check", "scanlake plan", "scanlake query"):
        printed, documented = (
            [line for line in _shape(text) if " disk " not in line]
            for text in (populated_lake.output[command], _documented(command))
        )
        assert (command, printed) == (command, documented)


def test_the_first_query_of_the_readme_prints_its_output(populated_lake: PopulatedLake) -> None:
    """The README's first query is that of the start page, and prints these lines."""
    query = next(step.command for step in INDEX.steps if step.command.startswith("scanlake query"))
    assert query in [step.command for step in README.steps]
    assert _shape(populated_lake.output["scanlake query"]) == _shape(_documented("scanlake query", README))


def test_init_prints_the_documented_output(populated_lake: PopulatedLake) -> None:
    """After its prompts `init` prints the start page's lines; an existing token file is not written again."""
    omitted = ("Address of", "Token (not", "written: token")
    documented = [line for line in _shape(_documented("scanlake init")) if not line.startswith(omitted)]
    assert _shape(populated_lake.output["scanlake init"]) == documented


@pytest.mark.parametrize("document", [INDEX, README], ids=["start", "readme"])
def test_sync_prints_the_documented_summary(document: Document, populated_lake: PopulatedLake) -> None:
    """A sync's summary has the documented lines; only the cause of its rate can differ."""
    printed, documented = (
        _shape(text) for text in (populated_lake.output["scanlake sync"], _documented("scanlake sync", document))
    )
    assert [line.split()[0] for line in printed] == [line.split()[0] for line in documented]
    differing = [pair for pair in zip(printed, documented, strict=True) if pair[0] != pair[1]]
    assert all(line.startswith("rate") for line, _ in differing), differing


def test_verify_prints_the_documented_output(populated_lake: PopulatedLake) -> None:
    """A verification after deletions prints the start page's lines."""
    assert _shape(populated_lake.output["scanlake verify"]) == _shape(_documented("scanlake verify"))


def test_demo_prints_the_documented_output(populated_lake: PopulatedLake) -> None:
    """The demo prints the README's lines, up to the results of the queries."""
    documented = _shape(_documented("make demo", README).removesuffix("..."))
    assert _shape(populated_lake.output["make demo"])[: len(documented)] == documented


def test_last_lines_of_the_demo_run_as_printed(populated_lake: PopulatedLake) -> None:
    """Every command under "Open the lake" runs in the demo's folder, although the installation is not on the PATH."""
    lines = populated_lake.output["make demo"].partition("Open the lake:\n")[2].splitlines()
    assert len(lines) == 3
    environment = os.environ | {"PATH": "/usr/bin:/bin", "BROWSER": "true", "PYTHONPATH": str(ROOT)}
    for line in lines:
        command = ["sh", "-c", line]
        folder = populated_lake.folder
        process = subprocess.run(
            command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True, check=False
        )
        assert process.returncode == 0, (line, process.stderr.decode())


@every("page", PAGES)
def test_generated_pages_are_current(page: str) -> None:
    """The generated pages equal the generator's output for the present settings and commands."""
    assert (DOCS / page).read_text(encoding="utf-8") == render(page), "run `make docs`"


def test_commands_are_those_of_the_help() -> None:
    """The table of commands has every command in the order of the help, with its text."""
    table = [(re.sub(r"[`\[\]]|\(#.*\)", "", name), text) for name, text in CLI.table("command")]
    assert table == [(name, command.help) for name, command in COMMANDS.items()]


def test_the_picture_of_the_tables_is_current() -> None:
    """The page shows the picture that the declared tables give, and its boxes do not overlap."""
    assert PICTURE.read_text(encoding="utf-8") == draw_diagram(), "run `make docs`"
    assert "(images/tables.svg)" in TABLES.text
    boxes = place_boxes()
    assert set(boxes) == {table.name for table in DECLARED if table.schema == "main"}
    for first, second in combinations(boxes.values(), 2):
        assert first.column != second.column or first.bottom < second.top or second.bottom < first.top


async def test_searches_print_the_documented_output(tmp_path: Path) -> None:
    """Each search that has its output in the document prints these lines; a long output may go on."""
    shown = [step for step in QUERIES.section("Ask the service").steps if step.output]
    assert len(shown) == 5
    async with Emulator(FILES, seed=0) as emulator:
        for step in shown:
            answer = await called(tmp_path, *step.command.split()[1:], **variables(emulator))
            documented = _shape(step.output)
            assert _shape(answer.out + answer.err)[: len(documented)] == documented
