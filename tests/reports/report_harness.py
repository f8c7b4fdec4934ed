"""Run report jobs against the emulator, in this process."""

from __future__ import annotations

import asyncio
import json
import re
import sqlite3
import subprocess
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any

import pypdf

from pipeline.client.client import Client
from pipeline.client.options import ClientOptions
from pipeline.client.retry import TimeSource
from pipeline.lake.lake import Lake
from pipeline.lake.layout import LakeLayout
from pipeline.lake.reader import open_catalog
from pipeline.lake.request_log import open_request_log
from pipeline.reports.job import JobResult, publish_if_unlocked, run_job
from pipeline.reports.models import JobOptions
from pipeline.reports.run_state import RunOptions
from pipeline.reports.selection import Selection, select_files
from pipeline.settings import Settings
from tests.sync.sync_harness import SEED, synced

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from pipeline.emulator import Emulator
    from pipeline.lake.request_log import ReportJobFile
    from pipeline.reports.models import CatalogState

EVERY_FILE = Selection("where", sql="TRUE")
QUICK = RunOptions(timeout_seconds=15.0, max_poll_seconds=0.5)
__all__ = ["EVERY_FILE", "QUICK", "SEED", "JobResult", "RunOptions", "Selection"]


async def sync_lists(emulator: Emulator, lake: Path) -> None:
    """Sync every file of the emulator into a lake, without details: that is fast."""
    await synced(emulator, lake, fetch_details="never", includes=())


def make_empty_lake(lake: Path) -> None:
    """Make a lake without files: its ledger is enough for share links."""
    with Lake(lake, doing="the test"):
        pass


def quick_client(emulator: Emulator, **options: Any) -> Client:
    """Return a client whose back-off takes almost no time."""
    seams = TimeSource(sleep=lambda seconds: asyncio.sleep(min(seconds, 0.01)))
    chosen = ClientOptions(**{"max_attempts": 4, "attempt_timeout_seconds": 5.0, **options})
    return Client(emulator.base_url, emulator.token, options=chosen, time_source=seams)


async def run_report(
    emulator: Emulator,
    lake: Path,
    out: Path,
    selection: Selection = EVERY_FILE,
    *,
    run_options: RunOptions = QUICK,
    client: Client | None = None,
    sign: Callable[[bytes], bytes] | None = None,
    **options: Any,
) -> JobResult:
    """Run a job, as one run of the command does."""
    settings = Settings(base_url=emulator.base_url, lake=lake)

    def select() -> tuple[Sequence[ReportJobFile], CatalogState]:
        with open_catalog(settings) as db:
            return select_files(db, selection)

    job_options = JobOptions(**{"service": emulator.base_url, "selection": selection.to_json(), **options})
    with open_request_log(LakeLayout(lake)) as request_log:
        return await run_job(
            client or quick_client(emulator),
            request_log,
            out,
            job_options,
            run_options,
            select_files=select,
            publish=partial(publish_if_unlocked, settings, "the test"),
            sign=sign,
        )


def age_orders_by_an_hour(lake: Path) -> None:
    """Make the orders in the ledger an hour older."""
    with closing(sqlite3.connect(lake / "ledger.sqlite")) as ledger, ledger:
        ledger.execute("UPDATE report_order SET ordered_at = ordered_at - 3600000000")


def read_ids_of_pdf(pdf: Path) -> list[int]:
    """Return the ids of the files in a PDF of the emulator."""
    text = "\n".join(page.extract_text() for page in pypdf.PdfReader(pdf).pages)
    return [int(file_id) for file_id in re.findall(r"File (\d+) ", text)]


def read_manifest(out: Path) -> dict[str, Any]:
    """Return a folder's manifest.json."""
    content: dict[str, Any] = json.loads((out / "manifest.json").read_bytes())
    return content


def check_folder(out: Path) -> dict[int, str]:
    """Check a folder independently: every file is in exactly one PDF. Returns the PDF of each file."""
    sums = subprocess.run(["sha256sum", "-c", "--strict", "SHA256SUMS"], cwd=out, capture_output=True, check=False)
    assert sums.returncode == 0, sums.stderr
    pdfs: dict[int, str] = {}
    for pdf in sorted(out.glob("*.pdf")):
        for file_id in read_ids_of_pdf(pdf):
            assert file_id not in pdfs, f"{file_id} is in {pdfs[file_id]} and in {pdf.name}"
            pdfs[file_id] = pdf.name
    manifest = read_manifest(out)
    assert pdfs == {file["file_id"]: file["pdf"] for file in manifest["files"] if file["pdf"]}
    assert all(file["reason"] for file in manifest["files"] if not file["pdf"])
    return pdfs


def check_orders(emulator: Emulator, out: Path) -> int:
    """Check that every report made is delivered or has the state unknown. Returns the number of unknown ones."""
    states = {f"{order['name']}.pdf": order["state"] for order in read_manifest(out)["orders"]}
    names = [report.filename for report in emulator.reports.by_secret.values()]
    assert len(set(names)) == len(names), "a name was sent twice"
    assert {states[name] for name in names} <= {"delivered", "unknown"}
    assert sum(states[name] == "delivered" for name in names) == len(list(out.glob("*.pdf")))
    return sum(states[name] == "unknown" for name in names)
