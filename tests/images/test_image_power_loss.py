"""When the power fails while images are stored: a row never names a file that is missing or short."""

from __future__ import annotations

import hashlib
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

from pipeline.images.image_writer import ImageSummary, ImageWriter
from pipeline.lake.lake import Lake
from pipeline.lake.storage import images
from pipeline.lake.storage.images import ImageKey, ImageKind, IncomingFile
from tests.lake.powerloss import LEDGER, losses, recorded
from tests.lake.test_power_loss import write

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

_BATCHES = 3
_IMAGES = 6


def _store_images(folder: Path) -> None:
    """Three batches; each has a content of the batch before."""
    with Lake(folder, doing="test") as lake:
        writer = ImageWriter(lake, ImageSummary())
        lake.layout.create_dirs([writer.incoming.parent, writer.incoming])
        for batch in range(_BATCHES):
            downloads = []
            for number in range(batch * (_IMAGES - 1), batch * (_IMAGES - 1) + _IMAGES):
                file = IncomingFile(writer.incoming)
                file.write(b"%PDF-1.4\n" + b"%d " % number * 50)
                downloads.append(file.finish(ImageKey(batch, number, ImageKind.IMAGE), "application/pdf", "pdf"))
            writer.write(downloads)


def _read_rows(folder: Path, ledger: bytes | None) -> list[tuple[str, str]]:
    """The path and the hash of each stored image."""
    path = folder / "read.sqlite"
    path.write_bytes(ledger or b"")
    with closing(sqlite3.connect(path)) as db:
        if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'image'").fetchall():
            return []
        return db.execute("SELECT path, sha256 FROM image WHERE state = 'stored'").fetchall()


def _read_store(lake: Path) -> list[tuple[str, bytes]]:
    """Each stored image; damaged ones that were renamed do not count."""
    paths = [path for path in sorted((lake / "images").glob("??/*")) if ".damaged-" not in path.name]
    return [(path.relative_to(lake).as_posix(), path.read_bytes()) for path in paths]


def test_every_stored_row_has_its_file_after_a_loss_of_power(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a loss of power at any moment each row's file is there with its hash, and the next run repairs the rest."""
    monkeypatch.setattr(images, "_KEEP_FREE_BYTES", 0)
    lake = tmp_path / "lake"
    with recorded(lake) as log:
        _store_images(lake)
    counts, opened = set[int](), 0
    for end, tree in losses(log, alone=4):
        rows = _read_rows(tmp_path, tree.get(LEDGER))
        counts.add(len(rows))
        for path, sha256 in rows:
            content = tree.get(path)
            assert content is not None, f"after {end} of {len(log.done)}: {path} is missing"
            assert hashlib.sha256(content).hexdigest() == sha256, f"after {end} of {len(log.done)}: {path}"
        if rows and end % 5 == 0:
            opened += 1
            again = tmp_path / f"again-{opened}"
            write(again, tree)
            _store_images(again)
            assert _read_store(again) == _read_store(lake)
    assert counts == {0, *(_IMAGES * batch for batch in range(1, _BATCHES + 1))}
    assert opened > 5
