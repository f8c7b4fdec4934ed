"""Verification of a job's folder: `scanlake report verify DIR`. Needs neither the lake nor the service."""

from __future__ import annotations

import csv
import hashlib
import io
import re
from collections import Counter
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final

from pydantic import ValidationError

from pipeline.csv_rows import escape_formula
from pipeline.errors import SettingsError
from pipeline.reports.image_folder import IMAGES_NAME, find_image_problems, list_unknown_images
from pipeline.reports.index_page import PAGE_NAME
from pipeline.reports.manifest import CSV_NAME, JSON_NAME, SIGNATURE_NAME, SUMS_NAME
from pipeline.reports.models import Manifest
from pipeline.reports.signing import verify_signature

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pipeline.lake.handover import ExportedImages

_PART: Final = r"[^./\\\x00-\x1f\x7f][^/\\\x00-\x1f\x7f]*"
_SUMS_LINE: Final = re.compile(rf"([0-9a-f]{{64}}) [ *]((?:{IMAGES_NAME}(?:/{_PART})+|{_PART}))")
"""Only images are in subfolders. No part begins with a dot, so no name leads out of the folder."""
_TAIL_BYTES: Final = 2_048  # the end mark of a PDF is in here


@dataclass(slots=True)
class FolderCheck:
    """Result of a verification. `problems` has one line each; `unknown_files` are in no list of the folder."""

    job: str = ""
    files: int = 0
    pdfs: int = 0
    failed: int = 0
    signer: str | None = None
    signed: bool = False
    problems: list[str] = field(default_factory=list)
    unknown_files: list[str] = field(default_factory=list)
    images: ExportedImages | None = None

    def to_data(self) -> dict[str, Any]:
        """Return the object that `--json` prints. A job without images has no key for them."""
        data = {item.name: getattr(self, item.name) for item in fields(self) if item.name != "images"}
        return data if self.images is None else data | {"images": asdict(self.images)}


def verify_folder(
    folder: Path, allowed_signers: Path | None = None, *, requires_signature: bool = False
) -> FolderCheck:
    """Check the checksums, PDFs, manifest and signature of a folder.

    A signature must exist if the manifest has `signed`, with `allowed_signers`, or with `requires_signature`.
    Raises `SettingsError` if it is not the folder of a finished job.
    """
    sums_file = folder / SUMS_NAME
    if not sums_file.is_file() or sums_file.is_symlink():
        raise SettingsError(
            f"{folder} has no {SUMS_NAME}.",
            hint="Run the job's command again to finish the job, or use the folder of a finished job.",
        )
    check = FolderCheck()
    content = sums_file.read_bytes()
    sums = _read_sums(content, check)
    for name, sha256 in sums.items():
        check.problems += _file_problems(folder, name, sha256)
    manifest = read_folder_manifest(folder)
    if manifest is None:
        check.problems.append(f"{JSON_NAME}: cannot be read")
    else:
        check.job, check.files, check.pdfs = manifest.job, len(manifest.files), len(manifest.pdfs)
        check.failed = sum(file.pdf is None and bool(file.reason) for file in manifest.files)
        check.problems += _manifest_problems(manifest, sums, folder)
        check.problems += find_image_problems(folder, manifest.images, sums)
        check.images = manifest.images
    must_be_signed = requires_signature or allowed_signers is not None or (manifest is not None and manifest.signed)
    _check_signature(folder, content, allowed_signers, check, must_be_signed=must_be_signed)
    known_names = {*sums, SUMS_NAME, SIGNATURE_NAME}
    check.unknown_files = sorted(
        path.name for path in folder.iterdir() if path.name not in known_names and not path.name.startswith(".")
    )
    if check.images is not None and not (folder / IMAGES_NAME).is_symlink():
        check.unknown_files = [name for name in check.unknown_files if name != IMAGES_NAME]
        check.unknown_files += list_unknown_images(folder, sums)
    return check


def _read_sums(content: bytes, check: FolderCheck) -> dict[str, str]:
    sums: dict[str, str] = {}
    for number, line in enumerate(content.decode("utf-8", "replace").removesuffix("\n").split("\n"), 1):
        match = _SUMS_LINE.fullmatch(line)
        if match is None or match[2] in sums:
            check.problems.append(f"{SUMS_NAME}, line {number}: not a checksum of a file of this folder")
        else:
            sums[match[2]] = match[1]
    check.problems += [f"{name}: not in {SUMS_NAME}" for name in (JSON_NAME, CSV_NAME, PAGE_NAME) if name not in sums]
    return sums


def _file_problems(folder: Path, name: str, sha256: str) -> Iterator[str]:
    path = folder / name
    parents = [parent for parent in path.parents if parent.is_relative_to(folder) and parent != folder]
    if any(part.is_symlink() for part in (path, *parents)) or not path.is_file():
        yield f"{name}: missing"
        return
    with path.open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != sha256:
            yield f"{name}: the content was changed"
        elif path.suffix == ".pdf" and path.parent == folder:
            file.seek(0)
            head = file.read(4)
            file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            if head != b"%PDF" or b"%%EOF" not in file.read():
                yield f"{name}: not a complete PDF"


def read_folder_manifest(folder: Path) -> Manifest | None:
    """Return the manifest of a folder; None if it cannot be read."""
    try:
        return Manifest.model_validate_json((folder / JSON_NAME).read_bytes())
    except (OSError, ValidationError):
        return None


def _manifest_problems(manifest: Manifest, sums: dict[str, str], folder: Path) -> Iterator[str]:
    """Yield a line for each file that is not in exactly one PDF and not failed, and for each contradiction."""
    ids = Counter(file.file_id for file in manifest.files if file.file_id is not None)
    yield from (f"{JSON_NAME}: file {file_id} is listed {count} times" for file_id, count in ids.items() if count > 1)
    names = Counter(pdf.pdf for pdf in manifest.pdfs)
    yield from (f"{JSON_NAME}: {name} is listed {count} times" for name, count in names.items() if count > 1)
    yield from _placement_problems(manifest)
    yield from _confirmation_problems(manifest)
    yield from _pdf_problems(manifest, sums)
    csv_pairs = [
        ("" if file.file_id is None else str(file.file_id), escape_formula(file.pdf or "")) for file in manifest.files
    ]
    if _read_csv_pairs(folder) != csv_pairs:
        yield f"{CSV_NAME}: does not match {JSON_NAME}"


def _placement_problems(manifest: Manifest) -> Iterator[str]:
    pdfs = {(pdf.pdf, pdf.sha256) for pdf in manifest.pdfs}
    for file in manifest.files:
        is_failed = file.pdf is None and bool(file.reason)
        if not is_failed and (file.pdf, file.sha256) not in pdfs:
            yield f"{JSON_NAME}: file {file.file_id} is in no PDF and has no reason"


def _confirmation_problems(manifest: Manifest) -> Iterator[str]:
    """Yield a line for each delivered file that was not confirmed on both sides of its PDF."""
    for file in manifest.files:
        if file.state == "delivered" and not (file.confirmed_before_at and file.confirmed_after_at):
            yield f"{JSON_NAME}: file {file.file_id} is delivered without both confirmations"
        elif file.state == "delivered" and file.on_pages is False:
            yield f"{JSON_NAME}: file {file.file_id} is delivered, but not on the pages of its PDF"


def _pdf_problems(manifest: Manifest, sums: dict[str, str]) -> Iterator[str]:
    files = Counter((file.pdf, file.sha256) for file in manifest.files)
    for pdf in manifest.pdfs:
        if sums.get(pdf.pdf) != pdf.sha256:
            yield f"{pdf.pdf}: {SUMS_NAME} and {JSON_NAME} disagree"
        if files[pdf.pdf, pdf.sha256] != pdf.files:
            yield f"{pdf.pdf}: ordered for {pdf.files} files, but {files[pdf.pdf, pdf.sha256]} files name it"
    for name in sorted(sums.keys() - {pdf.pdf for pdf in manifest.pdfs}):
        if name.endswith(".pdf") and "/" not in name:
            yield f"{name}: in {SUMS_NAME}, but not in {JSON_NAME}"


def _read_csv_pairs(folder: Path) -> list[tuple[str, str]] | None:
    try:
        text = (folder / CSV_NAME).read_bytes().decode()  # read_text would turn a \r within a cell into \n
    except (OSError, ValueError):
        return None
    return [(row.get("file_id") or "", row.get("pdf") or "") for row in csv.DictReader(io.StringIO(text, newline=""))]


def _check_signature(
    folder: Path, content: bytes, allowed_signers: Path | None, check: FolderCheck, *, must_be_signed: bool
) -> None:
    signature = folder / SIGNATURE_NAME
    check.signed = signature.is_file()
    if check.signed:
        check.signer = verify_signature(content, signature.read_bytes(), allowed_signers)
        if check.signer is None:
            expected = "of this content" if allowed_signers is None else "of this content by an allowed signer"
            check.problems.append(f"{SIGNATURE_NAME}: not a signature {expected}")
    elif must_be_signed:
        check.problems.append(f"{SIGNATURE_NAME}: missing")
