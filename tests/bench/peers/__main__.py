"""`make bench-peers`: a first sync beside dlt and PyAirbyte, on the same emulated service, each in its own environment.

Twice each: on a world that holds still, for time and memory; and on one that changes all the while, for what is lost:
files that nobody touched since before the load began and that its copy does not have, though the load ended well.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
import venv
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit
from urllib.request import urlopen

import duckdb
import uvloop

from tests.bench.serving import bare_fetch, memory, service

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.bench.serving import Service

HERE: Final = Path(__file__).parent
ROOT: Final = HERE.parents[2]
ENVIRONMENTS: Final = ROOT / ".bench-peers"
PEERS: Final = {"dlt": "dlt[duckdb]==1.31.0", "airbyte": "airbyte"}
_CHURN: Final = 50  # files for each change a second
_SAMPLE: Final = 0.2  # seconds between two looks at memory


@dataclass(frozen=True)
class Load:
    """One load: seconds as a whole process, peak memory of all its processes in MB, rows, and the untouched it lost."""

    seconds: float
    mb: float
    rows: int
    lost: int
    untouched: int


def environment_of(peer: str) -> Path:
    """The peer's own environment, made when it is not there yet: its Python."""
    folder = ENVIRONMENTS / peer
    python = folder / "bin" / "python"
    if not (folder / ".installed").exists():
        print(f"installing {PEERS[peer]} into {folder.relative_to(ROOT)} (once) ...", flush=True)
        venv.create(folder, with_pip=True, clear=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", PEERS[peer]], check=True, stderr=subprocess.DEVNULL)
        (folder / ".installed").touch()
    return python


def load(peer: str, emulated: Service, folder: Path) -> tuple[list[str], dict[str, str], Path, str]:
    """The command of a load, its environment, the database it fills, and what counts its files and rows."""
    if peer == "scanlake":
        command = [sys.executable, "-m", "pipeline", "sync", "--quiet", "--json"]
        return command, {**emulated.environment, "SCANLAKE_LAKE": str(folder)}, folder / "catalog.duckdb", "main"
    job = str(HERE / f"{peer}_job.py")
    return (
        [str(environment_of(peer)), job, emulated.base_url, str(folder)],
        {**emulated.environment, "PYTHONPATH": ""},
        folder / "peer.duckdb",
        "main_copy",
    )


def run(peer: str, files: int, folder: Path, *, churn: float, quirks: Sequence[str]) -> Load:
    """One load into `folder`, of a world that changes `churn` times a second."""
    spelled = [word for quirk in quirks for word in ("--quirk", quirk)]
    with service(files, "--prerender", "--churn", str(churn), *spelled) as emulated:
        command, environment, database, schema = load(peer, emulated, folder)
        began_at = time.time()
        began = time.perf_counter()
        log = folder.with_suffix(".log")
        with log.open("wb") as out, subprocess.Popen(command, env=environment, stdout=out, stderr=out) as process:
            peak = 0.0
            while process.poll() is None:
                peak = max(peak, memory(process.pid))
                time.sleep(_SAMPLE)
        seconds = time.perf_counter() - began
        if process.returncode:
            raise SystemExit(f"{peer} failed:\n{log.read_text(errors='replace')[-3000:]}")
        emulated.wish("churn", {"rate": 0})
        untouched = {key for key, updated in _truth(emulated) if updated < began_at}
    with duckdb.connect(str(database), read_only=True) as db:
        held = {row[0] for row in db.execute(f"SELECT {_KEYS[peer]} FROM {schema}.files").fetchall()}
        rows = _rows(db, schema)
    return Load(seconds, peak, rows, len(untouched - held), len(untouched))


_KEYS: Final = {"scanlake": "file_id", "dlt": "id", "airbyte": "id"}
_VIEWS: Final = "fields_wide form_answers_wide damage_by_month workflow_progress open_workflow_runs".split()


def _rows(db: duckdb.DuckDBPyConnection, schema: str) -> int:
    names = db.execute(
        "SELECT table_name FROM information_schema.tables WHERE table_schema = ? AND NOT starts_with(table_name, '_')",
        [schema],
    ).fetchall()
    # Views for people tell what the tables hold, once more.
    names = [(name,) for (name,) in names if name not in _VIEWS]
    counted = (db.execute(f'SELECT count(*) FROM {schema}."{name}"').fetchone() for (name,) in names)
    return sum(row[0] for row in counted if row is not None)


def _truth(emulated: Service) -> list[tuple[int, float]]:
    address = f"{emulated.control}truth"
    assert urlsplit(address).hostname == "127.0.0.1"
    with urlopen(address) as reply:
        rows: list[dict[str, Any]] = [json.loads(line) for line in reply]
    return [(row["id"], float(row["updated"]) / 1e6) for row in rows]


def main() -> None:
    """Print a table, and write it down with `--json`."""
    parser = argparse.ArgumentParser(prog="make bench-peers", description=__doc__)
    parser.add_argument("--files", type=int, default=4_500)
    parser.add_argument("--only", nargs="+", choices=("scanlake", *PEERS), default=("scanlake", *PEERS))
    parser.add_argument("--quirk", action="append", default=[], help="as of `scanlake emulator`: order=updated-desc")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    with service(given.files, "--prerender") as emulated:
        bare = min(uvloop.run(bare_fetch(emulated, given.files)) for _ in range(3))
    print(f"{given.files:,} files; a bare fetch of the same documents takes {bare:.2f} s\n")
    print(f"{'':10} {'seconds':>8} {'x bare':>7} {'MB':>7} {'rows':>9}   lost of the untouched, while others change")
    found: dict[str, dict[str, float]] = {"bare": {"seconds": bare}}
    folder = Path(tempfile.mkdtemp(prefix="bench-peers-"))
    try:
        for peer in given.only:
            still = run(peer, given.files, folder / f"{peer}-still", churn=0, quirks=given.quirk)
            moving = run(peer, given.files, folder / f"{peer}-moving", churn=given.files / _CHURN, quirks=given.quirk)
            share = moving.lost / moving.untouched
            print(
                f"{peer:10} {still.seconds:8.1f} {still.seconds / bare:7.1f} {still.mb:7,.0f} {still.rows:9,}"
                f"   {moving.lost:,} of {moving.untouched:,} ({share:.1%}) in {moving.seconds:.1f} s",
                flush=True,
            )
            found[peer] = {
                "seconds": still.seconds,
                "MB": still.mb,
                "rows": still.rows,
                "lost": moving.lost,
                "of untouched": moving.untouched,
            }
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if given.json:
        given.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
