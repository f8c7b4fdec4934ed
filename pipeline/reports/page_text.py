"""Which files of a batch the pages of a PDF show, read with pypdf: the worker of `pdf_reader`."""

from __future__ import annotations

import logging
import re
import resource
import signal
import unicodedata
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import pypdf
from pypdf.errors import DependencyError, FileNotDecryptedError, LimitReachedError

from pipeline.processes.worker import serve
from pipeline.reports.pdf_reader import Unread

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from pipeline.reports.pdf_reader import PageFindings, Reading

_MIN_LETTERS: Final = 4  # a shorter reference or id may be a page number or a word
_MIN_WRAPPED_LETTERS: Final = 8  # a shorter one is not searched across the end of a line
_BEFORE: Final = r"(?<!\w)(?<!\w[-./])"
_AFTER: Final = r"(?!\w)(?![-./]\w)"
_LIMITS: Final = (
    *(MemoryError, RecursionError, LimitReachedError, FileNotDecryptedError, DependencyError, FileNotFoundError),
)
"""What a sound PDF can raise: too large, in a folder that was moved, with a password, or a cipher that is missing."""

logging.getLogger("pypdf").setLevel(logging.CRITICAL)  # it warns of every defect of a PDF that it can still read


def main(max_seconds: int, max_bytes: int) -> None:
    """Answer requests from stdin until it is closed. A PDF that needs more of the processor ends the process."""
    with suppress(ValueError):  # the system permits less, or knows no such limit
        resource.setrlimit(resource.RLIMIT_AS, (max_bytes, max_bytes))
    serve(lambda request: _read_pages(max_seconds, *request))


def _read_pages(max_seconds: int, pdf: Path, references: Mapping[int, str | None]) -> Reading:
    """Open a PDF, which reads the list of its pages, then read their texts."""
    signal.setitimer(signal.ITIMER_PROF, max_seconds)  # counts no time in which others have the processor
    result = Unread.BROKEN
    try:
        with pdf.open("rb") as file:
            pages = list(pypdf.PdfReader(file).pages)
            if pages:
                result = Unread.SKIPPED  # a font that the library does not know is no damage
                return _find_files("\n".join(page.extract_text() for page in pages), references)
    except _LIMITS:
        result = Unread.SKIPPED
    except Exception:  # noqa: BLE001, S110 - damage raises any exception in this library
        pass
    return result


def _find_files(text: str, names: Mapping[int, str | None]) -> PageFindings:
    """Return which files stand in the text of a PDF; `names`: the reference of each by id.

    A reference that several files of the batch have shows none of them; the id decides.
    """
    references = {file_id: _normalize(reference or "") for file_id, reference in names.items()}
    shared = {key for key, count in Counter(references.values()).items() if count > 1}
    stated = _find_keys(text, {*references.values(), *map(str, references)})
    shows_ids = any(str(file_id) in stated for file_id in references)
    on_pages: PageFindings = {}
    for file_id, reference in references.items():
        if str(file_id) in stated:
            on_pages[file_id] = True
        elif reference in shared and reference in stated:
            on_pages[file_id] = False if shows_ids else None
        elif max(len(reference), len(str(file_id)) if shows_ids else 0) < _MIN_LETTERS:
            on_pages[file_id] = None
        else:
            on_pages[file_id] = reference in stated
    return on_pages


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
