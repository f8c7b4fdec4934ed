"""Values of report jobs: options, status by file and order, and the content of manifest.json."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict

from pipeline.lake.request_log import OrderState
from schemas.requests import MAX_REPORT_FILES, ReportSettings

if TYPE_CHECKING:
    from pipeline.lake.request_log import ReportJob, ReportJobFile, ReportOrderRecord


@dataclass(frozen=True, slots=True)
class JobOptions:
    """Options that determine the content of the PDFs and of the index page, fixed for the lifetime of a job."""

    service: str
    selection: dict[str, Any]
    name: str
    template: int | None = None
    locale: str | None = None
    format: str | None = None
    timezone: str | None = None
    datetime_format: str | None = None
    title: str | None = None
    purpose: str | None = None
    requested_by: str | None = None
    with_images: bool = False

    @property
    def max_batch_files(self) -> int:
        """How many files a PDF has at most."""
        return 1 if self.selection.get("per_file") else MAX_REPORT_FILES

    def to_json(self) -> str:
        """Return the options as the ledger stores them: equal options give equal texts."""
        options = asdict(self)
        if not self.with_images:  # jobs of earlier versions have no such option, and can be resumed
            del options["with_images"]
        return json.dumps(options, sort_keys=True)

    def report_settings(self) -> ReportSettings:
        """Return the `settings` of an order."""
        names = ("locale", "format", "timezone", "datetime_format")
        return ReportSettings.model_validate({name: getattr(self, name) for name in names})


@dataclass(frozen=True, slots=True)
class FileOutcome:
    """Outcome of a selected file: without `reason` the file is in the PDF of `order`."""

    file: ReportJobFile
    order: ReportOrderRecord | None
    reason: str | None


@dataclass(frozen=True, slots=True)
class JobStatus:
    """Status of a job by file and order. `pdfs` are the orders whose PDF is in the folder, by name."""

    job: ReportJob
    files: tuple[FileOutcome, ...]
    orders: tuple[ReportOrderRecord, ...]
    pdfs: tuple[ReportOrderRecord, ...]

    @property
    def failed(self) -> list[FileOutcome]:
        """The files that are in no PDF."""
        return [outcome for outcome in self.files if outcome.reason is not None]

    @property
    def unknown_orders(self) -> list[ReportOrderRecord]:
        """The orders whose response was lost: the service may have made these reports in addition."""
        return [order for order in self.orders if order.state is OrderState.UNKNOWN]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True)


class ManifestFile(_Model):
    """A selected file: in a PDF, or failed with a reason. The fields are the columns of manifest.csv.

    The service had the file at both instants of confirmation. `on_pages`: the PDF shows its reference or id; None if
    the PDF was not read or its pages do not show references.
    """

    file_id: int | None
    reference: str | None
    group: str | None
    state: Literal["delivered", "failed"]
    pdf: str | None
    sha256: str | None
    bytes: int | None
    ordered_at: str | None
    delivered_at: str | None
    confirmed_before_at: str | None
    confirmed_after_at: str | None
    on_pages: bool | None
    reason: str | None


class ManifestPdf(_Model):
    """A PDF of the folder. `pages` describes what was found on its pages, `references_found` counts its files there."""

    pdf: str
    sha256: str
    bytes: int
    files: int
    pages_read: bool
    references_found: int | None
    pages: str


class ManifestOrder(_Model):
    """An order of the job."""

    batch: int
    attempt: int
    name: str
    state: OrderState
    files: int
    ordered_at: str | None
    delivered_at: str | None
    error: str | None


class ManifestDeletions(_Model):
    """The deletions that the lake had detected when the files were selected."""

    known_up_to: str | None
    deleted_files_in_lake: int | None
    selected: tuple[int, ...]


class ManifestImages(_Model):
    """The images of a job's files in its subfolder. `missing` counts those that are not there, by state.

    Uploads without a link have no image, so they are in the folder's manifest.csv, but not counted as missing.
    """

    folder: str
    exported: int
    bytes: int
    missing: dict[str, int]


class ManifestCounts(_Model):
    """The totals of a manifest."""

    files: int
    delivered: int
    failed: int
    pdfs: int
    orders: int
    unknown_orders: int


class Manifest(_Model):
    """The content of manifest.json: the whole job, without the URLs of its reports, which are secrets."""

    format: Literal[1] = 1
    job: str
    scanlake: str
    service: str
    begun_at: str
    written_at: str
    signed: bool = False
    title: str | None = None
    purpose: str | None = None
    requested_by: str | None = None
    selection: dict[str, Any]
    settings: dict[str, Any]
    snapshot: int | None
    watermark: str | None
    deletions: ManifestDeletions
    counts: ManifestCounts
    pdfs: tuple[ManifestPdf, ...]
    orders: tuple[ManifestOrder, ...]
    files: tuple[ManifestFile, ...]
    images: ManifestImages | None = None

    def to_json(self) -> str:
        """Return the content of manifest.json. A job without images has no key for them."""
        return self.model_dump_json(indent=1, exclude={"images"} if self.images is None else None) + "\n"
