"""Values of report jobs: their options, and the content of manifest.json."""

from __future__ import annotations

import json
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import asdict
from pydantic import BaseModel, ConfigDict

from schemas.requests import MAX_REPORT_FILES, ReportSettings


class JobOptions(Struct, frozen=True):
    """Options that determine the content of the PDFs and of the index page, fixed for the lifetime of a job."""

    service: str
    selection: dict[str, Any]
    template: int | None = None
    locale: str | None = None
    timezone: str | None = None
    datetime_format: str | None = None
    title: str | None = None
    purpose: str | None = None
    requested_by: str | None = None

    @property
    def max_batch_files(self) -> int:
        """How many files a PDF has at most."""
        return 1 if self.selection.get("per_file") else MAX_REPORT_FILES

    def to_json(self) -> str:
        """Return the options as the ledger stores them: equal options give equal texts."""
        return json.dumps(asdict(self), sort_keys=True)

    def report_settings(self) -> ReportSettings:
        """Return the `settings` of an order."""
        names = ("locale", "timezone", "datetime_format")
        return ReportSettings.model_validate({name: getattr(self, name) for name in names})


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True)


class ManifestFile(_Model):
    """A selected file: in a PDF, or failed with a reason. The fields are the columns of manifest.csv.

    The service had the file at both instants of confirmation. `on_pages`: the PDF shows its reference or id; None if
    the PDF was not read or its pages do not show references. `changed_since_selection`: a confirmation had a later
    update time than the lake, so the file may not meet the condition of the selection any more.
    """

    file_id: int | None
    reference: str | None
    group: str | None
    state: Literal["delivered", "failed"]
    pdf: str | None = None
    sha256: str | None = None
    bytes: int | None = None
    ordered_at: str | None = None
    delivered_at: str | None = None
    confirmed_before_at: str | None = None
    confirmed_after_at: str | None = None
    on_pages: bool | None = None
    changed_since_selection: bool = False
    reason: str | None = None


class ManifestPdf(_Model):
    """A PDF of the folder. `pages` describes what was found on its pages, `references_found` counts its files there."""

    pdf: str
    sha256: str
    bytes: int
    files: int
    references_found: int | None
    pages: str


class ManifestOrder(_Model):
    """An order of the job, without its URL, which is a secret."""

    batch: int
    attempt: int
    name: str
    state: str
    files: int
    ordered_at: str | None
    delivered_at: str | None
    error: str | None


class ManifestCounts(_Model):
    """The totals of a manifest."""

    files: int
    delivered: int
    changed_since_selection: int
    failed: int
    pdfs: int
    orders: int
    unknown_orders: int


class CatalogState(_Model):
    """State of the catalog that the files were selected from. Instants are ISO 8601, UTC.

    `deletions_known_at` is the time of the last verify but those that only reported differences.
    """

    snapshot: int | None
    watermark: str | None
    deletions_known_at: str | None


class Manifest(_Model):
    """The content of manifest.json: the whole job. `signed`: a signature belongs to the folder.

    Times are by the machine's clock; `clock_seconds_ahead`: how far the service's was ahead of it in the last run. The
    watermark and `deletions_known_at` are by the service's clock.
    """

    format: Literal[1] = 1
    job: str
    scanlake: str
    service: str
    begun_at: str
    written_at: str
    clock_seconds_ahead: float | None = None
    signed: bool = False
    title: str | None = None
    purpose: str | None = None
    requested_by: str | None = None
    selection: dict[str, Any]
    settings: dict[str, Any]
    snapshot: int | None
    watermark: str | None
    deletions_known_at: str | None
    counts: ManifestCounts
    pdfs: tuple[ManifestPdf, ...]
    orders: tuple[ManifestOrder, ...]
    files: tuple[ManifestFile, ...]

    @property
    def failed(self) -> list[ManifestFile]:
        """The files that are in no PDF."""
        return [file for file in self.files if file.state == "failed"]

    @property
    def changed(self) -> list[ManifestFile]:
        """The delivered files that are newer in the service than the selection saw them."""
        return [file for file in self.files if file.changed_since_selection]

    @property
    def unknown_orders(self) -> list[ManifestOrder]:
        """The orders whose response was lost: the service may have made these reports in addition."""
        return [order for order in self.orders if order.state == "unknown"]
