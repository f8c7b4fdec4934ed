"""Run report jobs against the emulator, in this process."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import re
import sqlite3
import subprocess
import time
from contextlib import asynccontextmanager, closing, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from unittest.mock import patch

import pypdf

from pipeline.client.calls import ClientOptions, TimeSource
from pipeline.client.client import Client
from pipeline.emulator import Emulator, Quirks, WorldPlan
from pipeline.lake.ledger.request_log import open_request_log
from pipeline.lake.storage.layout import LakeLayout
from pipeline.output.progress import Progress
from pipeline.query.reader import open_catalog
from pipeline.reports.job import JobResult, published_at_end, run_job
from pipeline.reports.models import JobOptions
from pipeline.reports.selection import Selection, select_files
from pipeline.settings.settings import Settings
from tests.constants import set_constants
from tests.lake_copies import copy_lake
from tests.processes import Answer, started
from tests.sync.sync_harness import SEED, synced

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import AsyncIterator, Callable, Sequence
    from pathlib import Path

    import pytest

    from pipeline.lake.ledger.request_log import ReportJobFile
    from pipeline.reports.models import CatalogState

EVERY_FILE: Final = Selection("where", sql="TRUE")
FILES: Final = 25
_BATCH_SIZE: Final = "pipeline.reports.models.MAX_REPORT_FILES"
__all__ = ["EVERY_FILE", "SEED", "JobResult", "Selection"]


@dataclass(frozen=True)
class Scene:
    """A service of 25 files, the lake of their list items, and the folder of a job, which is not there yet."""

    emulator: Emulator
    lake: Path
    main: Callable[..., Answer]

    @property
    def out(self) -> Path:
        """The folder of the job."""
        return self.lake.with_name("out")

    @property
    def keys(self) -> list[int]:
        """The ids of the files."""
        return sorted(self.emulator.world.keys())

    async def run(self, selection: Selection = EVERY_FILE, *, out: Path | None = None, **options: Any) -> JobResult:
        """Run a job as `run_report` does."""
        return await run_report(self.emulator, self.lake, out or self.out, selection, **options)

    async def deliver(self, selection: Selection = EVERY_FILE, **options: Any) -> JobResult:
        """Run a job that delivers every selected file."""
        result = await self.run(selection, **options)
        assert not result.manifest.failed
        assert len(check_folder(self.out)) == len(result.manifest.files)
        return result

    async def report(self, *options: str) -> Answer:
        """Run the command for every file, in this process."""
        return await self.command("report", "--where", "TRUE", "--out", str(self.out), *options)

    async def command(self, *arguments: str) -> Answer:
        """Run a command in a thread of this process, which gets no signals there."""
        with patch("pipeline.processes.event_loop.STOP_SIGNALS", ()):
            service = {"SCANLAKE_BASE_URL": self.emulator.base_url, "SCANLAKE_TOKEN": self.emulator.token}
            return await asyncio.to_thread(self.main, *arguments, **service, SCANLAKE_LAKE=str(self.lake))

    async def start(self, *arguments: str, batch_size: int = 10) -> Process:
        """Start a command as a process."""
        return await started(self.emulator, self.lake, *arguments, **set_constants({_BATCH_SIZE: batch_size}))


class Script:
    """Calls functions before the nth request of an endpoint, and records the requests."""

    def __init__(self, emulator: Emulator, **actions: Callable[[], object]) -> None:
        self.actions = actions  # by endpoint and number, for example report_1
        self.counts: dict[str, int] = {}
        emulator.on_request = self._run_action

    def _run_action(self, endpoint: str) -> None:
        self.counts[endpoint] = self.counts.get(endpoint, 0) + 1
        action = self.actions.pop(f"{endpoint}_{self.counts[endpoint]}", None)
        if action is not None:
            action()


def make_service(**options: Any) -> Emulator:
    """Return a service whose files are those of the lake, update times included; its clock is that of the test."""
    emulator = Emulator(plan=WorldPlan(files=FILES, seed=SEED, now="2026-03-01"), **options)
    emulator.world.clock.set(time.time_ns() // 1_000)
    emulator.world.clock.resume()
    return emulator


@asynccontextmanager
async def open_scene(
    listed_lake: Path, folder: Path, main: Callable[..., Answer], **options: Any
) -> AsyncIterator[Scene]:
    """Start the service, with these options, and copy its lake to the folder `lake` of `folder`."""
    async with make_service(quirks=Quirks(report_ready_seconds=0.0), **options) as emulator:
        yield Scene(emulator, copy_lake(listed_lake, folder / "lake", emulator.base_url), main)


def set_batch_size(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """Let a PDF have at most so many files."""
    monkeypatch.setattr(_BATCH_SIZE, size)


async def sync_lists(emulator: Emulator, lake: Path) -> None:
    """Sync every file of the emulator into a lake, without details: that is fast."""
    await synced(emulator, lake, fetch_details="never", includes=())


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
    timeout_seconds: float = 1_800.0,
    client: Client | None = None,
    sign: Callable[[bytes], bytes] | None = None,
    publishes: bool = False,
    **options: Any,
) -> JobResult:
    """Run a job, as one run of the command does, which also publishes its records."""
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
            timeout_seconds=timeout_seconds,
            select_files=select,
            published=published_at_end(settings, "the test") if publishes else nullcontext(),
            sign=sign,
            progress=Progress(),
        )


ONE_HOUR_AGO: Final = "ordered_at = ordered_at - 3600000000"


def change_orders(lake: Path, assignments: str) -> None:
    """Change columns of the orders in the ledger."""
    with closing(sqlite3.connect(lake / "ledger.sqlite")) as ledger, ledger:
        ledger.execute(f"UPDATE report_order SET {assignments}")


def read_ids_of_pdf(pdf: Path) -> list[int]:
    """Return the ids of the files in a PDF of the emulator."""
    text = "\n".join(page.extract_text() for page in pypdf.PdfReader(pdf).pages)
    return [int(file_id) for file_id in re.findall(r"File (\d+) ", text)]


def encrypt(content: bytes, password: str) -> bytes:
    """Return a PDF that a password opens; an empty one is no password."""
    writer, file = pypdf.PdfWriter(clone_from=io.BytesIO(content)), io.BytesIO()
    writer.encrypt(password, "owner", algorithm="RC4-128")
    writer.write(file)
    return file.getvalue()


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


def edit_file(path: Path, edit: Callable[[bytes], bytes]) -> None:
    """Change the content of a file of a folder."""
    path.chmod(0o644)
    path.write_bytes(edit(path.read_bytes()))


def truncate(path: Path) -> None:
    """Cut the last bytes of a file of a folder."""
    edit_file(path, lambda content: content[:-9])


def replace_file(out: Path, name: str, content: bytes) -> None:
    """Change a file and its checksum."""
    edit_file(out / name, lambda _: content)
    drop_line(out, name)
    line = f"{hashlib.sha256(content).hexdigest()}  {name}\n"
    edit_file(out / "SHA256SUMS", lambda sums: sums + line.encode())


def drop_line(out: Path, name: str) -> None:
    """Remove the checksum of a file."""
    edit_file(out / "SHA256SUMS", lambda sums: re.sub(rf"(?m)^\w+  {re.escape(name)}\n".encode(), b"", sums))


def make_key(path: Path) -> None:
    """Make an SSH key without a passphrase."""
    key = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", f"{path.name}@x", "-f", str(path)]
    subprocess.run(key, check=True)
