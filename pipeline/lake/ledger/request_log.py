"""Write-ahead log of requests that must not be sent twice: report orders and shares, in the ledger.

Each entry is a short transaction without the lake's lock: a job may run for hours, and syncs commit concurrently.
Instants are microseconds UTC.
"""

from __future__ import annotations

from contextlib import closing, contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Literal

from msgspec import Struct
from msgspec.structs import asdict, astuple, replace

from pipeline.lake.ledger.ledger import Ledger, insert, insert_all
from pipeline.lake.storage.foreign_entries import refuse_foreign_entries
from schemas.timestamps import is_same_instant

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterator, Mapping, Sequence

    from pipeline.lake.storage.layout import LakeLayout


class OrderState(StrEnum):
    """State of a report order."""

    PENDING = "pending"  # recorded; not known to be sent
    ORDERED = "ordered"  # with the hash of a PDF, that is about to get its name
    SAVED = "saved"  # the PDF has its name; its files are not confirmed a second time yet
    DELIVERED = "delivered"  # every file of the PDF was confirmed before the order and after the PDF was saved
    REPLACED = "replaced"  # a file was not confirmed after the PDF was saved: the PDF does not count
    UNKNOWN = "unknown"  # the response was lost
    NOT_SENT = "not_sent"
    REJECTED = "rejected"
    TIMED_OUT = "timed_out"
    FAILED = "failed"


class ShareState(StrEnum):
    """State of a share link."""

    PENDING = "pending"  # recorded; not known to be sent
    CREATED = "created"
    REUSED = "reused"  # only in results: an earlier run created the link, and the link is still valid
    FAILED = "failed"
    UNKNOWN = "unknown"  # the response was lost


class ReportJob(Struct, frozen=True):
    """A job: its folder, and its fixed options. `options` and `context` are JSON."""

    job: str
    folder: str
    options: str
    context: str
    created_at: int


class ReportJobFile(Struct, frozen=True):
    """A selected file. Without a batch it is not ordered; `reason` has the cause.

    `excluded_at`: the file was not proven to be in a PDF; the next run orders it again. The confirmations are those of
    the batch's latest order, with the update times of the file; the first one was by `list` or `detail` call.
    `updated_in_lake` is the update time that the selection saw. `on_pages`: 1, 0 or None.
    """

    position: int
    file_id: int | None
    reference: str | None
    group_name: str | None
    batch: int | None
    reason: str | None = None
    excluded_at: int | None = None
    confirmed_before_at: int | None = None
    confirmed_before_by: str | None = None
    updated_before: int | None = None
    confirmed_after_at: int | None = None
    on_pages: int | None = None
    updated_in_lake: int | None = None
    updated_after: int | None = None

    @property
    def changed_at(self) -> int | None:
        """The update time of a confirmation, if the file is newer there than the selection saw it."""
        latest = max(self.updated_before or 0, self.updated_after or 0)
        if self.updated_in_lake is None or is_same_instant(latest, self.updated_in_lake):
            return None
        return latest if latest > self.updated_in_lake else None


class FileConfirmation(Struct, frozen=True):
    """The service had a file at `at`, with this update time, which may differ between its two calls."""

    at: int
    updated_at: int | None
    call: Literal["list", "detail"]


class ReportBatch(Struct, frozen=True):
    """The files of one PDF."""

    batch: int
    label: str
    group_name: str | None
    files: tuple[int, ...]


class ReportOrderRecord(Struct, frozen=True):
    """One order of a batch."""

    batch: int
    attempt: int
    name: str
    state: OrderState
    files: int
    intended_at: int
    url: str | None = None
    ordered_at: int | None = None
    saved_at: int | None = None
    delivered_at: int | None = None
    pdf: str | None = None
    sha256: str | None = None
    bytes: int | None = None
    references_found: int | None = None
    error: str | None = None


class ShareRecord(Struct, frozen=True):
    """One share link. `request` is the hash of all parameters of the request, `file_ids` a list in JSON."""

    request: str
    reference: str
    customer_reference: str | None
    state: ShareState
    created_at: int
    expires_at: int | None
    send_email: bool
    email: str | None = None
    dl: str | None = None
    language: str | None = None
    lang: str | None = None
    timezone: str | None = None
    username: str | None = None
    share_url: str | None = None
    error: str | None = None
    file_ids: str | None = None


_FIND_SHARE: Final = (
    "SELECT share FROM share WHERE request = ? AND (state = 'unknown'"
    " OR state = 'created' AND (expires_at IS NULL OR expires_at > ?)) ORDER BY share DESC LIMIT 1"
)


@contextmanager
def open_request_log(layout: LakeLayout) -> Iterator[RequestLog]:
    """Open the request log of a lake, also while a run holds the lake's lock."""
    refuse_foreign_entries(layout)
    with closing(Ledger(layout.ledger)) as ledger:
        yield RequestLog(ledger)


class RequestLog:
    """Jobs, orders and shares. Each method is one transaction, durable when it returns."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger

    # Jobs

    def job(self, job: str) -> ReportJob | None:
        """Return the job; None if this ledger has no such job."""
        return next(iter(self.ledger.select(ReportJob, "report_job WHERE job = ?", (job,))), None)

    def create(self, job: ReportJob, files: Sequence[ReportJobFile], batches: Sequence[ReportBatch]) -> None:
        """Record a job with its files and batches."""
        with self.ledger.transaction() as db:
            insert(db, "report_job", asdict(job))
            _insert_batches(db, job.job, batches)
            columns = list(ReportJobFile.__struct_fields__)
            batch_of: dict[int | None, int] = {file_id: one.batch for one in batches for file_id in one.files}
            rows = (replace(file, batch=batch_of.get(file.file_id)) for file in files)
            insert_all(db, "report_file", ("job", *columns), [(job.job, *astuple(row)) for row in rows])

    def delete_job(self, job: str) -> None:
        """Delete a job without an accepted order."""
        with self.ledger.transaction() as db:
            for table in ("report_order", "report_file", "report_batch", "report_job"):
                db.execute(f"DELETE FROM {table} WHERE job = ?", (job,))

    def set_folder(self, job: str, folder: str) -> None:
        """Record the new folder of a job."""
        with self.ledger.transaction() as db:
            db.execute("UPDATE report_job SET folder = ? WHERE job = ?", (folder, job))

    def files(self, job: str) -> list[ReportJobFile]:
        """Return the selected files, in their order."""
        return self.ledger.select(ReportJobFile, "report_file WHERE job = ? ORDER BY position", (job,))

    def batches(self, job: str) -> list[ReportBatch]:
        """Return the batches by label, also those that their files have left."""
        ids: dict[int, list[int]] = {}
        for file in self.files(job):
            if file.batch is not None and file.file_id is not None:
                ids.setdefault(file.batch, []).append(file.file_id)
        sql = "SELECT batch, label, group_name FROM report_batch WHERE job = ? ORDER BY label"
        return [
            ReportBatch(number, label, group_name, tuple(ids.get(number, ())))
            for number, label, group_name in self.ledger.query(sql, (job,))
        ]

    # Orders

    def orders(self, job: str) -> list[ReportOrderRecord]:
        """Return the orders of a job, by batch and attempt."""
        return self.ledger.select(ReportOrderRecord, "report_order WHERE job = ? ORDER BY batch, attempt", (job,))

    def record_order(
        self, job: str, batch: ReportBatch, at: int, confirmed: Mapping[int, FileConfirmation]
    ) -> ReportOrderRecord:
        """Record an order before it is sent, with the confirmation of its files."""
        with self.ledger.transaction() as db:
            sql = "SELECT coalesce(max(attempt), 0) + 1 FROM report_order WHERE job = ? AND batch = ?"
            attempt = int(db.execute(sql, (job, batch.batch)).fetchone()[0])
            name = f"report-{batch.label}-{job}-{attempt}"
            order = ReportOrderRecord(batch.batch, attempt, name, OrderState.PENDING, len(batch.files), at)
            insert(db, "report_order", {"job": job, **asdict(order)})
            db.executemany(
                "UPDATE report_file SET confirmed_before_at = ?, confirmed_before_by = ?, updated_before = ?,"
                " confirmed_after_at = NULL, updated_after = NULL, on_pages = NULL"
                " WHERE job = ? AND batch = ? AND file_id = ?",
                [
                    (before.at, before.call, before.updated_at, job, batch.batch, file_id)
                    for file_id, before in ((file_id, confirmed[file_id]) for file_id in batch.files)
                ],
            )
        return order

    def deliver(
        self,
        job: str,
        order: ReportOrderRecord,
        at: int,
        confirmed: Mapping[int, FileConfirmation],
        on_pages: Mapping[int, bool | None],
    ) -> ReportOrderRecord:
        """Record that every file of a saved PDF was confirmed a second time."""
        changed = replace(order, state=OrderState.DELIVERED, delivered_at=at, error=None)
        with self.ledger.transaction() as db:
            db.executemany(
                "UPDATE report_file SET confirmed_after_at = ?, updated_after = ?, on_pages = ?"
                " WHERE job = ? AND batch = ? AND file_id = ?",
                [
                    (after.at, after.updated_at, on_pages.get(file_id), job, order.batch, file_id)
                    for file_id, after in confirmed.items()
                ],
            )
            _update_order(db, job, changed, ("state", "delivered_at", "references_found", "error"))
        return changed

    def exclude_files(
        self, job: str, batch: int, reasons: Mapping[int, str], at: int, replaced: ReportOrderRecord | None = None
    ) -> None:
        """Take files out of their batch, each with its reason, and record the order whose PDF does not count."""
        with self.ledger.transaction() as db:
            db.executemany(
                "UPDATE report_file SET batch = NULL, reason = ?, excluded_at = ?, confirmed_after_at = NULL"
                " WHERE job = ? AND batch = ? AND file_id = ?",
                [(reason, at, job, batch, file_id) for file_id, reason in reasons.items()],
            )
            if replaced is not None:
                _update_order(db, job, replaced, ("state", "error", "references_found"))
            db.execute(
                "DELETE FROM report_batch AS b WHERE job = ? AND batch = ? AND NOT EXISTS (SELECT *"
                " FROM report_file AS f WHERE f.job = b.job AND f.batch = b.batch) AND NOT EXISTS (SELECT *"
                " FROM report_order AS o WHERE o.job = b.job AND o.batch = b.batch)",
                (job, batch),
            )

    def put_back_files(self, job: str, batches: Sequence[ReportBatch]) -> None:
        """Put excluded files into new batches: their order is tried again."""
        with self.ledger.transaction() as db:
            _insert_batches(db, job, batches)
            db.executemany(
                "UPDATE report_file SET batch = ?, reason = NULL, excluded_at = NULL"
                " WHERE job = ? AND batch IS NULL AND file_id = ?",
                [(batch.batch, job, file_id) for batch in batches for file_id in batch.files],
            )

    def update(self, job: str, order: ReportOrderRecord, **changes: Any) -> ReportOrderRecord:
        """Record changes of an order and return it."""
        changed = replace(order, **changes)
        with self.ledger.transaction() as db:
            _update_order(db, job, changed, tuple(changes))
        return changed

    # Shares

    def has_share(self, request: str, *, now: int) -> bool:
        """Return whether an identical share is valid or has an unknown outcome."""
        return bool(self.ledger.query(_FIND_SHARE, (request, now)))

    def begin_share(self, record: ShareRecord, *, now: int, renew: bool) -> tuple[int, ShareRecord | None]:
        """Record a share before it is requested, unless an identical one exists; return number and existing record.

        A valid share exists, and so does one with an unknown outcome: a second request could create it twice.
        `renew` records a new one in any case.
        """
        with self.ledger.transaction() as db:
            row = db.execute(_FIND_SHARE, (record.request, now)).fetchone()
            if row is not None and not renew:
                return int(row["share"]), self.ledger.select(ShareRecord, "share WHERE share = ?", tuple(row))[0]
            insert(db, "share", asdict(record))
            return int(db.execute("SELECT last_insert_rowid()").fetchone()[0]), None

    def finish_share(self, number: int, state: ShareState, *, url: str | None = None, error: str | None = None) -> None:
        """Record the outcome of a share."""
        sql = "UPDATE share SET state = ?, share_url = ?, error = ? WHERE share = ?"
        with self.ledger.transaction() as db:
            db.execute(sql, (state, url, error, number))

    def delete_share(self, number: int) -> None:
        """Delete a share that was not requested."""
        with self.ledger.transaction() as db:
            db.execute("DELETE FROM share WHERE share = ? AND state = 'pending'", (number,))

    def mark_pending_shares_unknown(self) -> int:
        """Mark pending shares of a killed run: the service may have created them. Return their number."""
        with self.ledger.transaction() as db:
            return db.execute(
                "UPDATE share SET state = 'unknown', error = 'the run was killed before the response'"
                " WHERE state = 'pending'"
            ).rowcount


def _insert_batches(db: sqlite3.Connection, job: str, batches: Sequence[ReportBatch]) -> None:
    rows = [(job, batch.batch, batch.label, batch.group_name) for batch in batches]
    insert_all(db, "report_batch", ("job", "batch", "label", "group_name"), rows)


def _update_order(db: sqlite3.Connection, job: str, order: ReportOrderRecord, columns: Sequence[str]) -> None:
    assignments = ", ".join(f"{name} = :{name}" for name in columns)
    db.execute(
        f"UPDATE report_order SET {assignments} WHERE job = :job AND batch = :batch AND attempt = :attempt",
        {"job": job, **asdict(order)},
    )
