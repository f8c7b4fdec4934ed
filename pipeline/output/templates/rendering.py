"""Pages from templates. Every value is escaped, redacted and on one line, wherever a template shows it."""

from __future__ import annotations

from importlib.resources import files
from typing import Any, Final
from urllib.parse import urlsplit

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from pipeline import __version__
from pipeline.output.formatting import (
    escape_control_characters,
    format_age,
    format_bytes,
    format_count,
    format_csp_hash,
    format_instant,
    pluralize,
    truncate,
)
from pipeline.output.redaction import redact


def read_script(name: str) -> str:
    """Return a script of this package."""
    return files("pipeline.output.templates").joinpath(name).read_text(encoding="utf-8")


_BAD_STATES: Final = frozenset({"failed", "interrupted", "not consistent"})
_MAX_CELL_CHARS: Final = 160
_STYLE: Final = read_script("style.css")


def build_policy(script: str = "", *rules: str) -> str:
    """Return a Content-Security-Policy: the one style, this script, what `rules` add, and nothing else."""
    scripts = [f"script-src '{format_csp_hash(script)}'"] if script else []
    return "; ".join(["default-src 'none'", f"style-src '{format_csp_hash(_STYLE)}'", *scripts, *rules])


def render(template: str, policy: str, script: str = "", **values: Any) -> str:
    """Return a page. The base template has the style and this script, which the policy must allow by their hashes."""
    own = {"policy": Markup(policy), "style": Markup(_STYLE), "script": Markup(script)}  # noqa: S704 - of this package
    return ENVIRONMENT.get_template(template).render(values, version=__version__, **own)


def is_web_address(text: str | None) -> bool:
    """Return whether a link may lead to it: http or https with a host, without spaces and characters that hide."""
    if text is None or text[:4].lower() != "http" or not text.isprintable() or " " in text:
        return False
    try:
        parts = urlsplit(text)
    except ValueError:
        return False
    return parts.scheme in {"http", "https"} and bool(parts.hostname)


def _show(value: Any) -> Any:
    """Return what a template shows of a value. None is nothing."""
    if value is None:
        return ""
    return _redact_line(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _redact_line(text: str) -> str:
    return _to_visible_line(redact(text))


def _to_visible_line(text: str) -> str:
    return " ".join(escape_control_characters(text).split())


def _show_unredacted(text: str | None) -> Markup:
    """Return a reference or a query that must be seen as it is: redaction would cut what follows its question mark."""
    return escape(_to_visible_line(text or ""))


ENVIRONMENT: Final = Environment(
    loader=PackageLoader("pipeline.output.templates", ""),
    autoescape=True,
    undefined=StrictUndefined,
    finalize=_show,
    trim_blocks=True,
    lstrip_blocks=True,
    auto_reload=False,
)
ENVIRONMENT.filters |= {
    "age": format_age,
    "bytes": format_bytes,
    "cell": lambda text: escape(truncate(_redact_line(text), _MAX_CELL_CHARS)),
    "count": format_count,
    "decimal": lambda number: f"{number:,.1f}",
    "exact": escape,  # for an address or the text of a box: the value itself, escaped
    "instant": format_instant,
    "pluralize": pluralize,
    "shorten": truncate,
    "unredacted": _show_unredacted,
    "utc": lambda at: f"{at:%Y-%m-%dT%H:%M:%SZ}",
    "visible": _redact_line,
}
ENVIRONMENT.tests |= {"bad": _BAD_STATES.__contains__, "web_address": is_web_address}
