"""A report job: a folder with a fixed selection and fixed options. The same command begins and resumes it."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import structlog

from pipeline.errors import LakeLockedError, ScanlakeError, SettingsError
from pipeline.lake.catalog_options import CatalogOptions
from pipeline.lake.lake import Lake
from pipeline.lake.request_log import JobState, OrderState, ReportJob
from pipeline.reports.batches import make_batches
from pipeline.reports.delivery import ReportRun
from pipeline.reports.folder import open_job_folder
from pipeline.reports.folder_check import verify_folder
from pipeline.reports.image_folder import IMAGES_NAME, refuse_linked_images
from pipeline.reports.manifest import SIGNATURE_NAME, SUMS_NAME, remove_sums, write_manifest
from pipeline.reports.models import FileOutcome, JobStatus
from pipeline.reports.run_state import ReportRunState
from schemas.timestamps import new_run_id, now_us

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from pipeline.client.client import Client
    from pipeline.lake.request_log import ReportOrderRecord, RequestLog
    from pipeline.progress import Progress
    from pipeline.reports.folder import JobFolder
    from pipeline.reports.models import JobOptions, ManifestImages
    from pipeline.reports.run_state import RunOptions
    from pipeline.reports.selection import CatalogState, SelectedFile
    from pipeline.settings import Settings

    FileSelector = Callable[[], tuple[Sequence[SelectedFile], CatalogState]]
    ImageExporter = Callable[[Path, Sequence[int]], ManifestImages]

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class JobRequest:
    """Input of a run. `select_files` is called once, when a job begins.

    `export_images` writes the images of files, given by id, to a subfolder; None for a job without images.
    """

    settings: Settings
    folder: Path
    options: JobOptions
    run_options: RunOptions
    select_files: FileSelector
    sign: Callable[[bytes], bytes] | None = None
    progress: Progress | None = None
    export_images: ImageExporter | None = None


@dataclass(frozen=True, slots=True)
class JobResult:
    """Result of a run. `had_protocol_errors` if a report's URL must not be requested.

    `was_complete`: the job was finished and its folder unchanged, so the run called no service and wrote no manifest.
    """

    status: JobStatus
    resumed: bool
    had_protocol_errors: bool
    was_complete: bool = False
    images: ManifestImages | None = None

    @property
    def is_complete(self) -> bool:
        """Every file is in a PDF, and no image of a job with images is missing."""
        return not self.status.failed and (self.images is None or not self.images.missing)


async def run_job(client: Client, request_log: RequestLog, request: JobRequest) -> JobResult:
    """Begin or resume the folder's job, download every report that is ready in time, and write the manifest.

    Raises the errors of `open_job_folder`, `open_job` and `ReportRun.run`; PDFs that were delivered stay.
    """
    with open_job_folder(request.folder, new_run_id()) as folder:
        try:
            job, resumed = await asyncio.to_thread(open_job, folder, request_log, request.options, request.select_files)
        except ScanlakeError:
            folder.remove_if_new()
            raise
        if resumed:
            finished = await asyncio.to_thread(_find_finished, folder, request_log, job, request.sign)
            if finished is not None:
                status, images = finished
                return JobResult(status, resumed=True, had_protocol_errors=False, was_complete=True, images=images)
        run = ReportRun(
            ReportRunState(client, request_log, folder, job, request.options, request.run_options, request.progress)
        )
        try:
            async with client:
                await run.run()
        except BaseException:
            with suppress(ScanlakeError):  # the error that stopped the run is more important
                _close_job(request_log, job, request.settings)
            raise
        status = _close_job(request_log, job, request.settings)
        images = await asyncio.to_thread(_export_images, folder, status, request.export_images)
        write_manifest(folder, status, request.sign, images)
    return JobResult(status, resumed, had_protocol_errors=bool(run.protocol_errors), images=images)


def _export_images(folder: JobFolder, status: JobStatus, export: ImageExporter | None) -> ManifestImages | None:
    """Write the images of all selected files, also of those without a PDF: each image is evidence of its own."""
    if export is None:
        return None
    refuse_linked_images(folder.path)
    remove_sums(folder)
    ids = [outcome.file.file_id for outcome in status.files if outcome.file.file_id is not None]
    return export(folder.path / IMAGES_NAME, ids)


def _find_finished(
    folder: JobFolder, request_log: RequestLog, job: ReportJob, sign: Callable[[bytes], bytes] | None
) -> tuple[JobStatus, ManifestImages | None] | None:
    """Return the status and images of a job with nothing left to do; an unsigned folder is signed, if `sign` is given.

    Raises `SettingsError` if the run would change a signed folder without signing it again.
    """
    status, names = read_job_status(request_log, job), folder.list_files()
    if SUMS_NAME in names and not status.failed:
        check = verify_folder(folder.path)
        is_complete = check.images is None or not check.images.missing
        if check.job == job.job and is_complete and not check.problems:
            if sign is not None and not check.signed:
                folder.write(SIGNATURE_NAME, sign((folder.path / SUMS_NAME).read_bytes()))
            return status, check.images
    if SIGNATURE_NAME in names and sign is None:
        raise SettingsError(
            f"--out {folder.path} is signed, and this run would change it.",
            hint="Add --sign KEY to complete the job and sign it again, or use a new folder.",
        )
    return None


def open_job(
    folder: JobFolder, request_log: RequestLog, options: JobOptions, select_files: FileSelector
) -> tuple[ReportJob, bool]:
    """Return the folder's job and whether it already existed. A new job selects its files now.

    Raises `SettingsError` if the folder's job has other options or belongs to another lake.
    """
    path = str(folder.path)
    job = request_log.job(folder.job)
    if job is not None:
        _check_same_options(json.loads(job.options), json.loads(options.to_json()))
        if job.folder != path:
            request_log.set_folder(job.job, path)
        return job, True
    if folder.list_files():
        raise SettingsError(f"--out {path} belongs to a job of another lake.", hint="Use that lake or a new folder.")
    selected, catalog_state = select_files()
    files, batches = make_batches(selected, options.max_batch_files)
    if not batches:
        raise SettingsError(
            "None of the selected files can be ordered.", hint="Correct the selection or run `scanlake sync` first."
        )
    context = asdict(catalog_state) | {"selected_deleted_files": [file.file_id for file in selected if file.is_deleted]}
    job = ReportJob(folder.job, path, options.to_json(), json.dumps(context), now_us())
    request_log.create(job, files, batches)
    return job, False


def _check_same_options(stored: dict[str, Any], requested: dict[str, Any]) -> None:
    differing = [name for name in {**requested, **stored} if stored.get(name) != requested.get(name)]
    if differing:
        raise SettingsError(
            f"--out belongs to a job with another {' and another '.join(differing)}.",
            hint="Resume the job with its own command, or use a new folder.",
        )


def _close_job(request_log: RequestLog, job: ReportJob, settings: Settings) -> JobStatus:
    status = read_job_status(request_log, job)
    request_log.finish_job(job.job, JobState.INCOMPLETE if status.failed else JobState.DONE, now_us())
    publish_if_unlocked(settings, "report")
    return status


def read_job_status(request_log: RequestLog, job: ReportJob) -> JobStatus:
    """Return the status of a job from the ledger."""
    orders = request_log.orders(job.job)
    last_orders = {order.batch: order for order in orders}  # orders are sorted by attempt, and the last one counts
    outcomes = []
    for file in request_log.files(job.job):
        order = None if file.batch is None else last_orders.get(file.batch)
        outcomes.append(FileOutcome(file, order, file.reason or _failure_reason(order)))
    pdfs = [order for order in last_orders.values() if order.state is OrderState.DELIVERED]
    pdfs.sort(key=lambda order: order.pdf or "")
    return JobStatus(job, tuple(outcomes), tuple(orders), tuple(pdfs))


def _failure_reason(order: ReportOrderRecord | None) -> str | None:
    if order is None:
        return "not ordered yet"
    if order.state is OrderState.SAVED:
        return order.error or "its PDF is saved, but its files are not confirmed a second time yet"
    return None if order.state is OrderState.DELIVERED else order.error or order.state


def publish_if_unlocked(settings: Settings, command: str) -> None:
    """Publish meta.reports, meta.report_files and meta.shares, unless another run holds the lake.

    The publish of the other run includes them, so nothing waits for its lock.
    """
    try:
        with Lake(
            settings.lake,
            doing=command,
            reader_root=settings.reader_root,
            must_exist=True,
            options=CatalogOptions.from_settings(settings),
        ) as lake:
            lake.republish_records(at=now_us())
    except LakeLockedError as error:
        _log.warning("publish.skipped", reason=error.message, hint="the next publish of a run includes the changes")
