"""The rules of names and words: one name for one thing, verbs for functions, and no private dialect."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from typing import TYPE_CHECKING, Final

from tests.lint.problems import Problem

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from tests.lint.problems import Source

_FORBIDDEN_PARTS: Final = frozenset(
    "told tell tells said say says saying spell spells spelled spelt spelling anew aside gone mend mended mending mends"
    " whoever nobody somebody heal heals healed healing witness witnesses promise promised promises vouch vouches"
    " vouched horizon horizons anchor anchored anchors stranger strangers owed owes owe dead fold folded folding"
    " folds flaw flaws remedy remedies alarm alarms bears bear bore wish wished wishes terms tally ticket tickets"
    " verb verbs office aftermath pulse pulses grown peculiar asker asking judged judging judges".split()
)
"""Words of the old dialect: not a part of an identifier, not a word of a docstring, a comment or a message."""

_FORBIDDEN_NAMES: Final = frozenset(
    "each found given place places held most least came around beside made kept shown brought seen wanted due here"
    " there mine theirs whole sound several many some".split()
)
"""Words that say nothing as the name of a variable, a parameter, a function or an attribute."""

_FORBIDDEN_PHRASES: Final = (
    "let go", "lets go", "letting go", "at once a", "within sight", "for people", "no more ", "stands for",
    "stands there",
    "may not stand", "is no more", "one row a ", "once more", "ask again", "name a folder", "take a later",
)  # fmt: skip

_ALLOWED: Final[dict[str, frozenset[str]]] = {
    "pipeline/text_tables.py": frozenset({"fold"}),  # a value of rich
}
"""Words that a module may use after all, with the reason beside each."""

_NOT_FIRST_WORDS: Final = frozenset(
    "aggregated are by chosen counted known labelled made must no one purged quoted recorded"
    " shown some sorted spelled taken unseen whole with wrong".split()
)
"""Words that no function name begins with: participles, determiners and prepositions do not say what it does."""

_EXCEPTIONS: Final = frozenset({"Exception", "BaseException", "ScanlakeError", "ValueError", "OSError", "RuntimeError"})
_NOT_ERRORS: Final = frozenset({"RunInterrupted", "RemoteTraceback"})
"""Exceptions that end a run on purpose."""

_VAGUE: Final = frozenset({"utils", "util", "helpers", "helper", "common", "base", "manager", "misc"})


def check_words(source: Source) -> Iterator[Problem]:
    """Find words that the glossary replaced: in identifiers, docstrings, comments and messages."""
    allowed = _ALLOWED.get(source.path, frozenset())
    for name, line in _list_identifiers(source.nodes):
        found = set(_split_name(name)) & _FORBIDDEN_PARTS | ({name.strip("_").lower()} & _FORBIDDEN_NAMES)
        for word in sorted(found - allowed):
            yield Problem(source.path, line, f"rename {name}: no name is {word!r}; see docs/glossary.md")
    for text, line in _list_prose(source.text):
        lower = " ".join(text.lower().split())
        found = set(re.findall(r"[a-z]+", lower)) & _FORBIDDEN_PARTS | {p for p in _FORBIDDEN_PHRASES if p in lower}
        for word in sorted(found - allowed):
            yield Problem(source.path, line, f"replace {word!r} by a word of docs/glossary.md")


def check_function_names(source: Source) -> Iterator[Problem]:
    """Find functions whose name begins with a participle, a determiner or a preposition."""
    for node in source.functions:
        if (words := _split_name(node.name)) and words[0] in _NOT_FIRST_WORDS:
            yield Problem(source.path, node.lineno, f"begin {node.name} with a verb")


def check_class_names(sources: Sequence[Source]) -> Iterator[Problem]:
    """Find class names that two modules define, and exceptions that do not end in Error."""
    defined: dict[str, str] = {}
    exceptions = _find_exceptions(node for source in sources for node in source.classes)
    for source in sources:
        for node in source.classes:
            # The emulator is a program of its own.
            first = source.path if "/emulator/" in source.path else defined.setdefault(node.name, source.path)
            if first != source.path:
                yield Problem(source.path, node.lineno, f"rename {node.name}: {first} has a class of that name")
            if node.name in exceptions - _NOT_ERRORS and not node.name.endswith("Error"):
                yield Problem(source.path, node.lineno, f"end the name of the exception {node.name} in Error")


def check_module_names(sources: Iterable[Source]) -> Iterator[Problem]:
    """Find modules whose name says nothing about their content."""
    for source in sources:
        for vague in sorted(_VAGUE & set(source.path.removesuffix(".py").split("/"))):
            yield Problem(source.path, 1, f"name the module after its content, not {vague}")


def _find_exceptions(classes: Iterable[ast.ClassDef]) -> frozenset[str]:
    nodes, known = list(classes), _EXCEPTIONS
    while True:
        derived = {node.name for node in nodes if {getattr(parent, "id", "") for parent in node.bases} & known}
        if derived <= known:
            return known - _EXCEPTIONS | derived
        known |= derived


def _split_name(name: str) -> list[str]:
    """Return the lower-case words of an identifier: `_readRowsOf` and `_read_rows_of` both give read, rows, of."""
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)]


def _list_identifiers(nodes: Iterable[ast.AST]) -> Iterator[tuple[str, int]]:
    """Yield every name that a module defines: classes, functions, parameters, variables, attributes."""
    for node in nodes:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr, node.lineno
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
            yield node.name, node.lineno


def _list_prose(text: str) -> Iterator[tuple[str, int]]:
    """Yield every comment and every string of a module, with its line."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in {tokenize.COMMENT, tokenize.STRING} or tokenize.tok_name[token.type] == "FSTRING_MIDDLE":
            yield token.string, token.start[0]
