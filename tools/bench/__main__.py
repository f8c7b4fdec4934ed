"""`make bench`: what scanlake costs beside a bare fetch of the same documents, on one machine in one run.

The emulated service runs in its own process with every document rendered beforehand, so that it is not the limit;
its own speed is the first line. Ratios are what counts: absolute figures are those of this machine at this moment.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tools.bench import iceberg, images, lake, syncing

if TYPE_CHECKING:
    from collections.abc import Callable

RESULTS: Final = Path(__file__).with_name("results.json")
CASES: Final[dict[str, Callable[[Path, int], dict[str, float]]]] = {
    "sync": syncing.first_and_later,
    "changes": syncing.changes,
    "kills": lambda folder, files: syncing.kills(folder, files * 2 // 5),
    "latency": syncing.latency,
    "limits": syncing.limits,
    "memory": syncing.memory,
    "reports": lambda folder, files: syncing.reports(folder, files // 4),
    "images": images.measure,
    "iceberg": lambda folder, _files: iceberg.measure(folder),
    "start": lambda _folder, _files: syncing.start_up(),
    "lake": lambda folder, files: lake.measure(folder, files * 50),
    "million": syncing.million,
}
"""Each takes a folder of its own and the number of files, and gives its figures by name.

The lake comes last: it grows this process, and a child's peak memory counts what its parent had when it began.
A million files take a quarter of an hour: that case is run by its name alone.
"""

_MOVED: Final = 1.15  # a ratio beyond this, or below its inverse, is pointed out


def main() -> None:
    """Print the figures beside those of the last committed run, and write them down."""
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("--files", type=int, default=20_000)
    parser.add_argument(
        "--only", nargs="+", choices=sorted(CASES), default=list(CASES)[:-1], help="run these cases alone"
    )
    parser.add_argument("--json", type=Path, help="write the figures to this file as well")
    parser.add_argument("--write", action="store_true", help="keep these figures as the ones to compare with")
    given = parser.parse_args()
    last: dict[str, float] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    print(f"{'case':44} {'now':>12} {'last':>12}  ratio")
    found: dict[str, float] = {}
    for name in given.only:
        folder = Path(tempfile.mkdtemp(prefix="bench-"))
        try:
            figures = CASES[name](folder, given.files)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        found |= figures
        for case, value in figures.items():
            print(_line(case, value, last.get(case)), flush=True)
    kept = {case: round(value, 3) for case, value in {**last, **found}.items()}
    for path in [*([given.json] if given.json else []), *([RESULTS] if given.write else [])]:
        path.write_text(json.dumps(kept if path == RESULTS else found, indent=1) + "\n")


def _line(case: str, now: float, last: float | None) -> str:
    if last is None:
        return f"{case:44} {now:12,.2f} {'-':>12}"
    ratio = now / last if last else float("inf")
    moved = "" if 1 / _MOVED <= ratio <= _MOVED else "  <- moved"
    return f"{case:44} {now:12,.2f} {last:12,.2f}  {ratio:.2f}{moved}"


if __name__ == "__main__":
    main()
