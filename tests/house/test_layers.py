"""The house rules of the source tree: imports point down, files and functions are short, names say something."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from pipeline.cli import VERBS

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT: Final = Path(__file__).resolve().parents[2]
LAYERS: Final = (
    {"__main__"},
    {"cli"},
    {"commands"},
    {"call"},
    {"runs"},
    {"crawl", "exports", "watching", "dashboard"},
    {"service", "flatten", "lake", "published"},
    {"sources", "bugs"},
    {"progress", "logs", "settings", "flags"},
    {"errors", "wording"},
)
"""From top to bottom. A unit may import what stands below it, never its neighbours; schemas lie below them all."""

_VAGUE: Final = frozenset({"utils", "util", "helpers", "helper", "common", "base", "manager", "misc"})
_MAX_FILE_LINES: Final = 400
_MAX_FUNCTION_LINES: Final = 60


@dataclass(frozen=True)
class Module:
    """A source file of ours."""

    path: Path
    tree: ast.Module

    @property
    def name(self) -> str:
        """Its dotted name."""
        parts = self.path.relative_to(ROOT).with_suffix("").parts
        return ".".join(part for part in parts if part != "__init__")

    @property
    def unit(self) -> str:
        """Its package or module right below `pipeline`; empty for `pipeline` itself and for schemas."""
        parts = self.name.split(".")
        return parts[1] if parts[0] == "pipeline" and len(parts) > 1 else ""


def _modules(*folders: str) -> list[Module]:
    paths = sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))
    return [Module(path, ast.parse(path.read_text(encoding="utf-8"))) for path in paths]


OURS: Final = _modules("pipeline", "schemas")
EVERYTHING: Final = [*OURS, *_modules("tests")]


def _imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            assert node.module is not None
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _layer(unit: str) -> int:
    return next(place for place, units in enumerate(LAYERS) if unit in units)


def flaw(importer: str, imported: str) -> str | None:
    """What is wrong with one unit of `pipeline` importing another; None when it is right."""
    if importer == imported:
        return None
    if importer == "emulator":
        return "the emulator imports nothing of ours"
    if imported == "emulator":
        return None if importer == "commands" else "only commands and tests import the emulator"
    if _layer(importer) == _layer(imported):
        return "neighbours do not import each other"
    return "imports point down" if _layer(imported) < _layer(importer) else None


@pytest.mark.parametrize(
    ("importer", "imported", "wrong"),
    [
        ("commands", "lake", False),
        ("crawl", "service", False),
        ("commands", "emulator", False),
        ("service", "lake", True),
        ("logs", "settings", True),
        ("lake", "runs", True),
        ("crawl", "emulator", True),
        ("emulator", "errors", True),
    ],
)
def test_the_rule_of_layers_can_fail(importer: str, imported: str, wrong: bool) -> None:  # noqa: FBT001
    """The rule tells right imports from wrong ones."""
    assert (flaw(importer, imported) is not None) is wrong


@pytest.mark.parametrize("module", OURS, ids=lambda module: module.name)
def test_imports_point_down(module: Module) -> None:
    """A module imports only what lies below it, so that each layer can be read and tested without the ones above."""
    wrong = []
    for name in _imports(module.tree):
        parts = name.split(".")
        if parts[0] == "tests" or (module.name.startswith("schemas") and parts[0] == "pipeline"):
            wrong.append(name)
        if module.unit == "emulator" and parts[0] == "schemas":
            wrong.append(f"{name}: the emulator imports nothing of ours")
        is_unit = parts[0] == "pipeline" and len(parts) > 1 and parts[1] != "__version__"
        if module.unit and is_unit and (reason := flaw(module.unit, parts[1])):
            wrong.append(f"{name}: {reason}")
    assert not wrong


def test_verbs_do_not_import_each_other() -> None:
    """Each verb stands alone; what two share lies in a module that is no verb."""
    verbs = tuple(verb.module for verb in VERBS.values())
    for module in OURS:
        if module.name in verbs:
            assert not [name for name in _imports(module.tree) if name.startswith(verbs)], module.name


def test_every_unit_has_its_layer() -> None:
    """A new package or module right below `pipeline` is given its place in the list of layers."""
    known = set().union(*LAYERS) | {"emulator", ""}
    assert {module.unit for module in OURS} <= known


@pytest.mark.parametrize("module", OURS, ids=lambda module: module.name)
def test_imports_stand_at_the_top(module: Module) -> None:
    """No function imports anything: what a module needs is seen at its head (cli.py imports verbs by their names)."""
    functions = [node for node in ast.walk(module.tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    hidden = [
        function.name
        for function in functions
        for node in ast.walk(function)
        if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    assert not hidden
    if module.name != "pipeline.cli":
        assert not {"importlib", "importlib.import_module"} & set(_imports(module.tree))


@pytest.mark.parametrize("module", EVERYTHING, ids=lambda module: module.name)
def test_a_file_is_read_in_one_sitting(module: Module) -> None:
    """No file is longer than 400 lines and no function's body longer than 60; a verb's options are a table."""
    assert len(module.path.read_text(encoding="utf-8").splitlines()) <= _MAX_FILE_LINES
    for node in ast.walk(module.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or 0) - node.body[0].lineno + 1
            assert length <= _MAX_FUNCTION_LINES, f"{node.name} has {length} lines"


@pytest.mark.parametrize("module", EVERYTHING, ids=lambda module: module.name)
def test_names_say_what_a_module_does(module: Module) -> None:
    """No module is called utils, helpers, common, base or manager."""
    assert not _VAGUE & set(module.name.split("."))
