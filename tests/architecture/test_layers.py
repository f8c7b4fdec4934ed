"""Rules of the source tree: imports point down without circles, and are at the top."""

from __future__ import annotations

import ast
from collections import defaultdict
from dataclasses import dataclass
from functools import cache, cached_property
from graphlib import TopologicalSorter
from typing import TYPE_CHECKING, Final

from tests.rows import every
from tools.lint.problems import ROOT, Source, read_sources

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

LAYERS: Final = (
    {"cli"},
    {"sync", "publish", "reports", "images"},
    {"query", "lake"},
    {"crawl", "lake.catalog"},
    {"client", "lake.ledger"},
    {"__main__", "settings", "lake.storage"},
    {"output", "processes", "flatten"},
    {"errors", "emulator"},
    {""},
)
"""From top to bottom. A room may import rooms below it, never rooms of its own layer; "" is `pipeline` itself."""
_ROOMS_IN_LAKE: Final = ("storage", "ledger", "catalog")
_COMMANDS: Final = "pipeline.cli.commands"
_MAX_NAMES: Final = 16


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
        """The dotted name of every import, including those for type checking and those by name."""
        return [*list_imports(self.source.nodes), *list_names(self.source.nodes)]

    @cached_property
    def room(self) -> str:
        """Its room below `pipeline`; empty for `pipeline` itself and for schemas."""
        return find_room(self.name)


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


def list_names(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Yield the texts that are the name of a module of the product: what is imported by name."""
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("pipeline."):
            path = ROOT / node.value.replace(".", "/")
            if path.with_suffix(".py").is_file() or node.value.startswith(_COMMANDS):
                yield node.value


def find_room(name: str) -> str:
    """Return the room of a module: the name below `pipeline`, or below `pipeline.lake` for the rooms in it."""
    project, *parts = name.split(".")
    if project != "pipeline" or not parts or parts[0] == "__version__":
        return ""
    return ".".join(parts[:2]) if parts[0] == "lake" and set(parts[1:2]) & set(_ROOMS_IN_LAKE) else parts[0]


def find_layer(room: str) -> int:
    """Return the index of a room's layer."""
    return next(index for index, rooms in enumerate(LAYERS) if room in rooms)


def find_problem(importer: str, imported: str) -> str | None:
    """Return the rule that an import between two modules breaks, or None."""
    rooms = importing, target = find_room(importer), find_room(imported)
    if imported.startswith(_COMMANDS) and importer != "pipeline.cli.app":
        return "only cli.app names a command"
    if importer == "pipeline.__main__" and imported == "pipeline.cli.app":
        return None  # by name, once the signals are handled
    if importing == target:
        return None
    if "emulator" in rooms:
        return None if importer == f"{_COMMANDS}.emulator" else "only its command and tests import the emulator"
    if find_layer(importing) == find_layer(target):
        return "rooms of one layer do not import each other"
    return "imports point down" if find_layer(target) < find_layer(importing) else None


@every(
    ("importer", "imported", "rule"),
    [
        ("cli.commands.status", "query.reader", None),
        ("sync.run", "crawl.crawler", None),
        ("crawl.listing", "client.client", None),
        ("lake.purge", "lake.catalog.sql", None),
        ("lake.ledger.ledger", "lake.storage.layout", None),
        ("cli.app", "cli.commands.sync", None),
        ("__main__", "cli.app", None),
        ("cli.commands.emulator", "emulator.server", None),
        ("errors", "__version__", None),
        ("client.client", "lake.ledger.ledger", "rooms of one layer do not import each other"),
        ("query.site", "lake.repair", "rooms of one layer do not import each other"),
        ("reports.job", "sync.sync", "rooms of one layer do not import each other"),
        ("lake.lake", "sync.run", "imports point down"),
        ("lake.catalog.outputs", "lake.integrity", "imports point down"),
        ("lake.ledger.folder", "lake.catalog.sql", "imports point down"),
        ("lake.storage.parts", "lake.ledger.ledger", "imports point down"),
        ("sync.after_run", "cli.context", "imports point down"),
        ("output.logs", "settings.settings", "imports point down"),
        ("query.site", "cli.commands.query", "only cli.app names a command"),
        ("cli.commands.sync", "cli.commands.verify", "only cli.app names a command"),
        ("cli.context", "emulator.server", "only its command and tests import the emulator"),
        ("emulator.server", "errors", "only its command and tests import the emulator"),
    ],
)
def test_the_rule_of_layers_can_fail(importer: str, imported: str, rule: str | None) -> None:
    """The rule distinguishes allowed imports from forbidden ones."""
    assert find_problem(f"pipeline.{importer}", f"pipeline.{imported}") == rule


def test_imports_point_down() -> None:
    """A module imports only from lower layers, so that each layer can be read and tested without the higher ones."""
    wrong = []
    for module in product_modules():
        for name in module.imports:
            project = name.partition(".")[0]
            if project in {"tests", "tools"} or (module.name.startswith("schemas") and project == "pipeline"):
                wrong.append(f"{module.name}: {name}")
            elif module.room == "emulator" and project == "schemas":
                wrong.append(f"{module.name}: {name}: the emulator imports nothing else of the project")
            elif project == "pipeline" and (reason := find_problem(module.name, name)):
                wrong.append(f"{module.name}: {name}: {reason}")
    assert not wrong


def test_no_imports_in_circles() -> None:
    """No module imports itself by way of others, not even for type checking or by name."""
    names = {module.name for module in product_modules()}
    imports = defaultdict(set)
    for module in product_modules():
        for imported in module.imports:
            target = imported if imported in names else imported.rpartition(".")[0]
            if target in names:
                imports[module.name].add(target)
    list(TopologicalSorter(imports).static_order())  # it raises CycleError with the circle


def test_every_room_has_its_layer_and_says_what_it_is() -> None:
    """The layers have every room and no other; there are 16 at most, and each begins with a sentence about itself."""
    rooms = {module.room for module in product_modules()}
    assert rooms == set().union(*LAYERS)
    assert len({room.partition(".")[0] for room in rooms if room}) <= _MAX_NAMES
    paths = [ROOT / "pipeline" / room.replace(".", "/") for room in rooms]
    sources = [path / "__init__.py" if path.is_dir() else path.with_suffix(".py") for path in paths]
    docstrings = [ast.get_docstring(ast.parse(source.read_text(encoding="utf-8"))) or "" for source in sources]
    assert not [str(source) for source, text in zip(sources, docstrings, strict=True) if len(text.split()) < 5]


def test_only_some_modules_import_by_name() -> None:
    """Modules import at their top, as ruff checks; these import by name, when needed.

    app.py the commands, __main__.py the command line, because signals are handled first, iceberg.py what needs
    pyiceberg, and xlsx.py XlsxWriter. For commands that only read: logs.py what needs structlog, context.py and
    tables.py rich, commands/query.py Arrow.
    """
    names = ["__main__", "cli.app", "cli.context", "cli.commands.query", "output.logs", "output.tables"]
    by_name = {f"pipeline.{name}" for name in [*names, "publish.iceberg", "query.xlsx"]}
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
    assert openers == ["pipeline.lake.catalog.duckdb"]
