"""The rules of names, words and sizes: one name for one thing, verbs for functions, and no private dialect."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from typing import TYPE_CHECKING, Final

from tools.lint.problems import Problem

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tools.lint.problems import Source

_FORBIDDEN_PARTS: Final = frozenset(
    "told tell tells said say says saying spell spells spelled spelt spelling anew aside gone mend mended mending mends"
    " whoever nobody somebody heal heals healed healing witness witnesses promise promised promises vouch vouches"
    " vouched horizon horizons anchor anchored anchors stranger strangers owed owes owe dead fold folded folding"
    " folds flaw flaws remedy remedies alarm alarms bears bear bore wish wished wishes terms tally ticket tickets"
    " verb verbs office aftermath pulse pulses grown peculiar asker asking judged judging judges picture"
    " pictures".split()
)
"""Words of the old dialect: not a part of an identifier, not a word of a docstring, a comment or a message."""

_PLAIN_WORDS: Final = frozenset(
    "told tell tells said say says saying gone nobody dead terms wish wished wishes".split()
)
"""Of these, what is wrong in a name, but usual English in a sentence: "the hint says why", "the folder is gone"."""

_FORBIDDEN_WORDS: Final = _FORBIDDEN_PARTS - _PLAIN_WORDS

_FORBIDDEN_NAMES: Final = frozenset(
    "each found given place places held most least came around beside made kept shown brought seen wanted due here"
    " there mine theirs whole sound several many some".split()
)
"""Words that say nothing as the name of a variable, a parameter, a function or an attribute."""

_FORBIDDEN_PHRASES: Final = (
    "let go", "lets go", "letting go", "within sight", "stands there", "may not stand", "is no more", "one row a ",
)  # fmt: skip

_ALLOWED: Final[dict[str, frozenset[str]]] = {
    "pipeline/output/tables.py": frozenset({"fold"}),  # a value of rich
    **dict.fromkeys(  # keys of stored records; the emulator draws them
        (
            *("pipeline/lake/ledger/queries.py", "pipeline/publish/target.py", "pipeline/emulator/image_host.py"),
            *("pipeline/emulator/options.py", "pipeline/emulator/pictures.py"),
        ),
        frozenset({"picture", "pictures"}),
    ),
}
"""Words that a module may use after all, with the reason beside each."""

_NOT_FIRST_WORDS: Final = frozenset(
    "aggregated are by chosen counted known labelled made must no one purged quoted recorded"
    " shown some sorted spelled taken unseen whole with wrong".split()
)
"""Words that no function name begins with: participles, determiners and prepositions do not say what it does."""

_VAGUE: Final = frozenset({"utils", "util", "helpers", "helper", "common", "base", "manager", "misc"})
_MAX_STATEMENTS: Final = 320
"""In a file; ruff counts those of a function."""


def check_words(source: Source) -> Iterator[Problem]:
    """Find words that the glossary replaced: in identifiers, docstrings, comments and messages."""
    allowed = _ALLOWED.get(source.path, frozenset())
    for name, line in _list_identifiers(source.nodes):
        found = set(_split_name(name)) & _FORBIDDEN_PARTS | ({name.strip("_").lower()} & _FORBIDDEN_NAMES)
        for word in sorted(found - allowed):
            yield Problem(source.path, line, f"rename {name}: no name is {word!r}; see docs/glossary.md")
    for text, line in _list_prose(source.text):
        lower = " ".join(text.lower().split())
        found = set(re.findall(r"[a-z]+", lower)) & _FORBIDDEN_WORDS | {p for p in _FORBIDDEN_PHRASES if p in lower}
        for word in sorted(found - allowed):
            yield Problem(source.path, line, f"replace {word!r} by a word of docs/glossary.md")


def check_function_names(source: Source) -> Iterator[Problem]:
    """Find functions whose name begins with a participle, a determiner or a preposition."""
    functions = [node for node in source.nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    for node in functions:
        if not _NOT_FIRST_WORDS.isdisjoint(_split_name(node.name)[:1]):
            yield Problem(source.path, node.lineno, f"begin {node.name} with a verb")


def check_class_names(sources: Iterable[Source]) -> Iterator[Problem]:
    """Find class names that two modules define; the emulator is a program of its own."""
    defined: dict[str, str] = {}
    classes = ((source.path, node) for source in sources for node in source.nodes if isinstance(node, ast.ClassDef))
    for path, node in classes:
        if "/emulator/" not in path and (first := defined.setdefault(node.name, path)) != path:
            yield Problem(path, node.lineno, f"rename {node.name}: {first} has a class of that name")


def check_modules(source: Source) -> Iterator[Problem]:
    """Find modules whose name says nothing about their content, and those with too many statements."""
    for vague in sorted(_VAGUE & set(source.path.removesuffix(".py").split("/"))):
        yield Problem(source.path, 1, f"name the module after its content, not {vague}")
    count = sum(isinstance(node, ast.stmt) and not _is_text(node) for node in source.nodes)
    if count > _MAX_STATEMENTS:
        yield Problem(source.path, 1, f"split the file: {count} statements, at most {_MAX_STATEMENTS}")


def _is_text(node: ast.stmt) -> bool:
    """Return whether this is a docstring, which costs nothing."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


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
