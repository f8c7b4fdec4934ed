"""Each rule of `python -m tools.lint` finds what breaks it and accepts the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.rows import every
from tools.docs.documents import ROOT, Document
from tools.lint import names, pages
from tools.lint.__main__ import print_problems
from tools.lint.problems import Problem, Source

if TYPE_CHECKING:
    import pytest


@every(
    ("text", "line", "start"),
    [
        ("told = 1", 1, "rename told"),
        ("\ndef f(each): ...", 2, "rename each"),
        ("class Mending: ...", 1, "rename Mending"),
        ('"""What is owed."""', 1, "replace 'owed'"),
        ("# a horizon", 1, "replace 'horizon'"),
        ('x = f"{1} flaws"', 1, "replace 'flaws'"),
    ],
)
def test_words_of_the_old_dialect_are_found(text: str, line: int, start: str) -> None:
    """Identifiers, docstrings, comments and messages are searched, and the line is named."""
    (problem,) = names.check_words(Source("m.py", text))
    assert str(problem).startswith(f"m.py:{line}: {start}")


def test_names_and_sizes() -> None:
    """Participles as functions, a class name twice, vague modules and long files are found; usual names are not."""
    docstring = "Read the rows of a part, or say why it is gone: nobody reads it at once and once more."
    usual = Source("m.py", f"def read_rows(path):\n    '''{docstring}'''\n    part = path\n")
    assert not [*names.check_words(usual), *names.check_function_names(usual), *names.check_modules(usual)]
    [problem] = names.check_function_names(Source("m.py", "def _with_place(): ...\ndef read_rows(): ..."))
    assert str(problem) == "m.py:1: begin _with_place with a verb"
    classes = [Source("one.py", "class Part: ..."), Source("two.py", "class Part: ...\nclass Other: ...")]
    [problem] = names.check_class_names(classes)
    assert str(problem) == "two.py:1: rename Part: one.py has a class of that name"
    [problem] = names.check_modules(Source("pipeline/utils.py", ""))
    assert str(problem) == "pipeline/utils.py:1: name the module after its content, not utils"
    assert [problem.line for problem in names.check_modules(Source("m.py", "x = 1\n" * 321))] == [1]
    assert not list(names.check_modules(Source("m.py", "x = 1\n" * 320 + '"""A text."""\n' * 9)))


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
    rows += ["| step | file | function | what |", "|---|---|---|---|", "| 1 | `pipeline/cli/app.py` | `nothing` | - |"]
    architecture = Document(page.path, "\n".join([*rows, "| 2 | `pipeline/cli/app.py` | `main` | - |", ""]))
    assert [problem.line for problem in pages.check_named_code(security, architecture)] == [1, 3, 7]
