"""What the README shows as printed is what is printed, but for figures and widths."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import pytest

from pipeline.cli import VERBS
from tests.docs.diagram import diagram, strange
from tests.docs.readme import README

if TYPE_CHECKING:
    from tests.docs.conftest import Lived

_FIGURE: Final = re.compile(r"\d[\d,.:TZ-]*")
_ADDRESS: Final = re.compile(r"https?://\S+|/\S*/")


def _shape(text: str) -> list[str]:
    """The lines without figures, addresses and widths."""
    plain = (" ".join(_FIGURE.sub("#", _ADDRESS.sub("@", line)).split()) for line in text.splitlines())
    return [line for line in plain if line]


def _shown(command: str) -> str:
    return next(step.printed for step in README.steps if step.command.startswith(command))


@pytest.mark.parametrize("command", ["scanlake doctor", "scanlake plan", "scanlake query"])
def test_the_first_minutes_look_as_shown(command: str, lived: Lived) -> None:
    """A newcomer sees what the README shows, line by line; how full the disk is may differ."""
    found, shown = (
        [line for line in _shape(text) if " disk " not in line] for text in (lived.printed[command], _shown(command))
    )
    assert found == shown


def test_init_says_what_is_shown(lived: Lived) -> None:
    """After its questions `init` prints what the README shows; a token that is there is not written again."""
    shown = [line for line in _shape(_shown("scanlake init")) if not line.startswith(("Address of", "Token (not"))]
    assert _shape(lived.printed["scanlake init"]) == [line for line in shown if not line.startswith("written: token")]


def test_a_sync_sums_up_as_shown(lived: Lived) -> None:
    """A sync's summary has the lines that the README shows; how its pace came about may differ."""
    found, shown = (_shape(text) for text in (lived.printed["scanlake sync"], _shown("scanlake sync")))
    assert [line.split()[0] for line in found] == [line.split()[0] for line in shown]
    differing = [pair for pair in zip(found, shown, strict=True) if pair[0] != pair[1]]
    assert all(mine.startswith("pace") for mine, _ in differing), differing


def test_the_demo_looks_as_shown(lived: Lived) -> None:
    """The demo prints what the first screen shows of it, up to the queries' answers."""
    shown = _shape(_shown("make demo").removesuffix("..."))
    assert _shape(lived.printed["make demo"])[: len(shown)] == shown


def test_the_commands_are_those_of_the_help() -> None:
    """The table of commands has every verb in the order of the help, with its words."""
    assert [(name.strip("`"), text) for name, text in README.table("command")] == [
        (name, verb.help) for name, verb in VERBS.items()
    ]


def test_the_diagram_is_drawn_from_the_tables() -> None:
    """The entity diagram equals the one drawn from the tables, in forms that mermaid takes."""
    assert README.blocks("mermaid") == [diagram()], "put in the output of: python -m tests.docs.diagram"
    assert not strange(diagram())
