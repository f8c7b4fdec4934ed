"""Print a line for every problem, as file:line: what to do; exit 1 if there is one."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from tools.docs.documents import DOCUMENTS
from tools.lint import names, pages
from tools.lint.problems import read_sources

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tools.lint.problems import Problem


def find_problems() -> Iterator[Problem]:
    """Yield the problems that all checks find. A new check is called here."""
    product = read_sources(["pipeline", "schemas"])
    everything = [*product, *read_sources(["tests", "tools"])]
    for source in product:
        yield from names.check_words(source)
        yield from names.check_function_names(source)
    yield from names.check_class_names(product)
    for source in everything:
        yield from names.check_modules(source)
    for document in DOCUMENTS.values():
        yield from pages.check_page(document)
    yield from pages.check_named_code()


def print_problems(problems: Iterable[Problem]) -> int:
    """Print each problem once, in order, and return the exit code."""
    lines = [f"{problem}\n" for problem in sorted(set(problems))]
    sys.stdout.writelines(lines)
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(print_problems(find_problems()))
