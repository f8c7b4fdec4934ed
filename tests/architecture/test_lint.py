"""Each rule of `python -m tests.lint` finds what breaks it and accepts the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.docs.documents import ROOT, Document
from tests.lint import names, pages, sizes
from tests.lint.__main__ import print_problems
from tests.lint.problems import Problem, Source
from tests.rows import every

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pytest


def advice(problems: Iterable[Problem]) -> list[str]:
    """Return the problems as they are printed."""
    return [str(problem) for problem in problems]


@every(
    ("text", "line", "start"),
    [
        ("told = 1", 1, "rename told"),
        ("\ndef f(each): ...", 2, "rename each"),
        ("class Mending: ...", 1, "rename Mending"),
        ('"""What is owed."""', 1, "replace 'owed'"),
        ("# a horizon", 1, "replace 'horizon'"),
        ('x = f"{1} gone"', 1, "replace 'gone'"),
    ],
)
def test_words_of_the_old_dialect_are_found(text: str, line: int, start: str) -> None:
    """Identifiers, docstrings, comments and messages are searched, and the line is named."""
    (problem,) = names.check_words(Source("m.py", text))
    assert str(problem).startswith(f"m.py:{line}: {start}")


def test_usual_names_are_accepted() -> None:
    """A verb and nouns of the glossary are no problem."""
    source = Source("m.py", "def read_rows(path):\n    '''Read the rows of a part.'''\n    part = path\n")
    assert not [*names.check_words(source), *names.check_function_names(source), *sizes.check_sizes(source)]


def test_names_of_functions_classes_and_modules() -> None:
    """Participles as functions, a class name twice, exceptions without Error and vague modules are found."""
    functions = "def chosen(): ...\ndef _with_place(): ...\ndef read_rows(): ..."
    assert advice(names.check_function_names(Source("m.py", functions))) == [
        "m.py:1: begin chosen with a verb",
        "m.py:2: begin _with_place with a verb",
    ]
    classes = [Source("one.py", "class Part: ..."), Source("two.py", "class Part: ...\nclass Other: ...")]
    assert advice(names.check_class_names(classes)) == ["two.py:1: rename Part: one.py has a class of that name"]
    errors = "class LakeBusy(OSError): ...\nclass Nested(LakeBusy): ...\nclass LakeError(OSError): ..."
    assert [problem.line for problem in names.check_class_names([Source("m.py", errors)])] == [1, 2]
    modules = [Source("pipeline/utils.py", ""), Source("pipeline/lake/parts.py", "")]
    assert advice(names.check_module_names(modules)) == [
        "pipeline/utils.py:1: name the module after its content, not utils"
    ]


def test_long_files_and_functions() -> None:
    """A function with 46 statements and a file with 321 are found; docstrings are not counted."""
    function = 'def long():\n    """Do."""\n' + "    x = 1\n" * 46
    assert advice(sizes.check_sizes(Source("m.py", function))) == ["m.py:1: split long: 46 statements, at most 45"]
    assert [problem.line for problem in sizes.check_sizes(Source("m.py", "x = 1\n" * 321))] == [1]
    assert not advice(sizes.check_sizes(Source("m.py", "x = 1\n" * 320 + '"""A text."""\n' * 9)))


def test_problems_are_printed_by_place(capsys: pytest.CaptureFixture[str]) -> None:
    """Each problem is a line of stdout, in order and once; without one the exit code is 0."""
    later, first = Problem("m.py", 12, "rename x"), Problem("m.py", 2, "rename y")
    assert print_problems([later, first, later]) == 1
    assert capsys.readouterr().out == "m.py:2: rename y\nm.py:12: rename x\n"
    assert print_problems([]) == 0


def test_long_lines_dead_links_and_local_times() -> None:
    """A document's long lines, links without a target, missing files and targets and local times are found."""
    lines = ["# A", "x" * 121, "[a](#b) [c](d.md) [e](#a)", "`make nothing` `make test`", "configs/none.toml", "```sql"]
    page = Document(ROOT / "docs" / "page.md", "\n".join([*lines, "SELECT now(), utc_now()", "```", ""]))
    assert [problem.line for problem in pages.check_page(page)] == [2, 7, 3, 3, 5, 4]
    security = Document(page.path, "| it | `lake/test_nothing.py` |\n| it | `lake/test_purge.py` |\n")
    rows = ["| I want a new ... | where |", "|---|---|", "| thing | `pipeline/nothing.py` |", ""]
    rows += ["| step | file | function | what |", "|---|---|---|---|", "| 1 | `pipeline/cli.py` | `nothing` | - |"]
    architecture = Document(page.path, "\n".join([*rows, "| 2 | `pipeline/cli.py` | `main` | - |", ""]))
    assert [problem.line for problem in pages.check_named_code(security, architecture)] == [1, 3, 7]
