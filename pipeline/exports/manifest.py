"""What proves a folder: manifest.json and manifest.csv, index.html, SHA256SUMS last, and its signature."""

from __future__ import annotations

import csv
import io
import json
from typing import TYPE_CHECKING, Any, Final

from pipeline import __version__
from pipeline.exports.jobs import now_us
from pipeline.exports.page import page
from schemas.instants import spell_instant

if TYPE_CHECKING:
    from collections.abc import Callable

    from pipeline.exports.folder import Folder
    from pipeline.exports.jobs import FileOutcome, Standing
    from pipeline.lake.orders import Order

FORMAT: Final = 1
JSON_NAME: Final = "manifest.json"
CSV_NAME: Final = "manifest.csv"
PAGE_NAME: Final = "index.html"
SUMS_NAME: Final = "SHA256SUMS"
SIGNATURE_NAME: Final = "SHA256SUMS.sig"
CSV_COLUMNS: Final = (
    "file_id", "reference", "group", "state", "pdf", "sha256", "bytes", "ordered_at", "delivered_at", "reason",
)  # fmt: skip
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")


def write_proof(folder: Folder, standing: Standing, sign: Callable[[bytes], bytes] | None = None) -> None:
    """Write the manifests and their sums. SHA256SUMS is there only while all that it names is as it says."""
    for name in (SIGNATURE_NAME, SUMS_NAME):
        folder.remove(name)
    facts = manifest(standing)
    written = {
        JSON_NAME: (json.dumps(facts, indent=1, ensure_ascii=False) + "\n").encode(),
        CSV_NAME: _csv(facts["files"]),
        PAGE_NAME: page(facts).encode(),
    }
    for name, content in written.items():
        folder.write(name, content)
    sums = {order.pdf: order.sha256 for order in standing.pdfs}
    for name in written:
        found = folder.digest(name)
        sums[name] = found.sha256 if found is not None else ""
    text = "".join(f"{sha256}  {name}\n" for name, sha256 in sorted(sums.items(), key=lambda pair: str(pair[0])))
    folder.write(SUMS_NAME, text.encode())
    if sign is not None:
        folder.write(SIGNATURE_NAME, sign(text.encode()))


def manifest(standing: Standing) -> dict[str, Any]:
    """Everything that is known of the job, but for the addresses of its reports: those are secrets."""
    record, terms, context = standing.record, json.loads(standing.record.terms), json.loads(standing.record.context)
    files = [_file(each) for each in standing.files]
    settings = {name: value for name, value in terms.items() if name not in {"selection", "service"}}
    return {
        "format": FORMAT,
        "job": record.job,
        "scanlake": __version__,
        "service": terms["service"],
        "begun_at": spell_instant(record.created_at),
        "written_at": spell_instant(now_us()),
        "selection": terms["selection"],
        "settings": settings,
        "snapshot": context.get("snapshot"),
        "horizon": context.get("horizon"),
        "deletions": {
            "known_up_to": context.get("last_verify_at"),
            "deleted_files_in_lake": context.get("deleted_files"),
            "selected": [each["file_id"] for each in files if (each["reason"] or "").startswith("deleted at")],
        },
        "counts": {
            "files": len(files),
            "delivered": sum(each["state"] == "delivered" for each in files),
            "failed": sum(each["state"] == "failed" for each in files),
            "pdfs": len(standing.pdfs),
            "orders": len(standing.orders),
            "ambiguous_orders": len(standing.ambiguous),
        },
        "pdfs": [
            {"pdf": order.pdf, "sha256": order.sha256, "bytes": order.bytes, "files": order.files}
            for order in standing.pdfs
        ],
        "orders": [_order(order) for order in standing.orders],
        "files": files,
    }


def _file(outcome: FileOutcome) -> dict[str, Any]:
    delivered = outcome.order if outcome.reason is None else None
    return {
        "file_id": outcome.file.file_id,
        "reference": outcome.file.reference,
        "group": outcome.file.group_name,
        "state": "failed" if delivered is None else "delivered",
        "pdf": delivered and delivered.pdf,
        "sha256": delivered and delivered.sha256,
        "bytes": delivered and delivered.bytes,
        "ordered_at": outcome.order and _moment(outcome.order.ordered_at),
        "delivered_at": delivered and _moment(delivered.delivered_at),
        "reason": outcome.reason,
    }


def _order(order: Order) -> dict[str, Any]:
    return {
        "batch": order.batch,
        "attempt": order.attempt,
        "name": order.name,
        "state": order.state,
        "files": order.files,
        "ordered_at": _moment(order.ordered_at),
        "delivered_at": _moment(order.delivered_at),
        "error": order.error,
    }


def _moment(at: int | None) -> str | None:
    return None if at is None else spell_instant(at)


def _csv(files: list[dict[str, Any]]) -> bytes:
    """For spreadsheets, hence a text that one would take for a formula gets an apostrophe; the JSON is exact."""
    page = io.StringIO(newline="")
    writer = csv.writer(page, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    writer.writerows([_cell(each[name]) for name in CSV_COLUMNS] for each in files)
    return page.getvalue().encode("utf-8", "backslashreplace")


def _cell(value: Any) -> Any:
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value
