"""Batches and PDF names of a selection. A batch never mixes two groups; names use only scanlake's own ids. Pure."""

from __future__ import annotations

import re
import unicodedata
from typing import TYPE_CHECKING, Final

from pipeline.errors import SettingsError
from pipeline.lake.request_log import ReportBatch, ReportJobFile
from schemas.requests import MAX_REPORT_FILES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pipeline.reports.selection import SelectedFile

DEFAULT_NAME: Final = "report-{batch}"
DEFAULT_GROUP_NAME: Final = "{group}-{batch}"
_FIELDS: Final = ("batch", "group", "count")
_LABEL_DIGITS: Final = 4
_MAX_GROUP_CHARACTERS: Final = 60
_MAX_STEM_CHARACTERS: Final = 150


def make_batches(selected: Sequence[SelectedFile]) -> tuple[list[ReportJobFile], list[ReportBatch]]:
    """Return the selected files with their batches: at most 100 files each, in the order of the selection."""
    files: list[ReportJobFile] = []
    batches: list[ReportBatch] = []
    ids: list[int] = []
    group: str | None = None

    def close_batch() -> None:
        if ids:
            number = len(batches) + 1
            batches.append(ReportBatch(number, f"{number:0{_LABEL_DIGITS}}", group, split=False, files=tuple(ids)))
            ids.clear()

    for position, file in enumerate(selected):
        batch = None
        if file.reason is None and file.file_id is not None:
            if len(ids) == MAX_REPORT_FILES or file.group != group:
                close_batch()
                group = file.group
            ids.append(file.file_id)
            batch = len(batches) + 1
        files.append(ReportJobFile(position, file.file_id, file.reference, file.group, batch, file.reason))
    close_batch()
    return files, batches


def validate_name_pattern(pattern: str | None, *, grouped: bool) -> str:
    """Return the pattern of the PDF names, with `{batch}` in it. Raises `SettingsError` for an unknown field."""
    if pattern is None:
        return DEFAULT_GROUP_NAME if grouped else DEFAULT_NAME
    unknown = [name for name in re.findall(r"\{([^{}]*)\}", pattern) if name not in _FIELDS]
    if unknown or re.search(r"[{}]", re.sub(r"\{[^{}]*\}", "", pattern)):
        raise SettingsError(
            f"--name {pattern}: unknown field.", hint=f"Use only {', '.join(f'{{{name}}}' for name in _FIELDS)}."
        )
    return pattern if "{batch}" in pattern else f"{pattern}-{{batch}}"


def pdf_stem(pattern: str, batch: ReportBatch) -> str:
    """Return the PDF's name without suffix: only ASCII letters, digits, `-`, `_` and `.`, for every group name."""
    group = safe_filename("" if batch.group_name is None else batch.group_name)[:_MAX_GROUP_CHARACTERS] or "_"
    text = pattern.replace("{group}", group).replace("{count}", str(len(batch.files)))
    # The label makes the name unique, so it is never cut.
    before, _, after = text.partition("{batch}")
    room = _MAX_STEM_CHARACTERS - len(batch.label)
    head, tail = safe_filename(before)[:room], safe_filename(after.replace("{batch}", batch.label))
    return f"{head.lstrip('.-') or 'report-'}{batch.label}{tail[: max(0, room - len(head))]}".rstrip(".")


def safe_filename(text: str) -> str:
    """Return the text as part of a file name that is valid on every system and safe in a shell."""
    ascii_text = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    return re.sub(r"\.{2,}", "_", re.sub(r"[^A-Za-z0-9._-]+", "_", ascii_text))
