"""Batches and PDF names of a selection. A batch never mixes two groups; names use only scanlake's own ids. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from pipeline.errors import SettingsError
from pipeline.lake.file_names import RESERVED_NAMES, cut_text, safe_ascii_filename, safe_filename
from pipeline.lake.request_log import ReportBatch
from schemas.requests import MAX_REPORT_FILES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pipeline.lake.request_log import ReportJobFile

DEFAULT_NAME: Final = "report-{batch}"
DEFAULT_GROUP_NAME: Final = "{group}-{batch}"
_FIELDS: Final = ("batch", "group", "count", "reference")
_MIN_LABEL_DIGITS: Final = 4
_MAX_GROUP_CHARACTERS: Final = 60
_MAX_GROUP_BYTES: Final = 150
_MAX_STEM_BYTES: Final = 200  # a name has at most 255 bytes on the usual file systems


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


def validate_name_pattern(pattern: str | None, *, grouped: bool, per_file: bool = False) -> str:
    """Return the pattern of the PDF names, with `{batch}` in it. Raises `SettingsError` for an unknown field.

    The group of a PDF with one file is its reference.
    """
    if pattern is None:
        return DEFAULT_GROUP_NAME if grouped else DEFAULT_NAME
    unknown = [name for name in re.findall(r"\{([^{}]*)\}", pattern) if name not in _FIELDS]
    if unknown or re.search(r"[{}]", re.sub(r"\{[^{}]*\}", "", pattern)):
        raise SettingsError(
            f"--name {pattern}: unknown field.", hint=f"Use only {', '.join(f'{{{name}}}' for name in _FIELDS)}."
        )
    if "{reference}" in pattern and not per_file:
        raise SettingsError(
            f"--name {pattern}: a PDF has many references.", hint="Add --per-file, or omit {reference}."
        )
    pattern = pattern.replace("{reference}", "{group}")
    return pattern if "{batch}" in pattern else f"{pattern}-{{batch}}"


def pdf_stem(pattern: str, batch: ReportBatch) -> str:
    """Return the PDF's name without suffix: letters and digits of any script, `-`, `_` and `.`, for every group."""
    return _build_stem(pattern, batch, safe_filename)


def order_stem(pattern: str, batch: ReportBatch) -> str:
    """Return the begin of an order's name: like the PDF's name, in ASCII."""
    return _build_stem(pattern, batch, safe_ascii_filename)


def _build_stem(pattern: str, batch: ReportBatch, make_safe: Callable[[str], str]) -> str:
    name = "" if batch.group_name is None else batch.group_name
    group = cut_text(make_safe(name), _MAX_GROUP_CHARACTERS, _MAX_GROUP_BYTES) or "_"
    text = pattern.replace("{group}", group).replace("{count}", str(len(batch.files)))
    # The label makes the name unique, so it is never cut.
    before, _, after = text.partition("{batch}")
    room = _MAX_STEM_BYTES - len(batch.label)
    head = cut_text(make_safe(before), room, room).lstrip(".-") or "report-"
    rest = max(0, room - len(head.encode()))
    tail = cut_text(make_safe(after.replace("{batch}", batch.label)), rest, rest)
    stem = f"{head}{batch.label}{tail}".rstrip(".")
    return f"_{stem}" if stem.partition(".")[0].upper() in RESERVED_NAMES else stem
