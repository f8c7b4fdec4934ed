"""The documents: their blocks, tables, links, commands and names."""

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
GENERATED: Final = frozenset({"docs/cli.md", "docs/json.md"})


@dataclass(frozen=True)
class Step:
    """A command after the prompt, and its printed output."""

    command: str
    output: str


class Document:
    """A Markdown file."""

    def __init__(self, path: Path, text: str | None = None) -> None:
        self.path = path
        self.text = path.read_text(encoding="utf-8") if text is None else text

    @property
    def name(self) -> str:
        """The path below the project."""
        return self.path.relative_to(ROOT).as_posix()

    def blocks(self, language: str) -> list[str]:
        """Return the fenced blocks of a language."""
        return [body for name, body in _FENCE.findall(self.text) if name == language]

    def section(self, title: str) -> Document:
        """Return the section of a title of the second level as a document of its own.

        Raises `ValueError` if the page has no such title.
        """
        start = self.text.index(f"\n## {title}\n")
        return Document(self.path, self.text[start + 1 :].partition("\n## ")[0])

    @cached_property
    def prose(self) -> str:
        """The text without the fenced blocks."""
        return _FENCE.sub("", self.text)

    @cached_property
    def code_spans(self) -> list[str]:
        """The texts in backticks outside of blocks, with joined lines."""
        return _TICKED.findall(re.sub(r"(?<!\n)\n(?!\n)", " ", self.prose))

    @cached_property
    def links(self) -> list[str]:
        """The targets of the links."""
        return _LINK.findall(self.prose)

    @cached_property
    def anchors(self) -> set[str]:
        """The anchors of the titles, as GitHub and MkDocs build them."""
        titles = _TITLE.findall(self.prose)
        return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}

    def table(self, head: str) -> list[list[str]]:
        """Return the rows of the table whose first head cell is `head`."""
        lines = self.prose.splitlines()
        start = next(index for index, line in enumerate(lines) if line.startswith(f"| {head} |"))
        rows = []
        for line in lines[start + 2 :]:
            if not line.startswith("|"):
                break
            rows.append([cell.strip() for cell in line.strip("|").split(" | ")])
        return rows

    @cached_property
    def steps(self) -> list[Step]:
        """Every command of the console blocks, with its output."""
        return [step for block in self.blocks("console") for step in _steps(block)]


def _steps(block: str) -> Iterator[Step]:
    command, output = "", list[str]()
    for line in block.splitlines():
        if line.startswith(PROMPT):
            if command:
                yield Step(command, "\n".join(output))
            command, output = line.removeprefix(PROMPT), []
        elif not output and command.count('"') % 2:
            command += "\n" + line  # a query on several lines
        else:
            output.append(line)
    if command:
        yield Step(command, "\n".join(output))


def calls(command: str) -> list[list[str]]:
    """Return the arguments of each call of scanlake in a shell command."""
    words = shlex.shlex(command, posix=True, punctuation_chars="();<>|&")
    words.whitespace_split = True
    words.commenters = "#"
    commands: list[list[str]] = [[]]
    for word in words:
        if word in _OPERATORS:
            commands.append([])
        else:
            commands[-1].append(word)
    return [call for command in commands if (call := _scanlake_arguments(command)) is not None]


def _scanlake_arguments(words: Sequence[str]) -> list[str] | None:
    rest = list(words)
    while rest and (rest[0] == "sudo" or re.fullmatch(r"[A-Z_]+=.*", rest[0])):
        rest.pop(0)
    return rest[1:] if rest and rest[0].rpartition("/")[2] == "scanlake" else None


_PATHS: Final = [
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")),
    *sorted((ROOT / "docs").glob("*.md")),
]
DOCUMENTS: Final = {str(path.relative_to(ROOT)): Document(path) for path in _PATHS}
README: Final = DOCUMENTS["README.md"]
ARCHITECTURE: Final = DOCUMENTS["docs/architecture.md"]
INDEX: Final = DOCUMENTS["docs/index.md"]
OPERATIONS: Final = DOCUMENTS["docs/operations.md"]
QUERIES: Final = DOCUMENTS["docs/queries.md"]
SECURITY: Final = DOCUMENTS["docs/security.md"]
TABLES: Final = DOCUMENTS["docs/tables.md"]
