"""A process that publishes to a SQL catalog over a folder, and kills itself before one of its writes."""

from __future__ import annotations

import os
import signal
import sys
from itertools import count
from pathlib import Path
from unittest.mock import patch

from pipeline.lake.layout import LakeLayout
from pipeline.publish.iceberg_connection import connect_catalog
from pipeline.publish.iceberg_publish import publish_iceberg
from pipeline.publish.local_store import LocalStore
from tests.lake.lake_builder import AT
from tests.publish.lake_history import LAKE_ID


def main() -> None:
    """Publish a snapshot: lake, folder, number of the snapshot, number of the write."""
    lake, folder, number, kill_at = sys.argv[1:]
    create, writes = LocalStore.create, count(1)

    def create_or_die(store: LocalStore, path: str, content: bytes | Path, *, sha256: str = "") -> bool:
        if next(writes) == int(kill_at):
            os.kill(os.getpid(), signal.SIGKILL)
        return create(store, path, content, sha256=sha256)

    catalog = connect_catalog(f"file://{folder}/target", properties={"uri": f"sqlite:///{folder}/catalog.sqlite"})
    with patch.object(LocalStore, "create", create_or_die):
        publish_iceberg(catalog, LakeLayout(Path(lake)), int(number), lake_id=LAKE_ID, at=AT)


if __name__ == "__main__":
    main()
