"""A job: a folder, and the ids and settings it was frozen with. Begun once, resumed by the same command."""

from __future__ import annotations

import json
import secrets
import time
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pipeline.errors import SettingsError
from pipeline.exports.batches import cut
from pipeline.lake.orders import JobRecord
from schemas.requests import ReportSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pipeline.exports.folder import Folder
    from pipeline.exports.selection import Chosen
    from pipeline.lake.orders import Batch, JobFile, Order, OrderBook


@dataclass(frozen=True, slots=True)
class Terms:
    """What decides what is in the PDFs: it cannot change while a job lives."""

    service: str
    selection: dict[str, Any]
    name: str
    template: int | None = None
    locale: str | None = None
    format: str | None = None
    timezone: str | None = None
    datetime_format: str | None = None

    def as_json(self) -> str:
        """The terms as the ledger keeps them: equal texts, equal terms."""
        return json.dumps(asdict(self), sort_keys=True)

    def report_settings(self) -> ReportSettings:
        """The `settings` of an order."""
        return ReportSettings.model_validate(
            {
                "locale": self.locale,
                "format": self.format,
                "timezone": self.timezone,
                "datetime_format": self.datetime_format,
            }
        )


@dataclass(frozen=True, slots=True)
class FileOutcome:
    """What became of a selected file: in a PDF, or why not."""

    file: JobFile
    order: Order | None
    reason: str | None

    @property
    def pdf(self) -> str | None:
        """The PDF it was delivered in."""
        return self.order.pdf if self.order is not None and self.reason is None else None


@dataclass(frozen=True, slots=True)
class Standing:
    """How a job stands, file by file and order by order."""

    record: JobRecord
    files: tuple[FileOutcome, ...]
    orders: tuple[Order, ...]
    batches: tuple[Batch, ...]
    pdfs: tuple[Order, ...] = field(default=())

    @property
    def failed(self) -> list[FileOutcome]:
        """The files that are in no PDF."""
        return [each for each in self.files if each.reason is not None]

    @property
    def ambiguous(self) -> list[Order]:
        """Orders whose answer never came: the service may have made these reports besides those delivered."""
        return [order for order in self.orders if order.state == "ambiguous"]


def new_job() -> str:
    """The name of a job. Sorts by time, never repeats."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}"


def now_us() -> int:
    """This machine's clock, microseconds since 1970 UTC."""
    return time.time_ns() // 1_000


def begin_or_resume(
    folder: Folder,
    book: OrderBook,
    terms: Terms,
    choose: Callable[[], tuple[Sequence[Chosen], dict[str, Any]]],
) -> tuple[JobRecord, bool]:
    """The folder's job, and whether it was begun before. `choose` is asked for the files of a new one.

    Raises `SettingsError` when the folder's job has other terms, or is not of this lake.
    """
    known = book.job(folder.job)
    if known is not None:
        _same_terms(json.loads(known.terms), json.loads(terms.as_json()))
        if known.folder != str(folder.path.resolve()):
            book.move(known.job, str(folder.path.resolve()))
        return known, True
    if folder.names():
        raise SettingsError(
            f"--out {folder.path} holds a job of another lake.", remedy="Name the lake it belongs to, or a new folder."
        )
    chosen, context = choose()
    files, batches = cut(chosen)
    if not batches:
        raise SettingsError(
            "None of the selected files can be ordered.", remedy="Mend the selection, or run `scanlake sync` first."
        )
    record = JobRecord(folder.job, str(folder.path.resolve()), terms.as_json(), json.dumps(context), now_us())
    book.create(record, files, batches)
    return record, False


def _same_terms(frozen: dict[str, Any], wanted: dict[str, Any]) -> None:
    differing = [name for name in wanted if frozen.get(name) != wanted[name]]
    if differing:
        raise SettingsError(
            f"--out holds a job that was begun with another {' and another '.join(differing)}.",
            remedy="Give the same command again to resume it, or name a new folder.",
        )


def stand(book: OrderBook, record: JobRecord) -> Standing:
    """How a job stands."""
    orders = book.orders(record.job)
    batches = book.batches(record.job)
    # A batch's last order says how it stands; attempts come in order.
    last = {order.batch: order for order in orders}
    outcomes = []
    for file in book.files(record.job):
        order = None if file.batch is None else last.get(file.batch)
        if file.reason is not None:
            reason: str | None = file.reason
        elif order is None:
            reason = "not ordered yet"
        elif order.state == "delivered":
            reason = None
        else:
            reason = order.error or order.state
        outcomes.append(FileOutcome(file, order, reason))
    pdfs = [order for order in last.values() if order.state == "delivered"]
    pdfs.sort(key=lambda order: order.pdf or "")
    return Standing(record, tuple(outcomes), tuple(orders), tuple(batches), tuple(pdfs))
