"""Everything that the documents name exists, and every command is documented."""

from __future__ import annotations

import re
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from typer import Exit as Leaving
from typer.exceptions import TyperException
from typer.main import get_command

import pipeline
from pipeline import cli
from pipeline.config import load_all_sources
from pipeline.errors import ExitCode
from pipeline.lake.catalog_images import IMAGE_COLUMNS, IMAGES_TABLE
from pipeline.lake.history_views import FILE_EVENTS, FILE_VERSIONS
from pipeline.lake.image_records import ImageState
from pipeline.lake.meta_tables import FRESHNESS_COLUMNS, META_TABLES
from pipeline.lake.request_log import OrderState
from pipeline.lake.user_query import TABLE_FUNCTIONS
from pipeline.lake.view_definitions import FILE_SUMMARY
from pipeline.monitoring.metrics import METRICS
from pipeline.reports.models import ManifestFile
from pipeline.settings import Settings
from schemas.tables import TABLES
from tests.docs import documents
from tests.docs.documents import DOCUMENTS, OPERATIONS, ROOT, calls

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_FOR_DEVELOPERS: Final = {"docs/architecture.md", "docs/glossary.md", "docs/json.md", "CONTRIBUTING.md"}
"""Documents that name functions, patterns and keys."""

_EXTERNAL_NAMES: Final = frozenset(
    {
        "SSL_CERT_FILE",  # OpenSSL's
        *("AWS_ACCESS_KEY_ID", "AWS_REGION", "AWS_ENDPOINT_URL"),  # of the AWS libraries
        *("PYICEBERG_CATALOG__SCANLAKE__URI", "PYICEBERG_CATALOG__SCANLAKE__TYPE"),  # of pyiceberg
        "hard_delete",  # dlt's
        *(
            "unknown_key",
            "type_mismatch",
            "not_ordered",
        ),  # values in meta.*
        "refers_to",  # a column of meta.data_dictionary
        "exit_code",  # a label of scanlake_runs_total
        *("query_table", "read_parquet"),  # DuckDB's, as the next ones
        *TABLE_FUNCTIONS,
        *("list_tables", "describe_table"),  # tools of `scanlake mcp`
        *OrderState,
        *ImageState,
        *(metric.name for metric in METRICS),
    }
)
_FLAG: Final = re.compile(r"(?<![\w-])--?[a-zA-Z][\w-]*")
_META: Final = frozenset(
    {
        *(table.name for table in META_TABLES),
        *(table.name for table in TABLES if table.schema == "meta"),
        "freshness",
        "data_dictionary",
    }
)


@cache
def _command(name: str) -> Any:
    root: Any = get_command(cli.app)
    context = root.make_context(cli.NAME, [name], resilient_parsing=True)
    return root.resolve_command(context, [name])[1]


def _command_name(words: list[str]) -> str | None:
    """Return the command that the words after `scanlake` begin with, None if they begin with none."""
    names = [" ".join(words[:count]) for count in (2, 1)]
    return next((name for name in names if name in cli.COMMANDS), None)


def _flags(command: Any) -> set[str]:
    return {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)} | {
        "-h",
        "--help",
    }


@cache
def _all_flags() -> frozenset[str]:
    root = _flags(get_command(cli.app))
    return frozenset(root.union(*(_flags(_command(name)) for name in cli.COMMANDS)))


@cache
def _source() -> str:
    return "\n".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "pipeline").rglob("*.py")))


@cache
def _names() -> frozenset[str]:
    """Return every name that can be in backticks: tables, columns, settings, the Python interface."""
    views = (row[0].strip("`") for row in documents.TABLES.table("view"))
    columns = (column.name for table in TABLES for column in table.columns)
    of_meta = (name for table in META_TABLES for name, _, _ in table.columns)
    fresh = (name for name, _, _ in FRESHNESS_COLUMNS)
    tables = (table.name for table in TABLES)
    history = (FILE_EVENTS, FILE_VERSIONS)
    of_views = (name for view in (*history, FILE_SUMMARY) for name in (view.name, *(name for name, _ in view.columns)))
    names = [*views, *of_views, *columns, *of_meta, *fresh, *tables, *_META, *Settings.model_fields, *pipeline.__all__]
    names += [*vars(pipeline.Client), "to_datetime", "model_extra"]  # the client and its files
    names += [*ManifestFile.model_fields, IMAGES_TABLE, *(name for name, _, _ in IMAGE_COLUMNS)]
    return frozenset([*names, "_source"])


def _spans() -> list[tuple[str, str]]:
    """Return the code in backticks of every document, with the document's name."""
    return [(name, text) for name, document in DOCUMENTS.items() for text in document.code_spans]


@cache
def _commands_in_use() -> frozenset[str]:
    written = [document for name, document in DOCUMENTS.items() if name != "docs/cli.md"]
    lines = [call for document in written for step in document.steps for call in calls(step.command)]
    lines += [text.split()[1:] for document in written for text in document.code_spans if text.startswith("scanlake ")]
    return frozenset(name for line in lines if (name := _command_name(line)))


def _refuse(bad: Sequence[object]) -> None:
    """Fail with every one of the bad names, one a line."""
    assert not bad, "\n" + "\n".join(map(str, bad))


def test_every_command_is_shown_in_use() -> None:
    """Beyond the generated reference, the documents show every command in use."""
    _refuse(sorted(set(cli.COMMANDS) - _commands_in_use()))


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
            _command(name).make_context(name, call[index + len(words) :], parent=outer)
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
    allowed = _flags(_command(command)) if command and len(words) > 1 else _all_flags()
    return not set(_FLAG.findall(text.partition('"')[0])) <= allowed


def test_every_command_and_flag_exists() -> None:
    """A command after `scanlake`, and a flag in backticks, exist; a flag beside its command belongs to it."""
    _refuse([(name, text) for name, text in _spans() if _find_bad_command(text)])


def _find_bad_names(text: str) -> list[str]:
    """Return the names in backticks that are no meta table, no name of the lake or the program, and no constant."""
    bad = [f"meta.{word}" for word in re.findall(r"(?<![\w.])meta\.(\w+)", text) if word not in _META]
    if re.fullmatch(r"_?[a-z]+(_[a-z]+)+", text) and text not in _names() | _EXTERNAL_NAMES:
        bad.append(text)
    constants = re.findall(r"\b[A-Z]+_[A-Z_]+[A-Z]\b", text)
    known = [word.startswith("SCANLAKE_") or word in _EXTERNAL_NAMES or f'"{word}"' in _source() for word in constants]
    return bad + [word for word, is_known in zip(constants, known, strict=True) if not is_known]


def test_every_name_exists() -> None:
    """Names with an underscore in backticks are tables, columns, settings or metrics."""
    spans = [(name, text) for name, text in _spans() if name not in _FOR_DEVELOPERS | {"docs/json.md"}]  # generated
    _refuse([(name, bad) for name, text in spans if (bad := _find_bad_names(text))])


def test_the_settings_shown_exist(tmp_path: Path) -> None:
    """The TOML blocks are valid settings files, and the listed settings exist."""
    assert OPERATIONS.blocks("toml")
    for number, block in enumerate(OPERATIONS.blocks("toml")):
        path = tmp_path / f"{number}.toml"
        path.write_text(block)
        assert load_all_sources(path)
    listed = {name for row in OPERATIONS.table("setting") for name in re.findall(r"`([a-z_]+)`", row[0])}
    assert listed <= set(Settings.model_fields)


def test_every_variable_exists() -> None:
    """A variable SCANLAKE_* is a setting, the token of a documented source, or a variable that the code reads."""
    bad = []
    for name, document in DOCUMENTS.items():
        sources = {source.upper() for source in re.findall(r"^\[sources\.(\w+)\]", document.text, re.MULTILINE)}
        for word in re.findall(r"(?<![A-Z_])SCANLAKE_(\w+)", document.text):
            of_source = word.startswith("TOKEN_") and word.removeprefix("TOKEN_") in sources | {"NAME"}
            in_code = word in {"_", "ALERT_", "TEST_SEED"} or f'"SCANLAKE_{word}"' in _source()
            if not (of_source or in_code or word.lower() in Settings.model_fields):
                bad.append((name, word))
    _refuse(bad)


def test_reference_tables_are_complete() -> None:
    """The tables have each exit code, meta table and metric once, exit codes in order."""
    rows = OPERATIONS.table("exit code")
    assert [int(row[0]) for row in rows] == [int(code) for code in ExitCode]
    assert all(len(row) == 3 and all(row) for row in rows)
    assert {row[0].strip("`").removeprefix("meta.") for row in documents.TABLES.table("meta table")} == _META
    listed = [name for row in OPERATIONS.table("metric") for name in re.findall(r"`(\w+)`", row[0])]
    assert sorted(listed) == sorted(metric.name for metric in METRICS)
