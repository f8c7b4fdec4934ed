"""The manifest of a job's folder: manifest.json, manifest.csv, index.html, SHA256SUMS and its signature."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from pipeline.csv_rows import format_csv_row
from pipeline.formatting import escape_control_characters, pluralize
from pipeline.reports.image_folder import list_image_sums
from pipeline.reports.index_page import render_pages
from pipeline.reports.models import (
    Manifest,
    ManifestCounts,
    ManifestDeletions,
    ManifestFile,
    ManifestOrder,
    ManifestPdf,
)
from pipeline.version import __version__
from schemas.timestamps import format_instant, now_us

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pipeline.lake.request_log import ReportOrderRecord
    from pipeline.reports.folder import JobFolder
    from pipeline.reports.models import FileOutcome, JobStatus, ManifestImages

JSON_NAME: Final = "manifest.json"
CSV_NAME: Final = "manifest.csv"
SUMS_NAME: Final = "SHA256SUMS"
SIGNATURE_NAME: Final = "SHA256SUMS.sig"
_OWN_KEYS: Final = frozenset({"selection", "service", "title", "purpose", "requested_by"})
"""Options that have a key of their own in the manifest."""


def remove_sums(folder: JobFolder) -> None:
    """Remove SHA256SUMS and its signature, before a file that they cover is changed."""
    for name in (SIGNATURE_NAME, SUMS_NAME):
        folder.remove(name)


def write_manifest(
    folder: JobFolder,
    status: JobStatus,
    sign: Callable[[bytes], bytes] | None = None,
    images: ManifestImages | None = None,
) -> None:
    """Write the manifest files and their checksums. SHA256SUMS exists only while every file has its checksum.

    `images`: the folder has images, with checksums of their own.
    """
    remove_sums(folder)
    manifest = build_manifest(status, is_signed=sign is not None, images=images)
    contents = {
        JSON_NAME: manifest.to_json().encode(),
        CSV_NAME: format_csv(manifest.files),
        **{name: page.encode() for name, page in render_pages(manifest).items()},
    }
    sums = {pdf.pdf: pdf.sha256 for pdf in manifest.pdfs}
    if images is not None:
        sums |= list_image_sums(folder.path)
    for name, content in contents.items():
        folder.write(name, content)
        digest = folder.digest(name)
        sums[name] = digest.sha256 if digest is not None else ""
    text = "".join(f"{sha256}  {name}\n" for name, sha256 in sorted(sums.items()))
    folder.write(SUMS_NAME, text.encode())
    if sign is not None:
        folder.write(SIGNATURE_NAME, sign(text.encode()))


def build_manifest(status: JobStatus, *, is_signed: bool = False, images: ManifestImages | None = None) -> Manifest:
    """Return the manifest of a job; `is_signed`: a signature belongs to it."""
    job, options, context = status.job, json.loads(status.job.options), json.loads(status.job.context)
    files = tuple(_file_entry(outcome) for outcome in status.files)
    failed = len(status.failed)
    return Manifest(
        job=job.job,
        scanlake=__version__,
        service=options["service"],
        begun_at=format_instant(job.created_at),
        written_at=format_instant(now_us()),
        signed=is_signed,
        selection=options["selection"],
        title=options.get("title"),
        purpose=options.get("purpose"),
        requested_by=options.get("requested_by"),
        settings={name: value for name, value in options.items() if name not in _OWN_KEYS},
        snapshot=context["snapshot"],
        watermark=context["watermark"],
        deletions=ManifestDeletions(
            known_up_to=context["last_verify_at"],
            deleted_files_in_lake=context["deleted_files"],
            selected=tuple(context["selected_deleted_files"]),
        ),
        counts=ManifestCounts(
            files=len(files),
            delivered=len(files) - failed,
            failed=failed,
            pdfs=len(status.pdfs),
            orders=len(status.orders),
            unknown_orders=len(status.unknown_orders),
        ),
        pdfs=tuple(_pdf_entry(order) for order in status.pdfs),
        orders=tuple(_order_entry(order) for order in status.orders),
        files=files,
        images=images,
    )


def _file_entry(outcome: FileOutcome) -> ManifestFile:
    order = outcome.order if outcome.reason is None else None
    return ManifestFile(
        file_id=outcome.file.file_id,
        reference=outcome.file.reference,
        group=outcome.file.group_name,
        state="failed" if order is None else "delivered",
        pdf=None if order is None else order.pdf,
        sha256=None if order is None else order.sha256,
        bytes=None if order is None else order.bytes,
        ordered_at=None if outcome.order is None else _format_instant(outcome.order.ordered_at),
        delivered_at=None if order is None else _format_instant(order.delivered_at),
        confirmed_before_at=_format_instant(outcome.file.confirmed_before_at),
        confirmed_after_at=None if order is None else _format_instant(outcome.file.confirmed_after_at),
        on_pages=None if order is None or outcome.file.on_pages is None else bool(outcome.file.on_pages),
        reason=outcome.reason,
    )


def _pdf_entry(order: ReportOrderRecord) -> ManifestPdf:
    count = order.references_found
    pages = f"{count} of {pluralize(order.files, 'file')} found on its pages"
    if count is None:
        pages = "not read"
    elif count == 0:
        pages = "references not shown on its pages"
    return ManifestPdf(
        pdf=order.pdf or "",
        sha256=order.sha256 or "",
        bytes=order.bytes or 0,
        files=order.files,
        pages_read=count is not None,
        references_found=count,
        pages=pages,
    )


def _order_entry(order: ReportOrderRecord) -> ManifestOrder:
    return ManifestOrder(
        batch=order.batch,
        attempt=order.attempt,
        name=order.name,
        state=order.state,
        files=order.files,
        ordered_at=_format_instant(order.ordered_at),
        delivered_at=_format_instant(order.delivered_at),
        error=order.error,
    )


def _format_instant(at: int | None) -> str | None:
    return None if at is None else format_instant(at)


def format_csv(files: Sequence[ManifestFile]) -> bytes:
    """Return manifest.csv: formulas get an apostrophe, controls are escaped. manifest.json is exact."""
    rows = (
        (escape_control_characters(value) if isinstance(value, str) else value for _, value in file) for file in files
    )
    return "".join(map(format_csv_row, (ManifestFile.model_fields, *rows))).encode()
