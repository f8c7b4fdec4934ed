"""Which files of a batch the pages of a PDF show, read with the optional library pypdf."""

from __future__ import annotations

import logging
import re
import unicodedata
from collections import Counter
from typing import TYPE_CHECKING, Final

from msgspec import Struct, field

try:
    import pypdf
except ImportError:  # an optional extra
    _HAS_PYPDF = False
else:
    _HAS_PYPDF = True

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from pipeline.lake.request_log import ReportJobFile

_MAX_BYTES: Final = 256 * 1024**2
_MIN_LETTERS: Final = 4  # a shorter reference or id may be a page number or a word
_MIN_WRAPPED_LETTERS: Final = 8  # a shorter one is not searched across the end of a line
_BEFORE: Final = r"(?<!\w)(?<!\w[-./])"
_AFTER: Final = r"(?!\w)(?![-./]\w)"

logging.getLogger("pypdf").setLevel(logging.CRITICAL)  # it warns of every defect of a PDF that it can still read


class PageFindings(Struct, frozen=True):
    """What the pages show. `on_pages` by file id: None if the pages do not decide.

    `is_read` is False if the PDF cannot be read or pypdf is not installed.
    """

    is_read: bool = False
    on_pages: Mapping[int, bool | None] = field(default_factory=dict)

    @property
    def count(self) -> int | None:
        """The number of files that the pages show; None if the PDF was not read."""
        return sum(value is True for value in self.on_pages.values()) if self.is_read else None


def read_pages(pdf: Path, files: Sequence[ReportJobFile]) -> PageFindings:
    """Return which of `files` the PDF shows by reference or id."""
    text = _extract_text(pdf)
    return PageFindings() if text is None else find_files(text, files)


def _extract_text(pdf: Path) -> str | None:
    if not _HAS_PYPDF or pdf.stat().st_size > _MAX_BYTES:
        return None
    try:
        with pdf.open("rb") as file:
            return "\n".join(page.extract_text() for page in pypdf.PdfReader(file).pages)
    except Exception:  # noqa: BLE001 - a damaged PDF raises any exception in this library
        return None


def find_files(text: str, files: Sequence[ReportJobFile]) -> PageFindings:
    """Return which of `files` stand in the text of a PDF.

    A reference that several files of the batch have shows none of them; the id decides.
    """
    references = {file.file_id: _normalize(file.reference or "") for file in files if file.file_id is not None}
    shared = {key for key, count in Counter(references.values()).items() if count > 1}
    stated = _find_keys(text, {*references.values(), *map(str, references)})
    shows_ids = any(str(file_id) in stated for file_id in references)
    on_pages: dict[int, bool | None] = {}
    for file_id, reference in references.items():
        if str(file_id) in stated:
            on_pages[file_id] = True
        elif reference in shared and reference in stated:
            on_pages[file_id] = False if shows_ids else None
        elif max(len(reference), len(str(file_id)) if shows_ids else 0) < _MIN_LETTERS:
            on_pages[file_id] = None
        else:
            on_pages[file_id] = reference in stated
    return PageFindings(is_read=True, on_pages=on_pages)


def _find_keys(text: str, keys: set[str]) -> set[str]:
    """Return the keys that stand in the text as words of their own, the longest first."""
    normalized = "\n".join(_normalize(line) for line in text.splitlines())
    long_enough = sorted((key for key in keys if len(key) >= _MIN_LETTERS), key=len, reverse=True)
    stated = _search(normalized.replace("\n", " "), long_enough)
    wrapped = [key for key in long_enough if len(key) >= _MIN_WRAPPED_LETTERS and key not in stated]
    return stated | _search(normalized.replace("\n", ""), wrapped)


def _search(text: str, keys: Sequence[str]) -> set[str]:
    if not keys:
        return set()
    pattern = re.compile(f"{_BEFORE}(?:{'|'.join(map(re.escape, keys))}){_AFTER}")
    return {match[0] for match in pattern.finditer(text)}


def _normalize(text: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())
