"""Check of a job's folder: `scanlake check --report DIR`. Needs neither the lake nor the service."""

from __future__ import annotations

import csv
import hashlib
import io
import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from pydantic import ValidationError

from pipeline.csv_rows import escape_formula
from pipeline.errors import SettingsError
from pipeline.findings import Severity, error, ok, warning
from pipeline.formatting import pluralize
from pipeline.reports.index_page import PAGE_NAME
from pipeline.reports.manifest import CSV_NAME, JSON_NAME, SIGNATURE_NAME, SUMS_NAME
from pipeline.reports.models import Manifest
from pipeline.reports.signing import verify_signature

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from pipeline.findings import Finding

_SUMS_LINE: Final = re.compile(r"([0-9a-f]{64}) [ *]([^./\\\x00-\x1f\x7f][^/\\\x00-\x1f\x7f]*)")
"""No name begins with a dot or leads out of the folder."""
_TAIL_BYTES: Final = 2_048  # the end mark of a PDF is in here
_HINT: Final = "Get the folder again from its source, or run the job's command again."
_Problem: TypeAlias = "tuple[str, str]"
"""A file of the folder, and what is wrong with it."""


@dataclass(frozen=True, slots=True)
class FolderCheck:
    """Result of a check: the findings, and whether the folder has a signature."""

    findings: Sequence[Finding]
    signed: bool

    @property
    def is_intact(self) -> bool:
        """Whether no finding is damage."""
        return all(finding.severity is not Severity.ERROR for finding in self.findings)


def check_report_folder(folder: Path, allowed_signers: Path | None = None) -> FolderCheck:
    """Check the checksums, PDFs, manifest and signature of a folder.

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
    problems = list(_read_sums(content, sums))
    for name, sha256 in sums.items():
        problems += _find_file_problems(folder, name, sha256)
    manifest = read_folder_manifest(folder)
    if manifest is None:
        problems.append((JSON_NAME, "cannot be read"))
    else:
        problems += _find_manifest_problems(manifest, sums, folder)
    must_be_signed = allowed_signers is not None or (manifest is not None and manifest.signed)
    signature = _check_signature(folder, content, allowed_signers, must_be_signed=must_be_signed)
    findings = [error("report", name, problem, _HINT) for name, problem in problems]
    findings.append(signature)
    known = {*sums, SUMS_NAME, SIGNATURE_NAME}
    unknown = sorted(path.name for path in folder.iterdir() if path.name not in known and path.name[0] != ".")
    findings += [warning("report", name, "unknown file", "Nothing to do: no manifest names it.") for name in unknown]
    if manifest is not None:
        findings.append(ok("report", f"job {manifest.job}", _describe_contents(manifest)))
    return FolderCheck(findings, (folder / SIGNATURE_NAME).is_file())


def _describe_contents(manifest: Manifest) -> str:
    failed = sum(file.pdf is None and bool(file.reason) for file in manifest.files)
    counts = [pluralize(len(manifest.files), "file"), pluralize(len(manifest.pdfs), "PDF")]
    counts.append(f"{pluralize(failed, 'file')} named as failed")
    return ", ".join(counts)


def _read_sums(content: bytes, sums: dict[str, str]) -> Iterator[_Problem]:
    """Fill `sums` with the hash of every file, by name. Yield what is wrong with the list."""
    for number, line in enumerate(content.decode("utf-8", "replace").removesuffix("\n").split("\n"), 1):
        match = _SUMS_LINE.fullmatch(line)
        if match is None or match[2] in sums:
            yield f"{SUMS_NAME}, line {number}", "not a checksum of a file of this folder"
        else:
            sums[match[2]] = match[1]
    yield from ((name, f"not in {SUMS_NAME}") for name in (JSON_NAME, CSV_NAME, PAGE_NAME) if name not in sums)


def _find_file_problems(folder: Path, name: str, sha256: str) -> Iterator[_Problem]:
    path = folder / name
    if path.is_symlink() or not path.is_file():
        yield name, "missing"
        return
    with path.open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != sha256:
            yield name, "the content was changed"
        elif path.suffix == ".pdf":
            file.seek(0)
            head = file.read(4)
            file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            if head != b"%PDF" or b"%%EOF" not in file.read():
                yield name, "not a complete PDF"


def read_folder_manifest(folder: Path) -> Manifest | None:
    """Return the manifest of a folder; None if it cannot be read."""
    try:
        return Manifest.model_validate_json((folder / JSON_NAME).read_bytes())
    except (OSError, ValidationError):
        return None


def _find_manifest_problems(manifest: Manifest, sums: dict[str, str], folder: Path) -> Iterator[_Problem]:
    """Yield a problem for each file that is not in exactly one PDF and not failed, and for each contradiction."""
    ids = Counter(file.file_id for file in manifest.files if file.file_id is not None)
    yield from ((JSON_NAME, f"file {name} is listed {count} times") for name, count in ids.items() if count > 1)
    names = Counter(pdf.pdf for pdf in manifest.pdfs)
    yield from ((JSON_NAME, f"{name} is listed {count} times") for name, count in names.items() if count > 1)
    yield from _find_placement_problems(manifest)
    yield from _find_confirmation_problems(manifest)
    yield from _find_pdf_problems(manifest, sums)
    csv_pairs = [
        ("" if file.file_id is None else str(file.file_id), escape_formula(file.pdf or "")) for file in manifest.files
    ]
    if _read_csv_pairs(folder) != csv_pairs:
        yield CSV_NAME, f"does not match {JSON_NAME}"


def _find_placement_problems(manifest: Manifest) -> Iterator[_Problem]:
    pdfs = {(pdf.pdf, pdf.sha256) for pdf in manifest.pdfs}
    for file in manifest.files:
        is_failed = file.pdf is None and bool(file.reason)
        if not is_failed and (file.pdf, file.sha256) not in pdfs:
            yield JSON_NAME, f"file {file.file_id} is in no PDF and has no reason"


def _find_confirmation_problems(manifest: Manifest) -> Iterator[_Problem]:
    """Yield a problem for each delivered file that was not confirmed on both sides of its PDF."""
    for file in manifest.files:
        if file.state == "delivered" and not (file.confirmed_before_at and file.confirmed_after_at):
            yield JSON_NAME, f"file {file.file_id} is delivered without both confirmations"
        elif file.state == "delivered" and file.on_pages is False:
            yield JSON_NAME, f"file {file.file_id} is delivered, but not on the pages of its PDF"


def _find_pdf_problems(manifest: Manifest, sums: dict[str, str]) -> Iterator[_Problem]:
    files = Counter((file.pdf, file.sha256) for file in manifest.files)
    for pdf in manifest.pdfs:
        if sums.get(pdf.pdf) != pdf.sha256:
            yield pdf.pdf, f"{SUMS_NAME} and {JSON_NAME} disagree"
        if files[pdf.pdf, pdf.sha256] != pdf.files:
            yield pdf.pdf, f"ordered for {pdf.files} files, but {files[pdf.pdf, pdf.sha256]} files name it"
    for name in sorted(sums.keys() - {pdf.pdf for pdf in manifest.pdfs}):
        if name.endswith(".pdf"):
            yield name, f"in {SUMS_NAME}, but not in {JSON_NAME}"


def _read_csv_pairs(folder: Path) -> list[tuple[str, str]] | None:
    try:
        text = (folder / CSV_NAME).read_bytes().decode()  # read_text would turn a \r within a cell into \n
    except (OSError, ValueError):
        return None
    return [(row.get("file_id") or "", row.get("pdf") or "") for row in csv.DictReader(io.StringIO(text, newline=""))]


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
