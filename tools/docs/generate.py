"""The generated pages of the documentation: `python -m tools.docs.generate` writes them."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from typer.main import get_command

from pipeline.cli import app as cli
from pipeline.settings.settings import PREFIX, SECTIONS, SETTINGS, render_settings_file
from schemas.tables import TABLES, find_reference
from tools.docs.json_page import format_json_page

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pipeline.settings.settings import Setting

DOCS: Final = Path(__file__).resolve().parents[2] / "docs"
MARKER: Final = "<!-- generated -->\n"
_HELP: Final = frozenset({"help"})


def render(page: str) -> str:
    """Return the text of docs/`page` with current generated content."""
    head, _, tail = (DOCS / page).read_text(encoding="utf-8").split(MARKER)
    return f"{head}{MARKER}\n{PAGES[page]()}\n{MARKER}{tail}"


# docs/cli.md: settings


_SETTINGS_TEXT: Final = f"""\
The environment variable of a setting is its name in capitals after `{PREFIX}`: `{PREFIX}MAX_CONCURRENCY`
for `max_concurrency`. `--set NAME=VALUE` gives a setting to one command: `--set max_concurrency=8`.
The section
[Choose settings](operations.md#choose-settings) explains the layers."""


def _settings() -> str:
    lines = ["## All settings", "", *_SETTINGS_TEXT.splitlines()]
    for name, setting in SETTINGS.items():
        if name in SECTIONS:
            lines += ["", f"### {SECTIONS[name]}", "", "| setting | type | default | meaning |", "|---|---|---|---|"]
        cells = (f"`{name}`", setting.kind, _default_text(setting), setting.description)
        lines.append(f"| {' | '.join(map(_escape, cells))} |")
    return "\n".join(lines) + "\n"


def _default_text(setting: Setting) -> str:
    if setting.default is None:
        return ""
    value = ", ".join(setting.default) if isinstance(setting.default, tuple) else setting.default
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


# docs/cli.md: commands


@cache
def load_commands() -> dict[str, Any]:
    """Return every command by its name, as the library of the command line has it."""
    root: Any = get_command(cli.app)
    context = root.make_context(cli.NAME, ["init"], resilient_parsing=True)
    return {name: root.resolve_command(context, [name])[1] for name in cli.COMMANDS}


def _commands() -> str:
    root: Any = get_command(cli.app)
    commands = load_commands()
    global_options = [option for option in root.params if option.name not in {"version", *_HELP}]
    names = {option.name for option in global_options}
    lines = ["| command | purpose |", "|---|---|"]
    lines += [
        f"| [`{name}`](#{name.replace(' ', '-')}) | {_escape(entry.help)} |" for name, entry in cli.COMMANDS.items()
    ]
    lines += ["", "## Global options", "", "Every command has these options, before or after its name.", ""]
    lines += _option_table(option for option in root.params if "completion" not in option.name)
    panel = ""
    for name, entry in cli.COMMANDS.items():
        if entry.group != panel:
            panel = entry.group
            lines += ["", f"## {panel}"]
        own = [parameter for parameter in commands[name].params if parameter.name not in names | _HELP]
        arguments = "".join(
            f" {parameter.metavar or parameter.name.upper()}" if parameter.required else f" [{parameter.metavar}]"
            for parameter in own
            if parameter.param_type_name == "argument"
        )
        lines += ["", f"### {name}", "", f"`scanlake {name} [OPTIONS]{arguments}`", ""]
        lines += _help_text(commands[name].help)
        lines += ["", "```console", *re.findall(r"^\$ .+", commands[name].epilog, re.MULTILINE), "```"]
        if own:
            lines += ["", *_option_table(own)]
    return "\n".join(lines) + "\n"


def _help_text(text: str) -> Iterator[str]:
    """Yield the paragraphs of a help text, command lines as console blocks."""
    for index, paragraph in enumerate(text.split("\n\n")):
        if index:
            yield ""
        is_command = re.match(r"(scanlake|curl) ", paragraph)
        yield f"```console\n$ {paragraph}\n```" if is_command else paragraph.replace("*", r"\*")


def _option_table(parameters: Any) -> list[str]:
    lines = ["| option | meaning |", "|---|---|"]
    for parameter in parameters:
        is_option = parameter.param_type_name == "option"
        names = ", ".join([*parameter.opts, *parameter.secondary_opts]) if is_option else parameter.metavar
        takes_value = is_option and not parameter.is_flag and not parameter.count
        value = f" {parameter.metavar or _value_name(parameter)}" if takes_value else ""
        lines.append(f"| `{names}{value}` | {_escape((parameter.help or '') + _option_default(parameter))} |")
    return lines


def _value_name(parameter: Any) -> str:
    choices = getattr(parameter.type, "choices", ())
    return "|".join(getattr(choice, "value", choice) for choice in choices) or cli.TYPE_NAMES[parameter.type.name]


def _option_default(parameter: Any) -> str:
    default = getattr(parameter.default, "value", parameter.default)
    if not parameter.show_default or default is None or isinstance(default, bool) or default in ("", 0, []):
        return ""
    return f" Default: {default}."


def _escape(text: str) -> str:
    return text.replace("|", r"\|").replace("*", r"\*")


# docs/tables.md: keys and references


def _tree(parent: str = "", indent: str = "") -> Iterator[str]:
    """Yield the tables of main below a parent with their keys, and their columns that name rows of other tables."""
    for table in TABLES:
        if table.schema == "main" and (table.parent or "") == parent:
            yield f"{indent + table.name:<29}  {', '.join(table.key)}"
            for column in table.columns:
                if column.name != "file_id" and (target := find_reference(table.name, column.name)):
                    yield f"{'':<29}  {column.name} -> {target}"
            yield from _tree(table.name, f"{indent}  ")


PAGES: Final[dict[str, Callable[[], str]]] = {
    "cli.md": lambda: f"{_commands()}\n{_settings()}",
    "json.md": format_json_page,
    "tables.md": lambda: "\n".join(["```text", *_tree(), "```", ""]),
}
TEMPLATE: Final = DOCS.parent / "configs" / "scanlake.toml"

if __name__ == "__main__":
    for page in PAGES:
        (DOCS / page).write_text(render(page), encoding="utf-8")
    TEMPLATE.write_text(render_settings_file({}), encoding="utf-8")
