"""The searches of docs/queries.md: their output blocks equal the printed output, except for numbers."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pipeline.emulator import Emulator
from tests.commands.cli_process import called, variables
from tests.docs.conftest import FILES
from tests.docs.documents import QUERIES

if TYPE_CHECKING:
    from pathlib import Path

SEARCH = QUERIES.section("Ask the service")


def shape(text: str) -> list[str]:
    """Return the lines without numbers and widths."""
    lines = (" ".join(re.sub(r"\d[\d,.:-]*", "#", line).split()) for line in text.splitlines())
    return [line for line in lines if line]


async def test_searches_print_the_documented_output(tmp_path: Path) -> None:
    """Each command that has its output in the document prints these lines; a long output may go on."""
    shown = [step for step in SEARCH.steps if step.output]
    assert len(shown) == 5
    async with Emulator(FILES, seed=0) as emulator:
        for step in shown:
            answer = await called(tmp_path, *step.command.split()[1:], **variables(emulator))
            documented = shape(step.output)
            assert shape(answer.out + answer.err)[: len(documented)] == documented
