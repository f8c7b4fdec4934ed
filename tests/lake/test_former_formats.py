"""Lakes of former formats: their documents, as their versions wrote them, become a lake of the present one.

`former_formats/N` has `documents/` of a lake of format N (up to 4 the folder was called `raw/`), made by the last
version that wrote it: five files fetched, one of them changed and one deleted since. Add the next before FORMAT rises.
"""

from __future__ import annotations

import json
import shutil
from email.utils import formatdate
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import duckdb
import pyarrow.parquet as pq
import pytest

from pipeline.errors import LakeCorruptedError
from pipeline.lake.ledger.format import FORMAT
from schemas.tables import DELETED, DELETED_FILES, TABLES
from schemas.timestamps import from_datetime, parse_instant
from tests.client.scripted_server import answer, scripted
from tests.lake.corruption import checked
from tests.sync.sync_harness import opened, synced

if TYPE_CHECKING:
    from tests.client.scripted_server import Asked

FOLDER: Final = Path(__file__).with_name("former_formats")
FORMATS: Final = sorted(int(path.name) for path in FOLDER.iterdir())
FIRST: Final = 4
"""The first format whose documents describe their versions; what an earlier one has only the service knows."""
SAME_DIGEST: Final = 5
"""The first format with the present digest of a version. By another one each file has changed."""

OF_FETCH: Final = ("_fetched_at", "_run_id", "_seq")


class DocumentsOfService:
    """A service that shows what it showed when the newest documents of a former lake were fetched."""

    token = "any"

    def __init__(self, documents: Path) -> None:
        """Read the documents."""
        rows = [row for path in documents.glob("*") for row in pq.read_table(path).to_pylist()]
        newest = {row["file_id"]: row for row in sorted(rows, key=lambda row: row["_seq"])}
        self.deleted = {key for key, row in newest.items() if row.get("kind") == DELETED}
        self.former = len(rows) - len(newest) - len(self.deleted)
        self.files = {key: row for key, row in newest.items() if key not in self.deleted}
        self.base_url = ""
        self.details: list[int] = []

    def respond(self, asked: Asked) -> bytes:
        """Answer a call of the list or of a detail."""
        date = [("Date", formatdate(usegmt=True)), ("Content-Type", "application/json")]
        *_, kind, name = asked.path.split("/")
        if kind == "files":
            self.details.append(int(name))
            row = self.files.get(int(name))
            return answer(row["detail"] if row else {"message": "Not found"}, status=200 if row else 404, headers=date)
        start, end = (parse_instant(asked.query.get(f"updated_{bound}", "")) for bound in ("start", "end"))
        times = {key: from_datetime(row["updated_at"]) for key, row in self.files.items()}
        keys = [key for key, at in times.items() if (start is None or start <= at) and (end is None or at <= end)]
        limit, page = int(asked.query["limit"]), int(asked.query.get("page", "1"))
        items = b",".join(self.files[key]["list_item"] for key in keys[(page - 1) * limit : page * limit])
        meta = {"current_page": page, "last_page": max(1, -(-len(keys) // limit)), "total": len(keys)}
        return answer(b'{"data":[%b],"meta":%b}' % (items, json.dumps(meta).encode()), headers=date)


def compare(lake: Path, fresh: Path) -> list[tuple[str, str]]:
    """Return the tables with different rows but for the columns of the fetch, of which deletions have no other."""
    found = []
    with duckdb.connect() as db:
        for name, path in (("one", lake), ("other", fresh)):
            db.execute(f"ATTACH '{path}/catalog.duckdb' AS {name} (READ_ONLY)")
        for table in TABLES:
            rows = [
                f"SELECT COLUMNS(lambda c: c NOT IN {OF_FETCH}) FROM {name}.{table.qualified_name}"
                for name in ("one", "other")
            ]
            for here, there in (rows, rows[::-1]):
                if table is not DELETED_FILES and db.execute(f"{here} EXCEPT ALL {there}").fetchall():
                    found.append((table.name, here))
    return found


def test_every_former_format_is_here() -> None:
    """Raising FORMAT needs the documents of the format before."""
    assert set(range(FIRST, FORMAT)) <= set(FORMATS)


@pytest.mark.parametrize("number", FORMATS)
async def test_an_upgrade(tmp_path: Path, number: int) -> None:
    """Of documents alone `repair` and `sync` make a lake with every file, deletion and version, without a detail call.

    Its rows are those of a lake that has fetched everything now. Before format 4 nothing is made, and nothing changed.
    """
    lake, fresh = tmp_path / "lake", tmp_path / "fresh"
    documents = shutil.copytree(FOLDER / str(number), lake / "documents")
    service: Any = DocumentsOfService(documents)
    before = {path.name: path.read_bytes() for path in documents.iterdir()}
    if number < FIRST:
        with pytest.raises(LakeCorruptedError, match="no documents to rebuild it from"):
            checked(lake)
    else:
        checked(lake)
        async with scripted(service.respond) as server:
            service.base_url = server.base
            summary = await synced(service, lake)
            expected = sorted(service.files) if number < SAME_DIGEST else []
            assert (summary.details_fetched, sorted(service.details)) == (len(expected), expected)
            await synced(service, fresh)
        assert (len(service.files), len(service.deleted), service.former) == (4, 1, 1)
        with opened(lake) as db:
            assert {row[0] for row in db.execute("SELECT file_id FROM deleted_files").fetchall()} == service.deleted
        assert compare(lake, fresh) == []
        assert checked(lake, read_data=True, mend=False).damage == []
        versions = [row for path in documents.iterdir() for row in pq.read_table(path)["file_id"].to_pylist()]
        assert len(versions) == len(expected) + len(service.files) + service.former + 2 * len(service.deleted)
    assert {path.name: path.read_bytes() for path in documents.iterdir() if path.name in before} == before
