"""Proof that the files of a saved PDF are in it: the two confirmations around it, and its pages. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from pipeline.reports.confirmation import FileAbsence, FileUnconfirmed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pipeline.lake.request_log import FileConfirmation, ReportJobFile
    from pipeline.reports.confirmation import Confirmation
    from pipeline.reports.page_text import PageFindings


class DoubtKind(Enum):
    """Why a file may not be in its PDF. The value: how often its batch is ordered again before the file fails."""

    DELETED = 0
    NOT_SHOWN = 1
    CHANGED = 2


@dataclass(frozen=True, slots=True)
class Doubt:
    """A file that may not be in its PDF."""

    kind: DoubtKind
    reason: str


def find_doubts(
    files: Sequence[ReportJobFile],
    after: Mapping[int, Confirmation],
    pages: PageFindings,
    *,
    shows_references: bool,
    is_duplicate: bool,
) -> dict[int, Doubt]:
    """Return the files of a PDF that may not be in it.

    `shows_references`: a PDF of this job shows references, so the template does. `is_duplicate`: the service
    gave the same document, or the same URL, for other files.
    """
    doubts = {}
    for file in files:
        if file.file_id is None:
            continue
        on_pages = pages.on_pages.get(file.file_id) if shows_references else None
        doubt = _find_doubt(file, after[file.file_id], on_pages=on_pages)
        if doubt is None and is_duplicate:
            doubt = Doubt(DoubtKind.NOT_SHOWN, "its PDF is the same document as the PDF of other files")
        if doubt is not None:
            doubts[file.file_id] = doubt
    return doubts


def _find_doubt(file: ReportJobFile, after: Confirmation, *, on_pages: bool | None) -> Doubt | None:
    if isinstance(after, FileAbsence):
        return Doubt(DoubtKind.DELETED, f"not in the service after its report was made ({after.answer})")
    if isinstance(after, FileUnconfirmed):
        return None
    if on_pages is False:
        return Doubt(DoubtKind.NOT_SHOWN, "not shown on the pages of its PDF, which show other files")
    if on_pages is None and _has_changed(file, after):
        return Doubt(
            DoubtKind.CHANGED, "changed in the service while its report was made, and the PDF does not show references"
        )
    return None


def _has_changed(file: ReportJobFile, after: FileConfirmation) -> bool:
    """Return whether the update time changed; the two calls of a service may name different ones."""
    is_comparable = file.confirmed_before_by == after.call and None not in {file.updated_before, after.updated_at}
    return is_comparable and file.updated_before != after.updated_at
