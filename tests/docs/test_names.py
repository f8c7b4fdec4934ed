"""Nothing in the documents is named that does not exist, and no command goes unnamed."""

from __future__ import annotations

import re
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import pytest
from typer import Exit as Leaving
from typer.main import get_command

from pipeline import cli
from pipeline.errors import Exit
from pipeline.lake.faces import FACES, FRESHNESS
from pipeline.settings import Settings
from pipeline.sources import settings_of_all
from schemas.tables import TABLES
from tests.docs.readme import CHANGELOG, README, ROOT, Document, calls

if TYPE_CHECKING:
    from pathlib import Path

DOCUMENTS: Final = {"README.md": README, "CHANGELOG.md": CHANGELOG}
_OF_OTHERS: Final = frozenset(
    {
        "SSL_CERT_FILE",  # OpenSSL's
        "hard_delete",  # dlt's
    }
)
_FLAG: Final = re.compile(r"(?<![\w-])--?[a-zA-Z][\w-]*")
_META: Final = frozenset({*(face.name for face in FACES), "freshness", "data_dictionary"})


@cache
def _command(verb: str) -> Any:
    root: Any = get_command(cli.app)
    context = root.make_context(cli.NAME, [verb], resilient_parsing=True)
    return root.resolve_command(context, [verb])[1]


def _flags(command: Any) -> set[str]:
    return {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)} | {
        "-h",
        "--help",
    }


@cache
def _all_flags() -> frozenset[str]:
    found = _flags(get_command(cli.app))
    return frozenset(found.union(*(_flags(_command(verb)) for verb in cli.VERBS)))


@cache
def _source() -> str:
    return "\n".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "pipeline").rglob("*.py")))


@cache
def _names() -> frozenset[str]:
    """Every name that a reader may meet in backticks: tables, columns, settings, states of things."""
    views = (row[0].strip("`") for row in README.table("view for people"))
    columns = (column.name for table in TABLES for column in table.columns)
    of_meta = (name for face in FACES for name, _, _ in face.columns)
    fresh = (name for name, _, _ in FRESHNESS)
    tables = (table.name for table in TABLES)
    return frozenset([*views, *columns, *of_meta, *fresh, *tables, *_META, *Settings.model_fields, "_source"])


@pytest.mark.parametrize("verb", cli.VERBS)
def test_every_verb_is_shown_in_use(verb: str) -> None:
    """Beyond the table of commands, the README shows every verb at work, or speaks of it."""
    in_blocks = {call[0] for step in README.steps for call in calls(step.command) if call}
    spoken = {text.split()[1] for text in README.ticked if re.match(r"scanlake [a-z]", text)}
    assert verb in in_blocks | spoken


@pytest.mark.parametrize(
    "call",
    [call for document in DOCUMENTS.values() for step in document.steps for call in calls(step.command)],
    ids=" ".join,
)
def test_every_command_line_is_understood(call: list[str]) -> None:
    """The command's own parser takes each line that the documents show."""
    root = get_command(cli.app)
    verb = next((word for word in call if word in cli.VERBS), None)
    if verb is None:
        assert set(call) <= _flags(root), call
        return
    place = call.index(verb)
    outer = root.make_context(cli.NAME, [*call[:place], verb])
    with suppress(Leaving):  # an option that shows something and leaves
        _command(verb).make_context(verb, call[place + 1 :], parent=outer)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_no_verb_or_flag_is_invented(name: str) -> None:
    """A verb after `scanlake`, and a flag in backticks, exist; a flag beside its verb belongs to that verb."""
    for text in DOCUMENTS[name].ticked:
        words = text.split()
        verb = words[1] if words[0] == "scanlake" and len(words) > 1 else words[0]
        if words[0] == "scanlake" and not verb.startswith("-"):
            assert verb in cli.VERBS, text
        if words[0] in {"pip", "duckdb", "sha256sum", "umask", "make"}:
            continue
        allowed = _flags(_command(verb)) if verb in cli.VERBS and len(words) > 1 else _all_flags()
        assert set(_FLAG.findall(text.partition('"')[0])) <= allowed, text


@pytest.mark.parametrize("name", DOCUMENTS)
def test_no_name_is_invented(name: str) -> None:
    """Names with an underscore in backticks are tables, columns or settings; those of meta are its tables."""
    for text in DOCUMENTS[name].ticked:
        for word in re.findall(r"(?<![\w.])meta\.(\w+)", text):
            assert word in _META, text
        if re.fullmatch(r"_?[a-z]+(_[a-z]+)+", text):
            assert text in _names() | _OF_OTHERS, text
        for word in re.findall(r"\b[A-Z]+_[A-Z_]+[A-Z]\b", text):
            assert word.startswith("SCANLAKE_") or word in _OF_OTHERS or f'"{word}"' in _source(), word


def test_the_settings_shown_exist(tmp_path: Path) -> None:
    """The TOML that is shown is a settings file that scanlake takes, and the settings listed exist."""
    for number, block in enumerate(README.blocks("toml")):
        path = tmp_path / f"{number}.toml"
        path.write_text(block)
        assert settings_of_all(path)
    shown = {name for row in README.table("setting") for name in re.findall(r"`([a-z_]+)`", row[0])}
    assert shown <= set(Settings.model_fields)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_no_variable_is_invented(name: str) -> None:
    """SCANLAKE_ is followed by a setting, by the token of a source that is shown, or by what the code asks for."""
    text = DOCUMENTS[name].text
    sources = {found.upper() for found in re.findall(r"^\[sources\.(\w+)\]", text, re.MULTILINE)} | {"NAME"}
    for word in re.findall(r"SCANLAKE_(\w+)", text):
        of_source = word.startswith("TOKEN_") and word.removeprefix("TOKEN_") in sources
        assert of_source or word.lower() in Settings.model_fields or f'"SCANLAKE_{word}"' in _source(), word


def test_the_exit_codes_are_all_there() -> None:
    """The table of exit codes has each of them once, in order."""
    assert [int(row[0]) for row in README.table("exit code")] == [int(code) for code in Exit]
    assert all(len(row) == 3 and all(row) for row in README.table("exit code"))


def test_the_schema_meta_is_named_whole() -> None:
    """The README names every table of meta."""
    (listed,) = re.findall(r"Schema `meta` says(.*?)\.\n", README.prose, re.DOTALL)
    assert set(re.findall(r"`(\w+)`", listed)) == _META


@pytest.mark.parametrize("name", DOCUMENTS)
def test_links_lead_somewhere(name: str) -> None:
    """A link names a title of the document, a file of the repository, or an address by https."""
    document: Document = DOCUMENTS[name]
    for link in document.links:
        if link.startswith("#"):
            assert link[1:] in document.anchors, link
        elif not link.startswith("https://"):
            assert (ROOT / link.partition("#")[0]).exists(), link


@pytest.mark.parametrize("name", DOCUMENTS)
def test_files_and_targets_that_are_named_exist(name: str) -> None:
    """Files below configs/ that a command or a sentence names are there, and so is each target of make."""
    text = DOCUMENTS[name].text
    for path in re.findall(r"\bconfigs/[\w./-]*\w", text):
        assert (ROOT / path).exists(), path
    targets = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"(?:`|\$ )make ([a-z-]+)", text)) <= targets


@pytest.mark.parametrize("name", DOCUMENTS)
def test_lines_can_be_read_in_a_terminal(name: str) -> None:
    """No line is longer than 120 characters."""
    assert [line for line in DOCUMENTS[name].text.splitlines() if len(line) > 120] == []
