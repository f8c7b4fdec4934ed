"""Batches and PDF names of a selection. A batch never mixes two groups; names use only scanlake's own ids. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pipeline.lake.file_names import to_safe_part
from pipeline.lake.request_log import ReportBatch
from schemas.requests import MAX_REPORT_FILES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pipeline.lake.request_log import ReportJobFile

_MIN_LABEL_DIGITS: Final = 4


def make_batches(
    files: Sequence[ReportJobFile], max_files: int = MAX_REPORT_FILES, existing: Sequence[ReportBatch] = ()
) -> list[ReportBatch]:
    """Return batches of at most `max_files` for the files that have no reason, in their order.

    `existing`: the files left these batches of the job. The labels of the new ones sort after theirs.
    """
    contents: list[tuple[str | None, list[int]]] = []
    for file in files:
        if file.reason is not None or file.file_id is None:
            continue
        if not contents or contents[-1][0] != file.group_name or len(contents[-1][1]) == max_files:
            contents.append((file.group_name, []))
        contents[-1][1].append(file.file_id)
    first = max((batch.batch for batch in existing), default=0) + 1
    digits = max(_MIN_LABEL_DIGITS, len(str(first + len(contents) - 1)))
    return [
        ReportBatch(number, f"{'r' if existing else ''}{number:0{digits}}", group, split=False, files=tuple(ids))
        for number, (group, ids) in enumerate(contents, first)
    ]


def name_pdf(batch: ReportBatch) -> str:
    """Return the PDF's name, by group and label: letters and digits of any script, `-`, `_` and `.`."""
    group = "report" if batch.group_name is None else to_safe_part(batch.group_name) or "_"
    return f"{group}-{batch.label}.pdf"
