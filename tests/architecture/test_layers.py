"""Rules of the source tree: imports point down without circles, and are at the top."""

from __future__ import annotations

import ast
from collections import defaultdict
from dataclasses import dataclass
from functools import cache, cached_property
from graphlib import TopologicalSorter
from typing import TYPE_CHECKING, Final

from tests.lint.problems import Source, read_sources
from tests.rows import every

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

LAYERS: Final = (
    {"__main__"},
    {"cli"},
    {"commands"},
    {"sources", "run_summaries", "publish_after_run", "monitored_run"},
    {"context", "publish_outcome"},
    {
        *("sync", "maintenance", "reports", "shares", "monitoring", "pages", "publish", "images"),
    },
    {"crawl"},
    {"client", "lake"},
    {"flatten"},
    {"worker_process", "live_progress"},
    {"child_commands", "config", "findings", "process", "templates", "text_tables"},
    {"progress", "settings", "command_options"},
    {"logs"},
    {"log_events"},
    {"errors", "version", "formatting", "atomic_files", "locations", "tokens", "urls", "stop_signals"},
)
"""From top to bottom. A unit may import units below it, never units of its own layer; schemas is below all."""


@dataclass(frozen=True, eq=False)
class Module:
    """A source file of the project."""

    source: Source

    @cached_property
    def name(self) -> str:
        """Dotted name."""
        return self.source.path.removesuffix(".py").replace("/", ".").removesuffix(".__init__")

    @cached_property
    def imports(self) -> list[str]:
        """The dotted name of every import, including those for type checking."""
        return list(list_imports(self.source.nodes))

    @cached_property
    def unit(self) -> str:
        """Package or module directly below `pipeline`; empty for `pipeline` itself and for schemas."""
        parts = self.name.split(".")
        return parts[1] if parts[0] == "pipeline" and len(parts) > 1 else ""


@cache
def product_modules() -> tuple[Module, ...]:
    """Return the modules of the product."""
    return tuple(Module(source) for source in read_sources(["pipeline", "schemas"]))


def list_imports(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Yield the dotted name of every import below some nodes."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            assert node.module is not None
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def find_layer(unit: str) -> int:
    """Return the index of a unit's layer."""
    return next(index for index, units in enumerate(LAYERS) if unit in units)


def find_problem(importer: str, imported: str) -> str | None:
    """Return the rule that an import between two units of `pipeline` breaks, or None."""
    if importer == imported:
        return None
    if importer == "emulator":
        return "the emulator imports nothing else of the project"
    if imported == "emulator":
        return None if importer == "commands" else "only commands and tests import the emulator"
    if find_layer(importer) == find_layer(imported):
        return "units of one layer do not import each other"
    return "imports point down" if find_layer(imported) < find_layer(importer) else None


@every(
    ("importer", "imported", "wrong"),
    [
        ("commands", "lake", False),
        ("sync", "crawl", False),
        ("crawl", "client", False),
        ("commands", "emulator", False),
        ("client", "lake", True),
        ("maintenance", "sync", True),
        ("monitoring", "sync", True),
        ("process", "context", True),
        ("logs", "settings", True),
        ("lake", "sync", True),
        ("crawl", "emulator", True),
        ("emulator", "errors", True),
    ],
)
def test_the_rule_of_layers_can_fail(importer: str, imported: str, wrong: bool) -> None:  # noqa: FBT001
    """The rule distinguishes allowed imports from forbidden ones."""
    assert (find_problem(importer, imported) is not None) is wrong


def test_imports_point_down() -> None:
    """A module imports only from lower layers, so that each layer can be read and tested without the higher ones."""
    wrong = []
    for module in product_modules():
        for name in module.imports:
            parts = name.split(".")
            is_unit = parts[0] == "pipeline" and len(parts) > 1 and parts[1] != "__version__"
            if parts[0] == "tests" or (module.name.startswith("schemas") and parts[0] == "pipeline"):
                wrong.append(f"{module.name}: {name}")
            elif module.unit == "emulator" and parts[0] == "schemas":
                wrong.append(f"{module.name}: {name}: the emulator imports nothing else of the project")
            elif module.unit and is_unit and (reason := find_problem(module.unit, parts[1])):
                wrong.append(f"{module.name}: {name}: {reason}")
    assert not wrong


def test_no_imports_in_circles() -> None:
    """No module imports itself by way of others, not even for type checking."""
    names = {module.name for module in product_modules()}
    imports = defaultdict(set)
    for module in product_modules():
        for imported in module.imports:
            target = imported if imported in names else imported.rpartition(".")[0]
            if target in names:
                imports[module.name].add(target)
    list(TopologicalSorter(imports).static_order())  # it raises CycleError with the circle


def test_commands_do_not_import_each_other() -> None:
    """A command imports no other command; shared code is in a module that is no command."""
    commands = {module.name for module in product_modules() if module.unit == "commands"}
    commands = {name for name in commands if name.count(".") == 2 and not name.rpartition(".")[2].startswith("_")}
    wrong = []
    for module in product_modules():
        if module.name in commands:
            targets = {part for name in module.imports for part in (name, name.rpartition(".")[0])}
            wrong += [f"{module.name}: {name}" for name in targets & commands]
    assert not wrong


def test_every_unit_has_its_layer() -> None:
    """The list of layers has every package or module directly below `pipeline`, and no other."""
    assert {module.unit for module in product_modules()} - {"emulator", ""} == set().union(*LAYERS)


def test_only_some_modules_import_by_name() -> None:
    """Modules import at their top, as ruff checks; these import by name, when needed.

    cli.py the commands, __main__.py the command line, because signals are handled first, publish/iceberg.py what needs
    pyiceberg, and lake/xlsx.py XlsxWriter. For commands that only read: logs.py what needs structlog, progress.py and
    text_tables.py rich, commands/query.py Arrow.
    """
    units = ["__main__", "cli", "commands.query", "lake.xlsx", "logs", "progress"]
    units += ["publish.iceberg", "text_tables"]
    by_name = {f"pipeline.{unit}" for unit in units}
    importing = {each.name for each in product_modules() if {"importlib", "importlib.import_module"} & {*each.imports}}
    assert importing == by_name


def test_databases_are_opened_in_one_place() -> None:
    """One module opens files to read them, and refuses those of SQLite: for them DuckDB waits for the network."""
    openers = [
        module.name
        for module in product_modules()
        for call in module.source.nodes
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "duckdb.connect"
        if any(keyword.arg == "read_only" for keyword in call.keywords)
    ]
    assert openers == ["pipeline.lake.duckdb"]
