"""The rules of the documents: lines that fit, times of one zone, and links and names that lead somewhere."""

from __future__ import annotations

import ast
import re
from itertools import chain
from typing import TYPE_CHECKING, Final

from tools.docs.documents import ARCHITECTURE, GENERATED, ROOT, SECURITY, Document
from tools.lint.problems import Problem

if TYPE_CHECKING:
    from collections.abc import Iterator

_MAX_LINE: Final = 120
_LOCAL_TIME: Final = re.compile(r"(?<!utc_)now\(\)(?! AT TIME ZONE 'UTC')")
_TESTS: Final = re.compile(r"`((?:\w+/)?\w+\.py)` \|$", re.MULTILINE)


def check_page(document: Document) -> Iterator[Problem]:
    """Find long lines, queries in local time, broken links, and files and targets of make that do not exist."""
    path = document.name
    for number, line in enumerate(document.text.splitlines(), 1):
        if path not in GENERATED and len(line) > _MAX_LINE:
            yield Problem(path, number, f"wrap the line: {len(line)} characters, at most {_MAX_LINE}")
    for block in chain(document.blocks("sql"), document.blocks("console")):
        if _LOCAL_TIME.search(block):
            yield _locate(document, block, "compare the lake's times with utc_now(): now() is in the reader's zone")
    for link in document.links:
        if not link.startswith("https://") and _is_broken(document, link):
            yield _locate(document, link, f"correct the link: nothing is at {link}")
    for file in re.findall(r"\bconfigs/[\w./-]*\w", document.text):
        if not (ROOT / file).exists():
            yield _locate(document, file, f"correct the name: no file {file}")
    targets = re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    for target in re.findall(r"(?:`|\$ )make ([a-z-]+)", document.text):
        if target not in targets:
            yield _locate(document, f"make {target}", f"correct the name: no target {target}")


def check_named_code(security: Document = SECURITY, architecture: Document = ARCHITECTURE) -> Iterator[Problem]:
    """Find tests, modules and functions that the pages on security and architecture name, but that do not exist."""
    modules = [row[1].strip("`").partition("`")[0] for row in architecture.table("I want a new ...")]
    for page, folder, names in ((security, "tests", _TESTS.findall(security.text)), (architecture, ".", modules)):
        for name in names:
            if "NAME" not in name and not (ROOT / folder / name).exists():
                yield _locate(page, name, f"correct the name: no file {name}")
    for _, path, function, _ in architecture.table("step"):
        if not _is_defined(path.strip("`"), function.strip("`")):
            yield _locate(architecture, function, f"correct the trace: {path} does not define {function}")


def _locate(document: Document, text: str, advice: str) -> Problem:
    return Problem(document.name, document.text.partition(text)[0].count("\n") + 1, advice)


def _is_broken(document: Document, link: str) -> bool:
    target, _, anchor = link.partition("#")
    path = (document.path.parent / target).resolve()
    if target and not path.exists():
        return True
    return bool(anchor) and anchor not in (Document(path) if target else document).anchors


def _is_defined(path: str, function: str) -> bool:
    body: list[ast.stmt] = ast.parse((ROOT / path).read_text(encoding="utf-8")).body
    for name in function.split("."):
        kinds = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        found = [node for node in body if isinstance(node, kinds) and node.name == name]
        if len(found) != 1:
            return False
        body = found[0].body
    return True
