"""The rules of names and words: one name for one thing, verbs for functions, and no private dialect."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.rows import every

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

ROOT: Final = Path(__file__).resolve().parents[2]
SOURCES: Final = sorted([*ROOT.glob("pipeline/**/*.py"), *ROOT.glob("schemas/**/*.py")])

FORBIDDEN_PARTS: Final = frozenset(
    "told tell tells said say says saying spell spells spelled spelt spelling anew aside gone mend mended mending mends"
    " whoever nobody somebody heal heals healed healing witness witnesses promise promised promises vouch vouches"
    " vouched horizon horizons anchor anchored anchors stranger strangers owed owes owe dead fold folded folding"
    " folds flaw flaws remedy remedies alarm alarms bears bear bore wish wished wishes terms tally ticket tickets"
    " verb verbs office aftermath pulse pulses grown peculiar asker asking judged judging judges".split()
)
"""Words of the old dialect: not a part of an identifier, not a word of a docstring, a comment or a message."""

FORBIDDEN_NAMES: Final = frozenset(
    "each found given place places held most least came around beside made kept shown brought seen wanted due here"
    " there mine theirs whole sound several many some".split()
)
"""Words that say nothing as the name of a variable, a parameter, a function or an attribute."""

FORBIDDEN_PHRASES: Final = (
    "let go", "lets go", "letting go", "at once a", "within sight", "for people", "no more ", "stands for",
    "stands there",
    "may not stand", "is no more", "one row a ", "once more", "ask again", "name a folder", "take a later",
)  # fmt: skip

ALLOWED: Final[dict[str, frozenset[str]]] = {
    "pipeline/commands/share.py": frozenset({"fold"}),  # a value of rich
    "pipeline/text_tables.py": frozenset({"fold"}),  # a value of rich
}
"""Words that a module may use after all, with the reason beside each."""

NOT_FIRST_WORDS: Final = frozenset(
    "aggregated are by chosen counted known labelled made must no one purged quoted recorded"
    " shown some sorted spelled taken unseen whole with wrong".split()
)
"""Words that no function name begins with: participles, determiners and prepositions do not say what it does."""


def parts_of(name: str) -> list[str]:
    """The lower-case words of an identifier: `_readRowsOf` and `_read_rows_of` both give read, rows, of."""
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)]


def identifiers(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Every name that a module defines: classes, functions, parameters, variables, attributes."""
    for node in ast.walk(tree):
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


def prose(text: str) -> Iterator[tuple[str, int]]:
    """Every comment and every string of a module, with its line."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in {tokenize.COMMENT, tokenize.STRING} or tokenize.tok_name[token.type] == "FSTRING_MIDDLE":
            yield token.string, token.start[0]


def problems_in(text: str, allowed: frozenset[str] = frozenset()) -> list[str]:
    """The forbidden words of one module's source, a line each."""
    found = []
    for name, line in identifiers(ast.parse(text)):
        bad = set(parts_of(name)) & FORBIDDEN_PARTS | ({name.strip("_").lower()} & FORBIDDEN_NAMES)
        found += [f"{line}: {name}: {word}" for word in sorted(bad - allowed)]
    for words, line in prose(text):
        lower = " ".join(words.lower().split())
        bad = set(re.findall(r"[a-z]+", lower)) & FORBIDDEN_PARTS | {p for p in FORBIDDEN_PHRASES if p in lower}
        found += [f"{line}: in text: {word}" for word in sorted(bad - allowed)]
    return found


def test_no_word_of_the_old_dialect() -> None:
    """No identifier, docstring, comment or message of the product uses a word that the glossary replaced."""
    assert not [
        f"{name}: {problem}"
        for name, path in ((str(path.relative_to(ROOT)), path) for path in SOURCES)
        for problem in problems_in(path.read_text(encoding="utf-8"), ALLOWED.get(name, frozenset()))
    ]


@every(
    "text",
    ["told = 1", "def f(each): ...", "class Mending: ...", '"""What is owed."""', "# a horizon", 'x = f"{1} gone"'],
)
def test_the_rule_of_words_can_fail(text: str) -> None:
    """The rule sees identifiers, docstrings, comments and messages."""
    assert problems_in(text)
    assert not problems_in("def read_rows(path):\n    '''Read the rows of a part.'''\n    part = path\n")


def class_definitions(tree: ast.AST) -> list[ast.ClassDef]:
    """Return the classes that a module defines."""
    return [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]


def repeated_classes(trees: Iterable[tuple[str, ast.AST]]) -> dict[str, list[str]]:
    """Return the class names that several modules define, with the modules."""
    modules = defaultdict(list)
    for name, tree in trees:
        for node in class_definitions(tree):
            modules[node.name].append(name)
    return {name: paths for name, paths in modules.items() if len(paths) > 1}


def misnamed_exceptions(trees: Iterable[ast.AST]) -> set[str]:
    """Return the exceptions whose name does not end in Error."""
    classes = [node for tree in trees for node in class_definitions(tree)]
    known, grew = {"Exception", "BaseException", "ScanlakeError", "ValueError", "OSError", "RuntimeError"}, True
    while grew:
        derived = {node.name for node in classes if {getattr(base, "id", "") for base in node.bases} & known}
        grew = not derived <= known
        known |= derived
    return {node.name for node in classes if node.name in known and not node.name.endswith("Error")}


def misnamed_functions(tree: ast.AST) -> list[str]:
    """Return the functions whose first word is a participle, a determiner or a preposition."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return [node.name for node in functions if parts_of(node.name)[:1] and parts_of(node.name)[0] in NOT_FIRST_WORDS]


@cache
def read_trees() -> list[tuple[str, ast.AST]]:
    """Return path and syntax tree of every module of the product."""
    return [(str(path.relative_to(ROOT)), ast.parse(path.read_text(encoding="utf-8"))) for path in SOURCES]


def test_no_class_name_twice() -> None:
    """A class name means one thing in the whole product; the emulator is a program of its own."""
    assert not repeated_classes((path, tree) for path, tree in read_trees() if "/emulator/" not in path)


def test_exceptions_end_in_error() -> None:
    """The name of an exception ends in Error, except for those that end a run on purpose."""
    assert not misnamed_exceptions(tree for _, tree in read_trees()) - {"RunInterrupted", "RemoteTraceback"}


def test_no_function_begins_with_a_participle() -> None:
    """A function name begins with a verb, a predicate, a conversion or the noun of its result."""
    assert not [f"{path}: {name}" for path, tree in read_trees() for name in misnamed_functions(tree)]


def test_the_rules_of_names_can_fail() -> None:
    """Each rule of names finds a name that breaks it and accepts the others."""
    one, two = ast.parse("class Part: ..."), ast.parse("class Part: ...\nclass Other: ...")
    assert repeated_classes([("one", one), ("two", two)]) == {"Part": ["one", "two"]}
    tree = ast.parse("class LakeBusy(OSError): ...\nclass Nested(LakeBusy): ...\nclass LakeError(OSError): ...")
    assert misnamed_exceptions([tree]) == {"LakeBusy", "Nested"}
    assert misnamed_functions(ast.parse("def chosen(): ...\ndef _with_place(): ...\ndef read_rows(): ...")) == [
        "chosen",
        "_with_place",
    ]
