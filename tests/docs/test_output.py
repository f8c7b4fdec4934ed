"""The output blocks of the documents equal the printed output, except for numbers and widths."""

from __future__ import annotations

import os
import re
import subprocess
from typing import TYPE_CHECKING, Final

from pipeline.emulator import Emulator
from tests.commands.cli_process import called, variables
from tests.docs.conftest import FILES
from tests.rows import every
from tools.docs.documents import INDEX, QUERIES, README, ROOT, Document
from tools.docs.generate import DOCS, PAGES, render

if TYPE_CHECKING:
    from pathlib import Path

    from tests.docs.conftest import PopulatedLake

_NUMBER: Final = re.compile(r"\d[\d,.:TZ-]*(?: (?:bytes|kB|MB|GB)\b)?")
_ADDRESS: Final = re.compile(r"https?://\S+|/\S*/")


def read_shape(text: str) -> list[str]:
    """Return the lines without numbers, their units of size, addresses and widths."""
    plain = (" ".join(_NUMBER.sub("#", _ADDRESS.sub("@", line)).split()) for line in text.splitlines())
    return [line for line in plain if line]


def _documented(command: str, document: Document) -> str:
    return next(step.output for step in document.steps if step.command.startswith(command) and step.output)


def test_commands_print_the_documented_output(populated_lake: PopulatedLake) -> None:
    """Each command prints the lines of the README, all of them but for what a machine decides.

    That is the cause of a sync's rate, and the results of the demo's queries. `test_first_hour` has the start page.
    """
    wrong = []
    for command, differing in (("scanlake sync", "rate"), ("scanlake query", "\n"), ("make demo", "...")):
        printed, documented = (
            [line for line in read_shape(text) if not line.startswith(differing)]
            for text in (populated_lake.output[command], _documented(command, README))
        )
        if printed[: len(documented) if command == "make demo" else None] != documented:
            wrong.append((command, printed, documented))
    assert not wrong
    query = next(step.command for step in INDEX.steps if step.command.startswith("scanlake query"))
    assert query in [step.command for step in README.steps]


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


async def test_searches_print_the_documented_output(tmp_path: Path) -> None:
    """Each search that has its output in the document prints these lines; a long output may go on."""
    shown = [step for step in QUERIES.section("Ask the service").steps if step.output]
    assert len(shown) == 5
    async with Emulator(FILES, seed=0) as emulator:
        for step in shown:
            answer = await called(tmp_path, *step.command.split()[1:], **variables(emulator))
            documented = read_shape(step.output)
            assert read_shape(answer.out + answer.err)[: len(documented)] == documented
