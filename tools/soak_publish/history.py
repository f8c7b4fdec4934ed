"""Every state of a lake, published to the catalog of the settings, equals the lake row by row; two publishers at once.

Usage: python -m tools.soak_publish.history FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.errors import PublishConflictError
from pipeline.lake.storage.layout import LakeLayout
from pipeline.publish.iceberg import read_catalog_properties
from pipeline.publish.iceberg_catalogs import connect_catalog
from pipeline.publish.iceberg_publish import publish_iceberg
from pipeline.settings.layers import load
from tests.publish.iceberg_reading import overtaken, reader
from tests.publish.lake_history import LAKE_ID, History, list_differences, live_history

if TYPE_CHECKING:
    from pipeline.publish.iceberg_catalogs import IcebergCatalog


def connect(name: str) -> IcebergCatalog:
    """Connect to the catalog of the settings, as a new process would: tables in a namespace and a folder of a name."""
    settings = load(None, {})
    location = f"{settings.iceberg_location}/{name}" if settings.iceberg_location else ""
    return connect_catalog(location, f"scanlake_{name}", read_catalog_properties())


def publish(catalog: IcebergCatalog, lake: Path, number: int) -> None:
    """Publish a snapshot of a lake."""
    publish_iceberg(catalog, LakeLayout(lake), number, lake_id=LAKE_ID)


def compare_history(lake: Path) -> list[str]:
    """Publish a lake after each of its steps. Return what differs from its snapshots, now and at the sync's tag."""
    problems, former = list[str](), 0
    for name, number in live_history(lake):
        publish(connect("history"), lake, number)
        tags: list[str | None] = [None, f"sync-{number}"]
        if former and name != "purged":
            tags.append(f"sync-{former}")
        for tag in tags:
            snapshot = number if tag is None else int(tag.removeprefix("sync-"))
            found = list_differences(lake, snapshot, reader(connect("history"), tag))
            problems += [f"{name}, {tag}: {difference}" for difference in found]
        former = number
    return problems


def race(lake: Path) -> list[str]:
    """Let a publisher be overtaken between its reading and its commit. Return what is not as it should be."""
    history, slow, problems = History(lake), connect("race"), list[str]()
    first, second, third = history.sync({1: 2, 2: 1}), history.sync({2: 3}), history.sync({1: 1, 3: 2})
    publish(slow, lake, first)
    try:
        with overtaken(slow, lambda: publish(connect("race"), lake, second)):
            publish(slow, lake, third)
        problems.append("the slower publisher was not refused")
    except PublishConflictError:
        pass
    problems += list_differences(lake, second, reader(connect("race")))
    publish(connect("race"), lake, third)
    return problems + list_differences(lake, third, reader(connect("race")))


def main(folder: Path) -> int:
    """Print what was compared. Return 1 if something differs."""
    problems = compare_history(folder / "history")
    print(f"  history of 21 steps, row by row: {problems or 'equal'}", flush=True)
    raced = race(folder / "race")
    print(f"  two publishers at once: {raced or 'the slower one is refused, and succeeds later'}", flush=True)
    return 1 if problems or raced else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
