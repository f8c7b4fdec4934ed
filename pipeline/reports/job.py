"""A report job: a folder with a fixed selection and fixed options. The same command begins and resumes it."""

from __future__ import annotations

import asyncio
import json
from contextlib import closing, suppress
from typing import TYPE_CHECKING

from msgspec import Struct

from pipeline.errors import LakeLockedError, ScanlakeError, SettingsError
from pipeline.lake.lake import Lake
from pipeline.lake.request_log import JobState, ReportJob
from pipeline.logs import get_logger
from pipeline.progress import NullProgress
from pipeline.reports.batches import make_batches
from pipeline.reports.delivery import ReportRun
from pipeline.reports.folder import open_job_folder
from pipeline.reports.folder_check import check_report_folder, read_folder_manifest
from pipeline.reports.manifest import OWN_NAMES, SIGNATURE_NAME, SUMS_NAME, read_manifest, write_manifest
from pipeline.reports.pdf_reader import PdfReader
from pipeline.reports.run_state import ReportRunState
from schemas.timestamps import new_run_id, now_us

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from pipeline.client.client import Client
    from pipeline.lake.request_log import ReportJobFile, RequestLog
    from pipeline.progress import Progress
    from pipeline.reports.folder import JobFolder
    from pipeline.reports.models import CatalogState, JobOptions, Manifest
    from pipeline.reports.run_state import RunOptions
    from pipeline.settings import Settings

    FileSelector = Callable[[], tuple[Sequence[ReportJobFile], CatalogState]]
    Signer = Callable[[bytes], bytes]

_log = get_logger()


class JobResult(Struct, frozen=True):
    """Result of a run. `had_protocol_errors` if a report's URL must not be requested.

    `was_complete`: the job was finished and its folder unchanged, so the run called no service and wrote no manifest.
    """

    manifest: Manifest
    resumed: bool
    had_protocol_errors: bool = False
    was_complete: bool = False


async def run_job(
    client: Client,
    request_log: RequestLog,
    path: Path,
    options: JobOptions,
    run_options: RunOptions,
    *,
    select_files: FileSelector,
    publish: Callable[[], object],
    sign: Signer | None = None,
    progress: Progress | None = None,
) -> JobResult:
    """Begin or resume the folder's job, download every report that is ready in time, and write the manifest.

    `select_files` is called once, when a job begins; `publish` shows the job's state in the catalog.

    Raises the errors of `open_job_folder`, `open_job` and `ReportRun.run`; PDFs that were delivered stay.
    """
    # A run that must stop leaves the block, and no thread waits for a PDF any more.
    with open_job_folder(path, new_run_id()) as folder, closing(PdfReader()) as reader:
        folder.refuse_others(*OWN_NAMES)
        try:
            job, resumed = await asyncio.to_thread(open_job, folder, request_log, options, select_files)
        except ScanlakeError:
            folder.remove_if_new()
            raise
        if resumed:
            known = read_manifest(request_log, job)
            finished = await asyncio.to_thread(_find_finished, folder, reader, known, sign)
            if finished is not None:
                return JobResult(finished, resumed=True, was_complete=True)
        state = ReportRunState(client, request_log, folder, options, run_options, progress or NullProgress())
        run = ReportRun(state, reader)
        try:
            async with client:
                await run.run()
        except BaseException:
            with suppress(ScanlakeError):  # the error that stopped the run is more important
                _close_job(request_log, job, publish)
            raise
        manifest = _close_job(request_log, job, publish)
        manifest = manifest.model_copy(update={"signed": sign is not None})
        write_manifest(folder, manifest, sign)
    return JobResult(manifest, resumed, had_protocol_errors=bool(run.protocol_errors))


def _find_finished(folder: JobFolder, reader: PdfReader, known: Manifest, sign: Signer | None) -> Manifest | None:
    """Return the manifest of a folder with nothing left to do; an unsigned folder is signed, if `sign` is given.

    `known` is what the ledger has. Raises `SettingsError` if the run would change a signed folder without signing it
    again.
    """
    names = folder.list_files()
    if SUMS_NAME in names and not known.failed:
        check, manifest = check_report_folder(folder.path, reader), read_folder_manifest(folder.path)
        if manifest is not None and manifest.job == known.job and not manifest.failed and not check.most_severe:
            if sign is not None and SIGNATURE_NAME not in names:
                folder.write(SIGNATURE_NAME, sign((folder.path / SUMS_NAME).read_bytes()))
            return manifest
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
        stored, requested = json.loads(job.options), json.loads(options.to_json())
        differing = [name for name in {**requested, **stored} if stored.get(name) != requested.get(name)]
        if differing:
            raise SettingsError(
                f"--out belongs to a job with another {' and another '.join(differing)}.",
                hint="Resume the job with its own command, or use a new folder.",
            )
        if job.folder != path:
            request_log.set_folder(job.job, path)
        return job, True
    if folder.list_files():
        raise SettingsError(f"--out {path} belongs to a job of another lake.", hint="Use that lake or a new folder.")
    files, catalog_state = select_files()
    batches = make_batches(files, options.max_batch_files)
    if not batches:
        raise SettingsError(
            "None of the selected files can be ordered.", hint="Correct the selection or run `scanlake sync` first."
        )
    job = ReportJob(folder.job, path, options.to_json(), catalog_state.model_dump_json(), now_us())
    request_log.create(job, files, batches)
    return job, False


def _close_job(request_log: RequestLog, job: ReportJob, publish: Callable[[], object]) -> Manifest:
    manifest = read_manifest(request_log, job)
    request_log.finish_job(job.job, JobState.INCOMPLETE if manifest.failed else JobState.DONE, now_us())
    publish()
    return manifest


def publish_if_unlocked(settings: Settings, command: str) -> None:
    """Publish meta.reports, meta.report_files and meta.shares, unless another run holds the lake.

    The publish of the other run includes them, so nothing waits for its lock.
    """
    try:
        with Lake(settings.lake, doing=command, must_exist=True) as lake:
            lake.republish_records(at=now_us())
    except LakeLockedError as error:
        _log.warning("publish.skipped", reason=error.message, hint="the next publish of a run includes the changes")
