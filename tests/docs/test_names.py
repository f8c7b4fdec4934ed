"""Everything that the documents name exists, and every command is documented."""

from __future__ import annotations

import re
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from typer import Exit as Leaving
from typer.exceptions import TyperException
from typer.main import get_command

from pipeline.cli import app as cli
from pipeline.errors import EXIT_CODES_BY_SEVERITY, ExitCode
from pipeline.lake.catalog.tables import META_TABLES
from pipeline.settings.layers import load_all_sources
from pipeline.settings.settings import SETTINGS
from pipeline.sync.metrics import METRICS
from schemas.tables import TABLES
from tools.docs import documents
from tools.docs.documents import DOCUMENTS, OPERATIONS, ROOT, calls
from tools.docs.generate import load_commands

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_TEST: Final = re.compile(r"`(\w+): (test_\w+)`")
_FLAG: Final = re.compile(r"(?<![\w-])--?[a-zA-Z][\w-]*")


def _command_name(words: list[str]) -> str | None:
    """Return the command that the words after `scanlake` begin with, None if they begin with none."""
    names = [" ".join(words[:count]) for count in (2, 1)]
    return next((name for name in names if name in cli.COMMANDS), None)


def _flags(command: Any) -> set[str]:
    names = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    return names | {"-h", "--help"}


@cache
def _all_flags() -> frozenset[str]:
    root = _flags(get_command(cli.app))
    return frozenset(root.union(*(_flags(load_commands()[name]) for name in cli.COMMANDS)))


@cache
def _source() -> str:
    return "\n".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "pipeline").rglob("*.py")))


def _refuse(bad: Sequence[object]) -> None:
    """Fail with every one of the bad names, one a line."""
    assert not bad, "\n" + "\n".join(map(str, bad))


def _find_refusal(call: list[str]) -> str | None:
    """Return why the command's own parser refuses the arguments of a call, None if it takes them."""
    root = get_command(cli.app)
    index = next((index for index in range(len(call)) if _command_name(call[index:])), len(call))
    name = _command_name(call[index:])
    if name is None:
        return None if set(call) <= _flags(root) else "no command"
    words = name.split()
    try:
        outer = root.make_context(cli.NAME, [*call[:index], *words])
        with suppress(Leaving):  # an option that prints something and exits
            load_commands()[name].make_context(name, call[index + len(words) :], parent=outer)
    except TyperException as error:
        return str(error)
    return None


def test_every_command_line_is_valid() -> None:
    """The command's own parser accepts each line in the documents."""
    shown = {(page, *call) for page, each in DOCUMENTS.items() for step in each.steps for call in calls(step.command)}
    _refuse([(*line, refusal) for line in sorted(shown) if (refusal := _find_refusal([*line[1:]]))])
    assert len(shown) > 50


def _find_bad_command(text: str) -> bool:
    """Return whether code in backticks names a command or a flag that does not exist."""
    words = text.split()
    arguments = words[1:] if words[0] == "scanlake" else words
    command = _command_name(arguments)
    if words[0] == "scanlake" and arguments and not arguments[0].startswith(("-", "[")) and not command:
        return True
    if words[0] in {"pip", "duckdb", "sha256sum", "umask", "make", "mkdocs", "ssh-keygen", "git", ".venv/bin/python"}:
        return False
    allowed = _flags(load_commands()[command]) if command and len(words) > 1 else _all_flags()
    return not set(_FLAG.findall(text.partition('"')[0])) <= allowed


def test_every_command_and_flag_exists() -> None:
    """A command after `scanlake`, and a flag in backticks, exist; a flag beside its command belongs to it."""
    spans = [(name, text) for name, document in DOCUMENTS.items() for text in document.code_spans]
    _refuse([(name, text) for name, text in spans if _find_bad_command(text)])


def test_the_settings_shown_exist(tmp_path: Path) -> None:
    """The TOML blocks are valid settings files, and the listed settings exist."""
    assert OPERATIONS.blocks("toml")
    for number, block in enumerate(OPERATIONS.blocks("toml")):
        path = tmp_path / f"{number}.toml"
        path.write_text(block)
        assert load_all_sources(path)
    listed = {name for row in OPERATIONS.table("setting") for name in re.findall(r"`([a-z_]+)`", row[0])}
    assert listed <= set(SETTINGS)


def test_every_variable_exists() -> None:
    """A variable SCANLAKE_* is a setting, the token of a documented source, or a variable that the code reads."""
    bad = []
    for name, document in DOCUMENTS.items():
        sources = {source.upper() for source in re.findall(r"^\[sources\.(\w+)\]", document.text, re.MULTILINE)}
        for word in re.findall(r"(?<![A-Z_])SCANLAKE_(\w+)", document.text):
            of_source = word.startswith("TOKEN_") and word.removeprefix("TOKEN_") in sources | {"NAME"}
            in_code = word in {"_", "ALERT_", "TEST_SEED"} or f'"SCANLAKE_{word}"' in _source()
            if not (of_source or in_code or word.lower() in SETTINGS):
                bad.append((name, word))
    _refuse(bad)


def test_no_token_is_an_argument() -> None:
    """No documented request has a service's token in its arguments, which every user of the machine can list."""
    lines = [(name, line) for name, document in DOCUMENTS.items() for line in document.text.splitlines()]
    shown = [(name, line) for name, line in lines if "token" in line.partition("curl ")[2].lower()]
    assert shown, "the emulator's, which is no secret"
    _refuse([(name, line) for name, line in shown if "127.0.0.1" not in line])


def test_each_place_that_data_goes_to_is_named() -> None:
    """The page on security names each setting with an address, and each command that sends the lake elsewhere."""
    named = documents.SECURITY.section("Data that leaves the machine").text
    named += documents.SECURITY.section("Connections").text
    addresses = [name for name, setting in SETTINGS.items() if "://" in str(setting.rule.example)]
    assert {"base_url", "publish_to"} < {*addresses}
    words = [*addresses, "publish", "backup", "rebuild --on", "share --send-email", "mcp", "serve"]
    _refuse([word for word in words if f"`{word}" not in named])


def test_reference_tables_are_complete() -> None:
    """The tables have each exit code, meta table and metric once, exit codes in order, also in that of severity."""
    rows = OPERATIONS.table("exit code")
    assert [int(row[0]) for row in rows] == [int(code) for code in ExitCode]
    assert ", ".join(str(int(code)) for code in reversed(EXIT_CODES_BY_SEVERITY)) in " ".join(OPERATIONS.text.split())
    assert all(len(row) == 3 and all(row) for row in rows)
    meta = {table.name for table in (*META_TABLES, *TABLES) if getattr(table, "schema", "meta") == "meta"}
    described = {row[0].strip("`").removeprefix("meta.") for row in documents.TABLES.table("meta table")}
    assert described == meta | {"freshness", "data_dictionary"}
    listed = [name for row in OPERATIONS.table("metric") for name in re.findall(r"`(\w+)`", row[0])]
    assert sorted(listed) == sorted(metric.name for metric in METRICS)


def test_every_promise_has_a_test_that_exists() -> None:
    """Each row names at least one test, by its folder, and the folder has a function of that name."""
    rows = DOCUMENTS["docs/architecture.md"].table("promise")
    assert len(rows) >= 40
    missing = []
    for promise, tests in rows:
        named = _TEST.findall(tests)
        assert named, promise
        for folder, name in named:
            sources = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests" / folder).rglob("test_*.py"))
            if f"def {name}(" not in sources:
                missing.append(f"{promise}: tests/{folder} has no {name}")
    assert not missing
