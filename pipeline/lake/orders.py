"""Report orders and shares in the ledger: what was asked of the service that must not be asked twice.

Written in short transactions of their own, without the lake's lock: a job may run for hours, and syncs commit
meanwhile. Instants are microseconds UTC.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

from pipeline.lake.ledger import Ledger
from pipeline.lake.statements import insert

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterator, Sequence

    from pipeline.lake.files import Layout

    Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A job: its folder, and what it was frozen with. `terms` and `context` are JSON."""

    job: str
    folder: str
    terms: str
    context: str
    created_at: int
    ended_at: int | None = None
    state: str = "open"  # open, done, or incomplete: ended with failures


@dataclass(frozen=True, slots=True)
class JobFile:
    """A selected file. One without a batch is not ordered, for the `reason` given."""

    place: int
    file_id: int | None
    reference: str | None
    group_name: str | None
    batch: int | None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Batch:
    """The files of one PDF. `split`: it was refused, and two smaller ones stand for it."""

    batch: int
    label: str
    group_name: str | None
    split: bool
    files: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Order:
    """One order of a batch.

    `state`: intended (not known to have been sent), ordered, landing (on disk, about to get its name),
    delivered; ambiguous (its answer never came), unsent, refused, expired (did not appear in time), failed.
    """

    batch: int
    attempt: int
    name: str
    state: str
    files: int
    intended_at: int
    url: str | None = None
    ordered_at: int | None = None
    delivered_at: int | None = None
    pdf: str | None = None
    sha256: str | None = None
    bytes: int | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class ShareRecord:
    """One share. `request` is the hash of all that was asked for; `state`: intended, created, failed, unknown."""

    request: str
    reference: str
    customer_reference: str | None
    state: str
    created_at: int
    expires_at: int | None
    send_email: bool
    recipient: str | None
    share_url: str | None = None
    error: str | None = None


@contextmanager
def order_book(layout: Layout) -> Iterator[OrderBook]:
    """The orders in a lake's ledger, beside whoever holds the lake."""
    ledger = Ledger(layout.ledger)
    try:
        yield OrderBook(ledger)
    finally:
        ledger.close()


class OrderBook:
    """Jobs, orders and shares. Every method is one transaction, durable when it returns."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def fact(self, name: str) -> Any:
        """A fact about the lake as a whole."""
        return self._ledger.fact(name)

    # Jobs

    def job(self, job: str) -> JobRecord | None:
        """The job, if this ledger knows it."""
        rows = self._ledger.query("SELECT * FROM report_job WHERE job = ?", (job,))
        return JobRecord(**dict(rows[0])) if rows else None

    def create(self, job: JobRecord, files: Sequence[JobFile], batches: Sequence[Batch]) -> None:
        """Freeze a job."""
        with self._ledger.transaction() as db:
            insert(db, "report_job", asdict(job))
            _insert_batches(db, job.job, batches)
            db.executemany(
                "INSERT INTO report_file VALUES (?, ?, ?, ?, ?, ?, ?)",
                [(job.job, f.place, f.file_id, f.reference, f.group_name, f.batch, f.reason) for f in files],
            )

    def end(self, job: str, state: str, at: int) -> None:
        """Record how a job stands."""
        with self._ledger.transaction() as db:
            db.execute("UPDATE report_job SET state = ?, ended_at = ? WHERE job = ?", (state, at, job))

    def forget(self, job: str) -> None:
        """Forget a job of which the service accepted nothing."""
        with self._ledger.transaction() as db:
            for table in ("report_order", "report_file", "report_batch", "report_job"):
                db.execute(f"DELETE FROM {table} WHERE job = ?", (job,))

    def move(self, job: str, folder: str) -> None:
        """The job's folder lies elsewhere now."""
        with self._ledger.transaction() as db:
            db.execute("UPDATE report_job SET folder = ? WHERE job = ?", (folder, job))

    def files(self, job: str) -> list[JobFile]:
        """The selected files, in their order."""
        rows = self._ledger.query(f"SELECT {_names(JobFile)} FROM report_file WHERE job = ? ORDER BY place", (job,))
        return [JobFile(**dict(row)) for row in rows]

    def batches(self, job: str) -> list[Batch]:
        """The batches, those that were split included, by label."""
        ids: dict[int, list[int]] = {}
        for file in self.files(job):
            if file.batch is not None and file.file_id is not None:
                ids.setdefault(file.batch, []).append(file.file_id)
        rows = self._ledger.query(
            "SELECT batch, label, group_name, split FROM report_batch WHERE job = ? ORDER BY label", (job,)
        )
        return [
            Batch(row["batch"], row["label"], row["group_name"], bool(row["split"]), tuple(ids.get(row["batch"], ())))
            for row in rows
        ]

    def split(self, job: str, batch: Batch) -> tuple[Batch, Batch]:
        """Let two halves stand for a batch that was refused."""
        middle = (len(batch.files) + 1) // 2
        with self._ledger.transaction() as db:
            top = int(db.execute("SELECT max(batch) FROM report_batch WHERE job = ?", (job,)).fetchone()[0])
            halves = (
                Batch(top + 1, f"{batch.label}a", batch.group_name, split=False, files=batch.files[:middle]),
                Batch(top + 2, f"{batch.label}b", batch.group_name, split=False, files=batch.files[middle:]),
            )
            db.execute("UPDATE report_batch SET split = 1 WHERE job = ? AND batch = ?", (job, batch.batch))
            _insert_batches(db, job, halves)
            for half in halves:
                db.executemany(
                    "UPDATE report_file SET batch = ? WHERE job = ? AND batch = ? AND file_id = ?",
                    [(half.batch, job, batch.batch, file_id) for file_id in half.files],
                )
        return halves

    # Orders

    def orders(self, job: str) -> list[Order]:
        """The orders of a job, by batch and attempt."""
        rows = self._ledger.query(
            f"SELECT {_names(Order)} FROM report_order WHERE job = ? ORDER BY batch, attempt", (job,)
        )
        return [Order(**dict(row)) for row in rows]

    def intend(self, job: str, batch: Batch, stem: str, at: int) -> Order:
        """Record that an order is about to be sent. `stem` names the batch; the name sent also job and attempt."""
        with self._ledger.transaction() as db:
            attempt = 1 + int(
                db.execute(
                    "SELECT coalesce(max(attempt), 0) FROM report_order WHERE job = ? AND batch = ?", (job, batch.batch)
                ).fetchone()[0]
            )
            name = f"{stem}-{job}-{attempt}"
            order = Order(batch.batch, attempt, name, "intended", len(batch.files), at)
            insert(db, "report_order", {"job": job, **asdict(order)})
        return order

    def update(self, job: str, order: Order, **changes: Any) -> Order:
        """Record how an order stands; returns it as it is now."""
        changed = replace(order, **changes)
        assignments = ", ".join(f"{name} = :{name}" for name in changes)
        with self._ledger.transaction() as db:
            db.execute(
                f"UPDATE report_order SET {assignments} WHERE job = :job AND batch = :batch AND attempt = :attempt",
                {"job": job, **asdict(changed)},
            )
        return changed

    def seconds_a_report(self) -> float | None:
        """How long reports took from order to delivery, as earlier jobs had it; None when there was none."""
        rows = self._ledger.query(
            "SELECT avg(delivered_at - ordered_at) / 1e6 AS seconds FROM (SELECT delivered_at, ordered_at"
            " FROM report_order WHERE state = 'delivered' ORDER BY delivered_at DESC LIMIT 100)"
        )
        found = rows[0]["seconds"]
        return None if found is None else float(found)

    # Shares

    def share(self, record: ShareRecord, *, now: int, renew: bool) -> tuple[int, ShareRecord | None]:
        """Record that a share is about to be asked for, unless an identical one stands; that one is returned then.

        One stands that is valid still, or whose outcome is unknown: asking again could make it twice. `renew`
        asks all the same. Returns the number of the record, new or found.
        """
        with self._ledger.transaction() as db:
            found = db.execute(
                f"SELECT share, {_names(ShareRecord)} FROM share WHERE request = ? AND (state = 'unknown'"
                " OR state = 'created' AND (expires_at IS NULL OR expires_at > ?)) ORDER BY share DESC LIMIT 1",
                (record.request, now),
            ).fetchone()
            if found is not None and not renew:
                known = dict(found)
                number = int(known.pop("share"))
                return number, ShareRecord(**{**known, "send_email": bool(known["send_email"])})
            insert(db, "share", asdict(record))
            return int(db.execute("SELECT last_insert_rowid()").fetchone()[0]), None

    def settle_share(self, number: int, state: str, *, url: str | None = None, error: str | None = None) -> None:
        """Record what became of a share."""
        with self._ledger.transaction() as db:
            db.execute(
                "UPDATE share SET state = ?, share_url = ?, error = ? WHERE share = ?", (state, url, error, number)
            )

    def forget_share(self, number: int) -> None:
        """The share was never sent."""
        with self._ledger.transaction() as db:
            db.execute("DELETE FROM share WHERE share = ? AND state = 'intended'", (number,))

    def abandon_shares(self) -> int:
        """What a killed run was about to ask may have reached the service. Returns how many there were."""
        with self._ledger.transaction() as db:
            return db.execute(
                "UPDATE share SET state = 'unknown', error = 'the run was killed before the answer came'"
                " WHERE state = 'intended'"
            ).rowcount


def _insert_batches(db: sqlite3.Connection, job: str, batches: Sequence[Batch]) -> None:
    db.executemany(
        "INSERT INTO report_batch (job, batch, label, group_name) VALUES (?, ?, ?, ?)",
        [(job, each.batch, each.label, each.group_name) for each in batches],
    )


def _names(kind: Any) -> str:
    return ", ".join(field.name for field in fields(kind))
