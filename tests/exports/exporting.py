"""Running exports against the emulator for these tests, in this process and in real ones."""

from __future__ import annotations

import asyncio
import json
import re
import sqlite3
import subprocess
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pypdf

from pipeline.exports.jobs import Terms
from pipeline.exports.reports import Manner
from pipeline.exports.selection import Wish, choose, standing
from pipeline.exports.work import Commission, Done, work
from pipeline.lake.files import Layout
from pipeline.lake.orders import order_book
from pipeline.published import published
from pipeline.service.client import Client
from pipeline.service.options import ClientOptions
from pipeline.service.retry import Seams
from pipeline.settings import Settings
from tests.sync.running import SEED, synced

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from pipeline.emulator import Emulator
    from pipeline.exports.selection import Chosen

EVERY = Wish("where", sql="TRUE")
SOON = Manner(wait=15.0, longest_pause=0.5)
__all__ = ["EVERY", "SEED", "SOON", "Done", "Manner", "Wish"]


async def listed(emulator: Emulator, lake: Path) -> None:
    """A lake that holds every file of the emulator, by its list alone: that is quick."""
    await synced(emulator, lake, expand="never", includes=())


def quick_client(emulator: Emulator, **options: Any) -> Client:
    """A client whose back-off takes next to no time."""
    seams = Seams(sleep=lambda seconds: asyncio.sleep(min(seconds, 0.01)))
    chosen = ClientOptions(**{"attempts": 4, "total_timeout": 5.0, **options})
    return Client(emulator.base_url, emulator.token, options=chosen, seams=seams)


async def reported(
    emulator: Emulator,
    lake: Path,
    out: Path,
    wish: Wish = EVERY,
    *,
    manner: Manner = SOON,
    client: Client | None = None,
    sign: Callable[[bytes], bytes] | None = None,
    **terms: Any,
) -> Done:
    """Run a job, as one run of the command would."""
    settings = Settings(base_url=emulator.base_url, lake=lake)

    def choosing() -> tuple[Sequence[Chosen], dict[str, Any]]:
        with published(settings) as db:
            return choose(db, wish), standing(db)

    frozen = Terms(**{"service": emulator.base_url, "selection": wish.words(), "name": "report-{batch}", **terms})
    with order_book(Layout(lake)) as book:
        asked = Commission(settings, out, frozen, manner, choosing, sign)
        return await work(client or quick_client(emulator), book, asked)


def an_hour_later(lake: Path) -> None:
    """Let the orders in the ledger be an hour older."""
    with closing(sqlite3.connect(lake / "ledger.sqlite")) as ledger, ledger:
        ledger.execute("UPDATE report_order SET ordered_at = ordered_at - 3600000000")


def ids_in(pdf: Path) -> list[int]:
    """The files that a PDF of the emulator says it holds."""
    text = "\n".join(page.extract_text() for page in pypdf.PdfReader(pdf).pages)
    return [int(found) for found in re.findall(r"File (\d+) ", text)]


def manifest(out: Path) -> dict[str, Any]:
    """A folder's manifest.json."""
    found: dict[str, Any] = json.loads((out / "manifest.json").read_bytes())
    return found


def check_folder(out: Path) -> dict[int, str]:
    """Hold a folder against its own word: every file in exactly one PDF that holds it. Returns file -> PDF."""
    sums = subprocess.run(["sha256sum", "-c", "--strict", "SHA256SUMS"], cwd=out, capture_output=True, check=False)
    assert sums.returncode == 0, sums.stderr
    held: dict[int, str] = {}
    for pdf in sorted(out.glob("*.pdf")):
        for file_id in ids_in(pdf):
            assert file_id not in held, f"{file_id} is in {held[file_id]} and in {pdf.name}"
            held[file_id] = pdf.name
    facts = manifest(out)
    assert held == {each["file_id"]: each["pdf"] for each in facts["files"] if each["pdf"]}
    assert all(each["reason"] for each in facts["files"] if not each["pdf"])
    return held


def check_orders(emulator: Emulator, out: Path) -> int:
    """Every report that was made is delivered, or named as ambiguous. Returns how many were made besides."""
    orders = {f"{order['name']}.pdf": order["state"] for order in manifest(out)["orders"]}
    made = [report.filename for report in emulator.reports.made.values()]
    assert len(set(made)) == len(made), "a name was sent twice"
    assert {orders[name] for name in made} <= {"delivered", "ambiguous"}
    assert sum(orders[name] == "delivered" for name in made) == len(list(out.glob("*.pdf")))
    return sum(orders[name] == "ambiguous" for name in made)
