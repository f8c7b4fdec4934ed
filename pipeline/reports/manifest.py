"""The manifest of a job's folder: manifest.json, .csv and .xlsx, index.html, VERIFY.txt, SHA256SUMS, its signature."""

from __future__ import annotations

import hashlib
import json
import zipfile
from contextlib import suppress
from io import BytesIO
from typing import TYPE_CHECKING, Any, Final, TypeVar

from msgspec.structs import asdict
from pydantic import BaseModel

from pipeline import __version__
from pipeline.errors import SettingsError
from pipeline.lake.ledger.request_log import OrderState
from pipeline.output.csv import format_csv_row
from pipeline.output.formatting import escape_control_characters, pluralize
from pipeline.output.handover import MANIFEST, SUMS, format_sums
from pipeline.output.templates.rendering import build_policy, read_script, render
from pipeline.query.xlsx import open_workbook, write_sheet
from pipeline.reports.models import CatalogState, Manifest, ManifestCounts, ManifestFile, ManifestOrder, ManifestPdf
from pipeline.reports.pdf_reader import Unread
from pipeline.reports.signing import NAMESPACE
from schemas.timestamps import format_instant, now_us

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pipeline.lake.ledger.request_log import ReportJob, ReportJobFile, ReportOrderRecord, RequestLog
    from pipeline.reports.folder import JobFolder

_Entry = TypeVar("_Entry", bound=BaseModel)

JSON_NAME: Final = "manifest.json"
CSV_NAME: Final = MANIFEST
SUMS_NAME: Final = SUMS
SIGNATURE_NAME: Final = "SHA256SUMS.sig"
PAGE_NAME: Final = "index.html"
INSTRUCTIONS_NAME: Final = "VERIFY.txt"
WORKBOOK_NAME: Final = "manifest.xlsx"
"""With the optional XlsxWriter: manifest.csv with ids as text, of which a spreadsheet rounds those of 16 digits."""
LISTED_NAMES: Final = (JSON_NAME, CSV_NAME, PAGE_NAME, INSTRUCTIONS_NAME)
"""The files of a folder that SHA256SUMS lists beside the PDFs."""
OWN_NAMES: Final = (SIGNATURE_NAME, SUMS_NAME, *LISTED_NAMES, WORKBOOK_NAME)
"""All files of a folder beside the PDFs."""
_SCRIPT: Final = read_script("report_index.js")
_POLICY: Final = build_policy(_SCRIPT)
_NUMBERS: Final = {"bytes": "BIGINT", "on_pages": "BOOLEAN", "changed_since_selection": "BOOLEAN"}
_INSTRUCTIONS: Final = f"""How to check this folder

Run these commands in the folder. They need neither scanlake nor the service.

1. The content: every file must be OK. Files that are not listed are not part of the report.

    sha256sum -c {SUMS_NAME}

2. If the folder has {SIGNATURE_NAME}: the fingerprint of the SSH key that signed {SUMS_NAME}.

    ssh-keygen -Y check-novalidate -n {NAMESPACE} -s {SIGNATURE_NAME} < {SUMS_NAME}

3. The signer, by a public key that you have from the signer, not from this folder. Write it into
   ../allowed_signers, as one line: the word signer, a space, the key.

    ssh-keygen -Y verify -f ../allowed_signers -I signer -n {NAMESPACE} -s {SIGNATURE_NAME} < {SUMS_NAME}

4. Nothing is missing and nothing was added. The first command prints {SUMS_NAME}, {SIGNATURE_NAME} if the folder is
   signed, and nothing else. The second counts the selected files: {{files:,}}. The third counts the PDFs: {{pdfs:,}}.

    ls | grep -vxF -e "$(cut -c67- {SUMS_NAME})"
    tail -n +2 {CSV_NAME} | wc -l
    find . -name '*.pdf' | wc -l

   {{delivered:,}} of the selected files are in these PDFs: column pdf of {CSV_NAME}. {{failed:,}} are in none: column
   reason.

`scanlake check --report FOLDER` checks the same, and whether manifests, page, PDFs and times agree.

A signature proves who signed this content, and that it has not changed since. It does not prove when: times are those
of the machine's clock, which {JSON_NAME} compares with the service's (clock_seconds_ahead). An independent time needs a
time stamp of {SUMS_NAME} by an authority (RFC 3161).
"""


def write_manifest(folder: JobFolder, manifest: Manifest, sign: Callable[[bytes], bytes] | None = None) -> None:
    """Write the manifest files and their checksums. SHA256SUMS exists only while every file has its checksum."""
    for name in (SIGNATURE_NAME, SUMS_NAME):
        folder.remove(name)
    contents = {
        JSON_NAME: f"{manifest.model_dump_json(indent=1)}\n".encode(),
        CSV_NAME: format_csv(manifest.files),
        PAGE_NAME: render_page(manifest).encode(),
        INSTRUCTIONS_NAME: _INSTRUCTIONS.format(**dict(manifest.counts)).encode(),
    }
    if (workbook := format_workbook(manifest.files)) is not None:
        contents[WORKBOOK_NAME] = workbook
    else:
        folder.remove(WORKBOOK_NAME)  # of an earlier run
    sums = {pdf.pdf: pdf.sha256 for pdf in manifest.pdfs}
    for name, content in contents.items():
        folder.write(name, content)
        sums[name] = hashlib.sha256(content).hexdigest()
    content = format_sums(sums).encode()
    folder.write(SUMS_NAME, content)
    if sign is not None:
        folder.write(SIGNATURE_NAME, sign(content))


def read_manifest(request_log: RequestLog, job: ReportJob) -> Manifest:
    """Return the manifest of a job as the ledger has it: without signature."""
    orders = request_log.orders(job.job)
    last_orders = {order.batch: order for order in orders}  # orders are sorted by attempt, and the last one counts
    files = tuple(
        _describe_file(file, None if file.batch is None else last_orders.get(file.batch))
        for file in request_log.files(job.job)
    )
    pdfs = [order for order in last_orders.values() if order.state is OrderState.DELIVERED]
    entries = tuple(_to_entry(ManifestOrder, **asdict(order)) for order in orders)
    options = json.loads(job.options)
    named = {name: options.pop(name) for name in ("service", "selection", "title", "purpose", "requested_by")}
    return Manifest(
        job=job.job,
        scanlake=__version__,
        begun_at=format_instant(job.created_at),
        written_at=format_instant(now_us()),
        **named,
        settings=options,
        **dict(CatalogState.model_validate_json(job.context)),
        counts=count_entries(files, entries, pdfs=len(pdfs)),
        pdfs=tuple(
            _to_entry(ManifestPdf, **asdict(order), pages=describe_pages(order.references_found, order.files))
            for order in sorted(pdfs, key=lambda order: order.pdf or "")
        ),
        orders=entries,
        files=files,
    )


def count_entries(files: Sequence[ManifestFile], orders: Sequence[ManifestOrder], *, pdfs: int) -> ManifestCounts:
    """Return the totals of a manifest's entries."""
    failed = sum(file.state == "failed" for file in files)
    return ManifestCounts(
        files=len(files),
        delivered=len(files) - failed,
        changed_since_selection=sum(file.changed_since_selection for file in files),
        failed=failed,
        pdfs=pdfs,
        orders=len(orders),
        unknown_orders=sum(order.state == OrderState.UNKNOWN for order in orders),
    )


def _to_entry(model: type[_Entry], **values: Any) -> _Entry:
    """Return an entry of the values that it has, with instants as text."""
    entry = {name: value for name, value in values.items() if name in model.model_fields}
    instants = {name: at for name, at in entry.items() if name.endswith("_at") and at is not None}
    return model(**entry | {name: format_instant(at) for name, at in instants.items()})


def _describe_file(file: ReportJobFile, order: ReportOrderRecord | None) -> ManifestFile:
    reason = file.reason or _find_failure(order)
    if reason is None:
        values = asdict(file) | ({} if order is None else asdict(order)) | {"state": "delivered"}
        values |= {"on_pages": None if file.on_pages is None else bool(file.on_pages)}
        if file.changed_at is not None:
            updated, in_lake = format_instant(file.changed_at), format_instant(file.updated_in_lake or 0)
            reason = f"changed since selection: updated {updated}, in the lake {in_lake}"
            values |= {"changed_since_selection": True, "reason": reason}
    else:
        values = {name: getattr(file, name) for name in ("file_id", "reference", "confirmed_before_at")}
        values |= {"state": "failed", "reason": reason, "ordered_at": None if order is None else order.ordered_at}
    return _to_entry(ManifestFile, **values, group=file.group_name)


def _find_failure(order: ReportOrderRecord | None) -> str | None:
    """Return why an order has delivered nothing; None if it has."""
    if order is None:
        return "not ordered yet"
    if order.state is OrderState.SAVED:
        return order.error or "its PDF is saved, but its files are not confirmed a second time yet"
    return None if order.state is OrderState.DELIVERED else order.error or order.state.value


def describe_pages(references_found: int | None, files: int) -> str:
    """Return in words how many files of a PDF its pages show."""
    if references_found is None:
        return Unread.SKIPPED.value
    if not references_found:
        return "no references found"
    return f"{references_found} of {pluralize(files, 'file')} found on its pages"


def describe_reading(references_found: Sequence[int | None]) -> str:
    """Return in words how many PDFs were read, by how many references each shows; None: it was not read."""
    count, read = len(references_found), [number for number in references_found if number is not None]
    text = f"{len(read):,} of {pluralize(count, 'PDF')} {'was' if count == 1 else 'were'} read"
    return f"{text}, no references found in {read.count(0):,}" if 0 in read else text


def format_csv(files: Sequence[ManifestFile]) -> bytes:
    """Return manifest.csv: formulas get an apostrophe, controls are escaped. manifest.json is exact."""
    rows = (
        (escape_control_characters(value) if isinstance(value, str) else value for _, value in file) for file in files
    )
    return "".join(map(format_csv_row, (ManifestFile.model_fields, *rows))).encode()


def format_workbook(files: Sequence[ManifestFile]) -> bytes | None:
    """Return manifest.xlsx, with every text exactly; None without XlsxWriter, or if a sheet or cell is too small."""
    columns = [(name, _NUMBERS.get(name, "VARCHAR")) for name in ManifestFile.model_fields]
    with suppress(SettingsError), BytesIO() as target:
        with open_workbook(target) as book:
            write_sheet(book, "files", columns, ([value for _, value in file] for file in files))
        return target.getvalue()
    return None


def read_sheet(workbook: bytes) -> bytes | None:
    """Return the only sheet of a workbook as XML, with every text in its cell; None if it cannot be read."""
    with suppress(zipfile.BadZipFile, KeyError), zipfile.ZipFile(BytesIO(workbook)) as archive:
        return archive.read("xl/worksheets/sheet1.xml")
    return None


def render_page(manifest: Manifest) -> str:
    """Return index.html: the searchable list of the files, in one file. The template escapes every text."""
    context = {
        "manifest": manifest,
        "heading": manifest.title or f"Reports {manifest.job}",
        "facts": _list_facts(manifest),
        "counts": manifest.counts,
        "reading": describe_reading([pdf.references_found for pdf in manifest.pdfs]),
        "files": manifest.files,
        "pdf_pages": {pdf.pdf: pdf.pages for pdf in manifest.pdfs},
        "has_groups": any(file.group is not None for file in manifest.files),
    }
    return render("report_index.html.jinja", _POLICY, _SCRIPT, **context)


def _list_facts(manifest: Manifest) -> list[tuple[str, str]]:
    """Return what the files were selected for, by whom and how."""
    selection = {key: value for key, value in manifest.selection.items() if key not in {"kind", "per_file"}}
    sql, group = selection.pop("sql", None), selection.pop("group_by", None)
    texts = {key: ", ".join(map(str, it)) if isinstance(it, list | tuple) else it for key, it in selection.items()}
    facts = {
        "Purpose": manifest.purpose,
        "Requested by": manifest.requested_by,
        "Job": manifest.job if manifest.title else None,
        "Selected by": sql or "; ".join(f"{key}: {text}" for key, text in texts.items()),
        "Grouped by": group,
    }
    return [(name, text) for name, text in facts.items() if text]
