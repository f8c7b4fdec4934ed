"""The documents, read: their blocks, tables, links, and the commands and names they show."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ROOT: Final = Path(__file__).resolve().parents[2]
_FENCE: Final = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_TICKED: Final = re.compile(r"`([^`\n]+)`")
_LINK: Final = re.compile(r"\]\(([^)\s]+)\)")
_TITLE: Final = re.compile(r"^#{1,4} (.+)$", re.MULTILINE)
_OPERATORS: Final = frozenset({"|", "||", "&&", "&", ";", "(", ")", "<", ">"})
PROMPT: Final = "$ "


@dataclass(frozen=True)
class Step:
    """A command as typed after the prompt, and what was printed for it."""

    command: str
    printed: str


class Document:
    """A Markdown file."""

    def __init__(self, path: Path) -> None:
        self.text = path.read_text(encoding="utf-8")

    def blocks(self, language: str) -> list[str]:
        """The fenced blocks of a language."""
        return [body for found, body in _FENCE.findall(self.text) if found == language]

    @cached_property
    def prose(self) -> str:
        """All but the fenced blocks."""
        return _FENCE.sub("", self.text)

    @cached_property
    def ticked(self) -> list[str]:
        """What stands between backticks outside of blocks, lines joined."""
        return _TICKED.findall(re.sub(r"(?<!\n)\n(?!\n)", " ", self.prose))

    @cached_property
    def links(self) -> list[str]:
        """Where its links lead."""
        return _LINK.findall(self.prose)

    @cached_property
    def anchors(self) -> set[str]:
        """What a link may name within it, as GitHub spells titles."""
        titles = _TITLE.findall(self.prose)
        return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}

    def table(self, head: str) -> list[list[str]]:
        """The rows of the table whose head begins with this cell."""
        lines = self.prose.splitlines()
        start = next(place for place, line in enumerate(lines) if line.startswith(f"| {head} |"))
        rows = []
        for line in lines[start + 2 :]:
            if not line.startswith("|"):
                break
            rows.append([cell.strip() for cell in line.strip("|").split(" | ")])
        return rows

    @cached_property
    def steps(self) -> list[Step]:
        """Every command of the console blocks, with what was printed."""
        return [step for block in self.blocks("console") for step in _steps(block)]


def _steps(block: str) -> Iterator[Step]:
    command, printed = "", list[str]()
    for line in block.splitlines():
        if line.startswith(PROMPT):
            if command:
                yield Step(command, "\n".join(printed))
            command, printed = line.removeprefix(PROMPT), []
        elif not printed and command.count('"') % 2:
            command += "\n" + line  # a question that goes on
        else:
            printed.append(line)
    if command:
        yield Step(command, "\n".join(printed))


def calls(command: str) -> list[list[str]]:
    """The arguments of each call of scanlake in a line of shell."""
    words = shlex.shlex(command, posix=True, punctuation_chars="();<>|&")
    words.whitespace_split = True
    words.commenters = "#"
    found: list[list[str]] = [[]]
    for word in words:
        if word in _OPERATORS:
            found.append([])
        else:
            found[-1].append(word)
    return [call for each in found if (call := _of_scanlake(each)) is not None]


def _of_scanlake(words: Sequence[str]) -> list[str] | None:
    rest = list(words)
    while rest and (rest[0] == "sudo" or re.fullmatch(r"[A-Z_]+=.*", rest[0])):
        rest.pop(0)
    return rest[1:] if rest and rest[0].rpartition("/")[2] == "scanlake" else None


README: Final = Document(ROOT / "README.md")
CHANGELOG: Final = Document(ROOT / "CHANGELOG.md")
