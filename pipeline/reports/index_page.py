"""index.html of a job's folder: a searchable list of its files. Self-contained; the template escapes every text."""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING, Final

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from pipeline.formatting import format_csp_hash, pluralize

if TYPE_CHECKING:
    from pipeline.reports.models import Manifest

_STYLE: Final = files("pipeline.reports").joinpath("index.css").read_text(encoding="utf-8")
_SCRIPT: Final = files("pipeline.reports").joinpath("index.js").read_text(encoding="utf-8")
_POLICY: Final = f"default-src 'none'; style-src '{format_csp_hash(_STYLE)}'; script-src '{format_csp_hash(_SCRIPT)}'"
_ENVIRONMENT: Final = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
_ENVIRONMENT.filters["pluralize"] = pluralize
_TEMPLATE: Final = _ENVIRONMENT.from_string(
    files("pipeline.reports").joinpath("index.html.jinja").read_text(encoding="utf-8")
)


def render_index(manifest: Manifest) -> str:
    """Return the page of a manifest."""
    return _TEMPLATE.render(
        manifest=manifest,
        counts=manifest.counts,
        has_groups=any(file.group is not None for file in manifest.files),
        policy=_POLICY,
        style=Markup(_STYLE),  # noqa: S704 - files of this package, and the policy holds their hashes
        script=Markup(_SCRIPT),  # noqa: S704
    )
