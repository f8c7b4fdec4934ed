"""index.html of a job's folder: a searchable list of its files, on further pages if there are many.

Each page is self-contained; the template escapes every text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pipeline.templates.rendering import build_policy, read_script, render

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pipeline.reports.models import Manifest, ManifestFile

PAGE_NAME: Final = "index.html"
_FILES_PER_PAGE: Final = 2_000
_SCRIPT: Final = read_script("report_index.js")
_POLICY: Final = build_policy(_SCRIPT)


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
    }
    return {page.name: render("report_index.html.jinja", _POLICY, _SCRIPT, **context, page=page) for page in pages}


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
