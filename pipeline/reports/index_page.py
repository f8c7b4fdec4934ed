"""index.html of a job's folder: a searchable list of its files, on further pages if there are many.

Each page is self-contained; the template escapes every text.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from pipeline.formatting import escape_control_characters, format_csp_hash, pluralize
from pipeline.reports.image_folder import describe_images

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pipeline.reports.models import Manifest, ManifestFile

_STYLE: Final = files("pipeline.reports").joinpath("index.css").read_text(encoding="utf-8")
_SCRIPT: Final = files("pipeline.reports").joinpath("index.js").read_text(encoding="utf-8")
_POLICY: Final = f"default-src 'none'; style-src '{format_csp_hash(_STYLE)}'; script-src '{format_csp_hash(_SCRIPT)}'"


def _escape_controls(value: Any) -> Any:
    """Return what the template shows of a value: HTML has no controls, not even escaped ones."""
    return escape_control_characters(value) if isinstance(value, str) and not isinstance(value, Markup) else value


_ENVIRONMENT: Final = Environment(
    autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, finalize=_escape_controls
)
_ENVIRONMENT.filters["pluralize"] = pluralize
_TEMPLATE: Final = _ENVIRONMENT.from_string(
    files("pipeline.reports").joinpath("index.html.jinja").read_text(encoding="utf-8")
)


PAGE_NAME: Final = "index.html"
_FILES_PER_PAGE: Final = 2_000


@dataclass(frozen=True, slots=True)
class IndexPage:
    """One page: its name, and the files that it lists. `first` is the number of the first one."""

    name: str
    first: int
    files: Sequence[ManifestFile]

    @property
    def last(self) -> int:
        """The number of the last file."""
        return self.first + len(self.files) - 1

    @property
    def failed(self) -> int:
        """The number of files that failed."""
        return sum(file.state == "failed" for file in self.files)


def render_pages(manifest: Manifest) -> dict[str, str]:
    """Return the pages of a manifest, by name."""
    pages = _cut_pages(manifest.files)
    context = {
        "manifest": manifest,
        "heading": manifest.title or f"Reports {manifest.job}",
        "facts": _list_facts(manifest),
        "counts": manifest.counts,
        "pages": pages,
        "pdf_pages": {pdf.pdf: pdf.pages for pdf in manifest.pdfs},
        "has_groups": any(file.group is not None for file in manifest.files),
        "policy": _POLICY,
        "style": Markup(_STYLE),  # noqa: S704 - files of this package, and the policy holds their hashes
        "script": Markup(_SCRIPT),  # noqa: S704
    }
    return {page.name: _TEMPLATE.render(context, page=page) for page in pages}


def _list_facts(manifest: Manifest) -> list[tuple[str, str]]:
    """Return what the files were selected for, by whom and how."""
    selection = {key: value for key, value in manifest.selection.items() if key not in {"kind", "per_file"}}
    sql, group = selection.pop("sql", None), selection.pop("group_by", None)
    facts = {
        "Purpose": manifest.purpose,
        "Requested by": manifest.requested_by,
        "Job": manifest.job if manifest.title else None,
        "Selected by": sql or "; ".join(f"{key}: {_join(value)}" for key, value in selection.items()),
        "Grouped by": group,
        "Images": None if manifest.images is None else describe_images(manifest.images),
    }
    return [(name, text) for name, text in facts.items() if text]


def _join(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _cut_pages(files: Sequence[ManifestFile]) -> list[IndexPage]:
    starts = range(0, max(len(files), 1), _FILES_PER_PAGE)
    digits = max(3, len(str(len(starts))))
    return [
        IndexPage(
            PAGE_NAME if number == 1 else f"index-{number:0{digits}}.html",
            start + 1,
            files[start : start + _FILES_PER_PAGE],
        )
        for number, start in enumerate(starts, 1)
    ]
