"""The settings file as text: every setting with its description and default from `Settings`."""

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
Settings of scanlake. scanlake reads ./scanlake.toml, or the file that --config or SCANLAKE_CONFIG names.

All settings with their defaults, commented out. Each can also be set as an environment variable SCANLAKE_<NAME> \
(SCANLAKE_MAX_CONCURRENCY=16), or for one command by --set NAME=VALUE (--set max_concurrency=16). Options \
override variables, and variables override this file. Relative paths start at the folder of this file.

The token must not be in this file. Put it into SCANLAKE_TOKEN, or into a file of mode 600 that token_file names."""
SECTIONS: Final = {
    "base_url": "The service",
    "lake": "The lake",
    "fetch_details": "Content",
    "max_concurrency": "Requests",
    "lookback_seconds": "Completeness",
    "keep_snapshots": "Snapshots, retention",
    "publish_to": "Object storage",
    "images_after_sync": "Images",
    "metrics_file": "Monitoring",
}
"""Section titles, by the first setting of each section, in the order of `Settings`."""

_SOURCES: Final = """\
Several services in one file: one table per source. A table can set every setting; settings above the tables apply \
to all sources. Each source has a separate lake, by default lake/NAME. Its token is in SCANLAKE_TOKEN_<NAME>, or in \
its token_file. `--source north` selects one source, `scanlake sync --all` syncs all sources."""
_EXAMPLE: Final = """\
# [sources.north]
# base_url = "https://north.example"
# token_file = "/etc/scanlake/north.token"
#
# [sources.south]
# base_url = "https://south.example"
"""


def render_settings_file(values: Mapping[str, Any]) -> str:
    """Return a settings file in which `values` are set and all other settings are comments."""
    lines = [*_comment(_HEAD)]
    for name, field in Settings.model_fields.items():
        if name == "token":
            continue
        if name in SECTIONS:
            lines += ["", f"# --- {SECTIONS[name]} {'-' * (_WIDTH - 7 - len(SECTIONS[name]))}"]
        lines += ["", *_comment(field.description or "")]
        lines.append(
            f"{name} = {_to_toml(values[name])}" if name in values else f"#{name} = {_to_toml(_example_value(field))}"
        )
    lines += ["", f"# --- Sources {'-' * (_WIDTH - 14)}", "", *_comment(_SOURCES), "#"]
    return "\n".join(lines) + "\n" + _EXAMPLE


def _example_value(field: FieldInfo) -> Any:
    """Return the default, or an example if the default is None."""
    return field.default if field.default is not None else (field.examples or [""])[0]


def _comment(text: str) -> list[str]:
    wrapped = [textwrap.wrap(line, _WIDTH - 2, break_on_hyphens=False) or [""] for line in text.splitlines()]
    return [f"# {line}".rstrip() for lines in wrapped for line in lines]


def _to_toml(value: Any) -> str:
    """Return a value in TOML syntax, which equals JSON's for strings, numbers and lists of strings."""
    if isinstance(value, Path):
        value = str(value)
    if isinstance(value, tuple):
        value = list(value)
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
