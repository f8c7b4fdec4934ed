"""`scanlake report --verify DIR`: does a folder still hold what it says, years later and without the lake."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pipeline.errors import SettingsError
from pipeline.exports.manifest import CSV_NAME, JSON_NAME, PAGE_NAME, SIGNATURE_NAME, SUMS_NAME
from pipeline.exports.signing import signer_of

if TYPE_CHECKING:
    from pathlib import Path

_LINE: Final = re.compile(r"([0-9a-f]{64}) [ *]([A-Za-z0-9._-]+)")
_TAIL: Final = 2_048


@dataclass(slots=True)
class Verdict:
    """What was found. `flaws` are one line each; `foreign` are files that nothing speaks of."""

    job: str = ""
    files: int = 0
    pdfs: int = 0
    failed: int = 0
    signer: str | None = None
    signed: bool = False
    flaws: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)


def prove(folder: Path, signers: Path | None = None) -> Verdict:
    """Check sums, PDFs, manifests and signature of a folder. Raises `SettingsError` when it is no job's folder."""
    sums_file = folder / SUMS_NAME
    if not sums_file.is_file() or sums_file.is_symlink():
        raise SettingsError(
            f"{folder} has no {SUMS_NAME}.",
            remedy="Run the job's command again to finish it, or name the folder of a finished one.",
        )
    verdict = Verdict()
    text = sums_file.read_bytes()
    sums = _read_sums(text, verdict)
    for name, sha256 in sums.items():
        _check_file(folder / name, sha256, verdict)
    facts = _read_manifest(folder, verdict)
    if facts is not None:
        _check_manifest(facts, sums, folder, verdict)
    _check_signature(folder, text, signers, verdict)
    ours = {*sums, SUMS_NAME, SIGNATURE_NAME}
    verdict.foreign = sorted(path.name for path in folder.iterdir() if path.name not in ours and path.name[:1] != ".")
    return verdict


def _read_sums(text: bytes, verdict: Verdict) -> dict[str, str]:
    sums: dict[str, str] = {}
    for number, line in enumerate(text.decode("utf-8", "replace").splitlines(), 1):
        found = _LINE.fullmatch(line)
        if found is None or found[2] in sums:
            verdict.flaws.append(f"{SUMS_NAME}, line {number}: not a sum of a file of this folder")
        else:
            sums[found[2]] = found[1]
    verdict.flaws += [f"{name}: not in {SUMS_NAME}" for name in (JSON_NAME, CSV_NAME, PAGE_NAME) if name not in sums]
    return sums


def _check_file(path: Path, sha256: str, verdict: Verdict) -> None:
    if path.is_symlink() or not path.is_file():
        verdict.flaws.append(f"{path.name}: missing")
        return
    with path.open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != sha256:
            verdict.flaws.append(f"{path.name}: not as it was written")
        elif path.suffix == ".pdf":
            file.seek(0)
            head = file.read(4)
            file.seek(max(0, path.stat().st_size - _TAIL))
            if head != b"%PDF" or b"%%EOF" not in file.read():
                verdict.flaws.append(f"{path.name}: no whole PDF")


def _read_manifest(folder: Path, verdict: Verdict) -> dict[str, Any] | None:
    try:
        facts = json.loads((folder / JSON_NAME).read_bytes())
    except (OSError, ValueError):
        facts = None
    if not isinstance(facts, dict) or not isinstance(facts.get("files"), list):
        verdict.flaws.append(f"{JSON_NAME}: cannot be read")
        return None
    return facts


def _check_manifest(facts: dict[str, Any], sums: dict[str, str], folder: Path, verdict: Verdict) -> None:
    """Every file is in exactly one PDF of the folder or named as failed, and the CSV says the same."""
    files = [each for each in facts["files"] if isinstance(each, dict)]
    verdict.job, verdict.files = str(facts.get("job")), len(files)
    pdfs = {each["pdf"]: each for each in facts.get("pdfs", []) if isinstance(each, dict) and "pdf" in each}
    verdict.pdfs = len(pdfs)
    ids = [each.get("file_id") for each in files if each.get("file_id") is not None]
    if len(set(ids)) < len(ids):
        verdict.flaws.append(f"{JSON_NAME}: a file stands in it twice")
    held: dict[str, int] = {}
    for each in files:
        pdf = each.get("pdf")
        if pdf is None and each.get("reason"):
            verdict.failed += 1
        elif not isinstance(pdf, str) or pdf not in pdfs or pdfs[pdf].get("sha256") != each.get("sha256"):
            verdict.flaws.append(f"{JSON_NAME}: file {each.get('file_id')} is in no PDF, and no reason is given")
        else:
            held[pdf] = held.get(pdf, 0) + 1
    for name, pdf in pdfs.items():
        if sums.get(name) != pdf.get("sha256"):
            verdict.flaws.append(f"{name}: {SUMS_NAME} and {JSON_NAME} disagree")
        if held.get(name, 0) != pdf.get("files"):
            verdict.flaws.append(f"{name}: ordered for {pdf.get('files')} files, {held.get(name, 0)} name it")
    listed = {name for name in sums if name.endswith(".pdf")}
    verdict.flaws += [f"{name}: in {SUMS_NAME}, not in {JSON_NAME}" for name in sorted(listed - set(pdfs))]
    if _pairs_of_csv(folder) != [(str(each.get("file_id") or ""), each.get("pdf") or "") for each in files]:
        verdict.flaws.append(f"{CSV_NAME}: does not say what {JSON_NAME} says")


def _pairs_of_csv(folder: Path) -> list[tuple[str, str]] | None:
    try:
        text = (folder / CSV_NAME).read_text("utf-8")
    except (OSError, ValueError):
        return None
    return [(row.get("file_id") or "", row.get("pdf") or "") for row in csv.DictReader(io.StringIO(text, newline=""))]


def _check_signature(folder: Path, content: bytes, signers: Path | None, verdict: Verdict) -> None:
    signature = folder / SIGNATURE_NAME
    verdict.signed = signature.is_file()
    if not verdict.signed:
        if signers is not None:
            verdict.flaws.append(f"{SIGNATURE_NAME}: missing")
        return
    verdict.signer = signer_of(content, signature.read_bytes(), signers)
    if verdict.signer is None:
        whose = "of this content" if signers is None else "by one of the signers"
        verdict.flaws.append(f"{SIGNATURE_NAME}: no signature {whose}")
