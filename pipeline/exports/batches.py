"""How a selection becomes PDFs: batches that never mix two groups, and names from our own ids. Pure."""

from __future__ import annotations

import re
import unicodedata
from typing import TYPE_CHECKING, Final

from pipeline.errors import SettingsError
from pipeline.lake.orders import Batch, JobFile
from schemas.requests import MAX_REPORT_FILES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pipeline.exports.selection import Chosen

DEFAULT_NAME: Final = "report-{batch}"
DEFAULT_GROUP_NAME: Final = "{group}-{batch}"
_FIELDS: Final = ("batch", "group", "count")
_DIGITS: Final = 4
_LONGEST_GROUP: Final = 60
_LONGEST_STEM: Final = 150


def cut(chosen: Sequence[Chosen]) -> tuple[list[JobFile], list[Batch]]:
    """The selected files with their batches: at most 100 each, in the selection's order."""
    files: list[JobFile] = []
    batches: list[Batch] = []
    ids: list[int] = []
    group: str | None = None

    def close() -> None:
        if ids:
            number = len(batches) + 1
            batches.append(Batch(number, f"{number:0{_DIGITS}}", group, split=False, files=tuple(ids)))
            ids.clear()

    for place, each in enumerate(chosen):
        batch = None
        if each.reason is None and each.file_id is not None:
            if len(ids) == MAX_REPORT_FILES or each.group != group:
                close()
                group = each.group
            ids.append(each.file_id)
            batch = len(batches) + 1
        files.append(JobFile(place, each.file_id, each.reference, each.group, batch, each.reason))
    close()
    return files, batches


def checked_pattern(pattern: str | None, *, grouped: bool) -> str:
    """The pattern of the PDFs' names. Raises `SettingsError` for fields it cannot have."""
    if pattern is None:
        return DEFAULT_GROUP_NAME if grouped else DEFAULT_NAME
    unknown = [name for name in re.findall(r"\{([^{}]*)\}", pattern) if name not in _FIELDS]
    if unknown or re.search(r"[{}]", re.sub(r"\{[^{}]*\}", "", pattern)):
        raise SettingsError(
            "--name: an unknown field.", remedy=f"The fields are {', '.join(f'{{{name}}}' for name in _FIELDS)}."
        )
    return pattern if "{batch}" in pattern else f"{pattern}-{{batch}}"


def stem(pattern: str, batch: Batch) -> str:
    """The PDF's name without its ending: plain letters, digits, `-`, `_` and `.`, whatever the group is called."""
    group = safe("" if batch.group_name is None else batch.group_name)[:_LONGEST_GROUP] or "_"
    named = pattern.replace("{group}", group).replace("{count}", str(len(batch.files)))
    # The label last and never cut: it is what makes the name unique.
    before, _, after = named.partition("{batch}")
    room = _LONGEST_STEM - len(batch.label)
    head, tail = safe(before)[:room], safe(after.replace("{batch}", batch.label))
    return f"{head.lstrip('.-') or 'report-'}{batch.label}{tail[: max(0, room - len(head))]}".rstrip(".")


def safe(text: str) -> str:
    """The text as part of a file name that every system takes and no program misreads."""
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    return re.sub(r"\.{2,}", "_", re.sub(r"[^A-Za-z0-9._-]+", "_", plain))
