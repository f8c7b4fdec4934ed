"""index.html of a job's folder: a searchable list of its files.

The page is self-contained; the template escapes every text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pipeline.templates.rendering import build_policy, read_script, render

if TYPE_CHECKING:
    from pipeline.reports.models import Manifest

PAGE_NAME: Final = "index.html"
_SCRIPT: Final = read_script("report_index.js")
_POLICY: Final = build_policy(_SCRIPT)


def render_page(manifest: Manifest) -> str:
    """Return the page of a manifest."""
    context = {
        "manifest": manifest,
        "heading": manifest.title or f"Reports {manifest.job}",
        "facts": _list_facts(manifest),
        "counts": manifest.counts,
        "files": manifest.files,
        "pdf_pages": {pdf.pdf: pdf.pages for pdf in manifest.pdfs},
        "has_groups": any(file.group is not None for file in manifest.files),
    }
    return render("report_index.html.jinja", _POLICY, _SCRIPT, **context)


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
