"""The settings file as text: every setting with its words and its default, from their one place in `Settings`."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pipeline.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic.fields import FieldInfo

_WIDTH: Final = 110
_HEAD: Final = """\
Settings of scanlake. It reads ./scanlake.toml, or the file that --config or SCANLAKE_CONFIG names.

Every setting stands here with its default, commented out where it has that. The same name in capitals behind \
SCANLAKE_ is an environment variable (SCANLAKE_MAX_CONCURRENCY=16), with dashes a flag of the commands that use it \
(--max-concurrency 16). Later wins: this file, the environment, flags. Relative paths start at its folder.

The token may not stand here: put it into SCANLAKE_TOKEN, or into a file of mode 600 that token_file names."""
_SECTIONS: Final = {
    "base_url": "The service",
    "lake": "The lake",
    "expand": "What is fetched",
    "max_concurrency": "Pace",
    "settle_seconds": "Completeness",
    "commit_files": "Commits, snapshots, retention",
    "interval": "Watch",
}
"""The setting that each section begins with, in the order of `Settings`."""

_SOURCES: Final = """\
Several services in one file: one table each. A table may set anything; what stands above holds for all of them. \
Each has a lake of its own, by default a folder of its name in `lake`; its token is in SCANLAKE_TOKEN_ and its name \
in capitals, or in its token_file. `--source north` chooses one, `scanlake sync --all` syncs them all."""
_EXAMPLE: Final = """\
# [sources.north]
# base_url = "https://north.example"
# token_file = "/etc/scanlake/north.token"
#
# [sources.south]
# base_url = "https://south.example"
"""


def settings_file(chosen: Mapping[str, Any]) -> str:
    """A settings file in which `chosen` is set, and everything else stands as a comment."""
    lines = [*_comment(_HEAD)]
    for name, field in Settings.model_fields.items():
        if name == "token":
            continue
        if name in _SECTIONS:
            lines += ["", f"# --- {_SECTIONS[name]} {'-' * (_WIDTH - 7 - len(_SECTIONS[name]))}"]
        lines += ["", *_comment(field.description or "")]
        lines.append(f"{name} = {_toml(chosen[name])}" if name in chosen else f"#{name} = {_toml(_shown(field))}")
    lines += ["", f"# --- Sources {'-' * (_WIDTH - 14)}", "", *_comment(_SOURCES), "#"]
    return "\n".join(lines) + "\n" + _EXAMPLE


def _shown(field: FieldInfo) -> Any:
    """The default, or where that is nothing an example."""
    return field.default if field.default is not None else (field.examples or [""])[0]


def _comment(text: str) -> list[str]:
    wrapped = [textwrap.wrap(line, _WIDTH - 2) or [""] for line in text.splitlines()]
    return [f"# {line}".rstrip() for lines in wrapped for line in lines]


def _toml(value: Any) -> str:
    """A value as TOML spells it; for texts, numbers and lists of texts that is JSON's spelling."""
    if isinstance(value, Path):
        value = str(value)
    if isinstance(value, tuple):
        value = list(value)
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
