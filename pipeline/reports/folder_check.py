"""Check of a job's folder: `scanlake check --report DIR`. Needs neither the lake nor the service."""

from __future__ import annotations

import hashlib
import re
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Final, TypeAlias

from pydantic import ValidationError

from pipeline import __version__
from pipeline.errors import ExitCode, SettingsError
from pipeline.lake.storage.atomic_files import list_names
from pipeline.output.findings import collect, error, ok, warning
from pipeline.output.formatting import pluralize
from pipeline.reports.manifest import (
    CSV_NAME,
    JSON_NAME,
    LISTED_NAMES,
    PAGE_NAME,
    SIGNATURE_NAME,
    SUMS_NAME,
    WORKBOOK_NAME,
    count_entries,
    describe_pages,
    describe_reading,
    format_csv,
    format_workbook,
    read_sheet,
    render_page,
)
from pipeline.reports.models import Manifest
from pipeline.reports.pdf_reader import UNREAD_HINT, Reading, Unread, count_found
from pipeline.reports.proof_times import find_time_problems
from pipeline.reports.signing import verify_signature

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pipeline.output.findings import CheckResult, Finding
    from pipeline.reports.models import ManifestFile
    from pipeline.reports.pdf_reader import PdfReader

_SUMS_LINE: Final = re.compile(r"([0-9a-f]{64}) [ *]([^./\\\x00-\x1f\x7f][^/\\\x00-\x1f\x7f]*)")
"""No name begins with a dot or leads out of the folder."""
_HINT: Final = "Get the folder again from its source, or run the job's command again."
_TIMES_HINT: Final = "Correct the clock of the machine, then run the report into a new folder."
_Problem: TypeAlias = "tuple[str, str]"
"""A file of the folder, and what is wrong with it."""


def check_report_folder(folder: Path, reader: PdfReader, allowed_signers: Path | None = None) -> CheckResult:
    """Check the checksums, PDFs, manifest and signature of a folder, and whether they agree.

    A signature must exist if the manifest has `signed`, or with `allowed_signers`. Raises `SettingsError` if it is not
    the folder of a finished job.
    """
    sums_file = folder / SUMS_NAME
    if not sums_file.is_file() or sums_file.is_symlink():
        raise SettingsError(
            f"{folder} has no {SUMS_NAME}.",
            hint="Run the job's command again to finish the job, or use the folder of a finished job.",
        )
    content = sums_file.read_bytes()
    sums: dict[str, str] = {}
    problems, readings = list(_read_sums(content, sums)), dict[str, Reading]()
    for name, sha256 in sums.items():
        problems += _find_file_problems(folder, name, sha256)
    manifest = read_folder_manifest(folder)
    if manifest is None:
        problems.append((JSON_NAME, "cannot be read"))
    else:
        intact = sums.keys() - {name for name, _ in problems}
        problems += _find_manifest_problems(manifest, sums, folder)
        problems += _find_page_problems(manifest, folder, intact, reader, readings)
    must_be_signed = allowed_signers is not None or (manifest is not None and manifest.signed)
    signature = _check_signature(folder, content, allowed_signers, must_be_signed=must_be_signed)
    findings = [error("report", name, problem, _HINT) for name, problem in problems]
    findings.append(signature)
    known = {*sums, SUMS_NAME, SIGNATURE_NAME}
    unknown = sorted(name for name in list_names(folder) - known if not name.startswith("."))
    unread = (name for name, reading in readings.items() if reading is Unread.SKIPPED)
    findings += [warning("report", name, Unread.SKIPPED, UNREAD_HINT) for name in unread]
    for name in unknown:
        report, code = (error, ExitCode.DAMAGE) if name.lower().endswith(".pdf") else (warning, ExitCode.OK)
        findings.append(
            report("report", name, "unknown file", "Move it out of the folder: no manifest names it.", code)
        )
    if manifest is not None:
        findings += [
            warning("report", f"{JSON_NAME}, times", problem, _TIMES_HINT, ExitCode.REJECTS)
            for problem in find_time_problems(manifest)
        ]
        if manifest.scanlake != __version__:
            problem = f"made by scanlake {manifest.scanlake}, so not compared with {JSON_NAME}"
            findings.append(warning("report", PAGE_NAME, problem, "Check the page with that version."))
        files, pdfs = pluralize(len(manifest.files), "file"), pluralize(len(manifest.pdfs), "PDF")
        read = describe_reading([count_found(readings.get(pdf.pdf, Unread.BROKEN)) for pdf in manifest.pdfs])
        counts = f"{files}, {pdfs}, {pluralize(len(manifest.failed), 'file')} named as failed; {read}"
        findings.append(ok("report", f"job {manifest.job}", counts))
    return collect(findings)


def _read_sums(content: bytes, sums: dict[str, str]) -> Iterator[_Problem]:
    """Fill `sums` with the hash of every file, by name. Yield what is wrong with the list."""
    for number, line in enumerate(content.decode("utf-8", "replace").removesuffix("\n").split("\n"), 1):
        match = _SUMS_LINE.fullmatch(line)
        if match is None or match[2] in sums:
            yield f"{SUMS_NAME}, line {number}", "not a checksum of a file of this folder"
        else:
            sums[match[2]] = match[1]
    yield from ((name, f"not in {SUMS_NAME}") for name in LISTED_NAMES if name not in sums)


def _find_file_problems(folder: Path, name: str, sha256: str) -> Iterator[_Problem]:
    path = folder / name
    if path.is_symlink() or not path.is_file():
        yield name, "missing"
        return
    with path.open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != sha256:
            yield name, "the content was changed"


def read_folder_manifest(folder: Path) -> Manifest | None:
    """Return the manifest of a folder; None if it cannot be read."""
    try:
        return Manifest.model_validate_json(_read(folder / JSON_NAME))
    except ValidationError:
        return None


def _find_manifest_problems(manifest: Manifest, sums: dict[str, str], folder: Path) -> Iterator[_Problem]:
    """Yield a problem for each file that is not in exactly one PDF and not failed, and for each contradiction."""
    ids = Counter(file.file_id for file in manifest.files if file.file_id is not None)
    yield from ((JSON_NAME, f"file {name} is listed {count} times") for name, count in ids.items() if count > 1)
    names = Counter(pdf.pdf for pdf in manifest.pdfs)
    yield from ((JSON_NAME, f"{name} is listed {count} times") for name, count in names.items() if count > 1)
    yield from _find_placement_problems(manifest)
    yield from _find_pdf_problems(manifest, sums)
    if manifest.counts != count_entries(manifest.files, manifest.orders, pdfs=len(manifest.pdfs)):
        yield JSON_NAME, "its counts differ from its entries"
    if _read(folder / CSV_NAME) != format_csv(manifest.files):
        yield CSV_NAME, f"does not match {JSON_NAME}"
    workbook = format_workbook(manifest.files) if WORKBOOK_NAME in sums else None
    if workbook is not None and read_sheet(_read(folder / WORKBOOK_NAME)) != read_sheet(workbook):
        yield WORKBOOK_NAME, f"does not match {JSON_NAME}"
    if manifest.scanlake == __version__ and _read(folder / PAGE_NAME) != render_page(manifest).encode():
        yield PAGE_NAME, f"does not match {JSON_NAME}"


def _find_placement_problems(manifest: Manifest) -> Iterator[_Problem]:
    """Yield a problem for each file without its PDF, or without a confirmation on both sides of it."""
    pdfs = {(pdf.pdf, pdf.sha256, pdf.bytes) for pdf in manifest.pdfs}
    for file in manifest.files:
        is_failed = file.pdf is None and bool(file.reason)
        if not is_failed and (file.pdf, file.sha256, file.bytes) not in pdfs:
            yield JSON_NAME, f"file {file.file_id} is in no PDF and has no reason"
        if file.state == "delivered" and not (file.confirmed_before_at and file.confirmed_after_at):
            yield JSON_NAME, f"file {file.file_id} is delivered without both confirmations"
        elif file.state == "delivered" and file.on_pages is False:
            yield JSON_NAME, f"file {file.file_id} is delivered, but not on the pages of its PDF"


def _find_pdf_problems(manifest: Manifest, sums: dict[str, str]) -> Iterator[_Problem]:
    files = _group_by_pdf(manifest)
    for pdf in manifest.pdfs:
        if sums.get(pdf.pdf) != pdf.sha256:
            yield pdf.pdf, f"{SUMS_NAME} and {JSON_NAME} disagree"
        if len(files[pdf.pdf]) != pdf.files:
            yield pdf.pdf, f"ordered for {pdf.files} files, but {len(files[pdf.pdf])} files name it"
        on_pages = sum(file.on_pages is True for file in files[pdf.pdf])
        if on_pages != (pdf.references_found or 0) or pdf.pages != describe_pages(pdf.references_found, pdf.files):
            yield pdf.pdf, f"{JSON_NAME} has {on_pages} of its files on its pages, but also: {pdf.pages}"
    for name in sorted(sums.keys() - {*LISTED_NAMES, WORKBOOK_NAME, *(pdf.pdf for pdf in manifest.pdfs)}):
        yield name, f"in {SUMS_NAME}, but not in {JSON_NAME}"


def _group_by_pdf(manifest: Manifest) -> dict[str, list[ManifestFile]]:
    files = defaultdict(list)
    for file in manifest.files:
        files[file.pdf or ""].append(file)
    return files


def _find_page_problems(
    manifest: Manifest, folder: Path, intact: set[str], reader: PdfReader, readings: dict[str, Reading]
) -> Iterator[_Problem]:
    """Read the PDFs again that are `intact`, and yield each file whose `on_pages` they do not confirm.

    What each shows is added to `readings`, also of those that the manifest does not compare.
    """
    files = _group_by_pdf(manifest)
    for pdf in manifest.pdfs:
        if pdf.pdf not in intact:
            continue
        if (folder / pdf.pdf).stat().st_size != pdf.bytes:
            yield pdf.pdf, f"its size differs from {JSON_NAME}"
        references = {file.file_id: file.reference for file in files[pdf.pdf] if file.file_id is not None}
        pages = readings[pdf.pdf] = reader.read(folder / pdf.pdf, references)
        if pages is Unread.BROKEN:
            yield pdf.pdf, pages.value
        if isinstance(pages, Unread) or pdf.references_found is None:
            continue
        on_pages = pages if count_found(pages) else {}  # as certified: pages without any reference decide nothing
        for file in files[pdf.pdf]:
            if file.file_id is not None and file.on_pages != on_pages.get(file.file_id):
                yield pdf.pdf, f"its pages and {JSON_NAME} disagree about file {file.file_id}"


def _read(path: Path) -> bytes:
    """Return the content of a regular file; nothing, if it is a link, a device or cannot be read."""
    try:
        return b"" if path.is_symlink() or not path.is_file() else path.read_bytes()
    except OSError:
        return b""


def _check_signature(folder: Path, content: bytes, allowed_signers: Path | None, *, must_be_signed: bool) -> Finding:
    signature = folder / SIGNATURE_NAME
    if not signature.is_file():
        if must_be_signed:
            return error("report", SIGNATURE_NAME, "missing", _HINT)
        return ok("report", SIGNATURE_NAME, "not signed")
    signer = verify_signature(content, signature.read_bytes(), allowed_signers)
    if signer is None:
        expected = "of this content" if allowed_signers is None else "of this content by an allowed signer"
        return error("report", SIGNATURE_NAME, f"not a signature {expected}", _HINT)
    return ok("report", SIGNATURE_NAME, f"signed by {signer}")
