"""What a purge leaves of a file in records that do not name it by its id: nothing."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from pipeline.flatten.flatten import flatten
from pipeline.lake.lake import Lake
from pipeline.lake.ledger.ledger import record_drift
from pipeline.lake.ledger.queries import Commit
from schemas.file_versions import FileVersion
from tests.lake import lake_builder
from tests.lake.lake_builder import AT, commit, insert_reject
from tests.lake.operations import told
from tests.lake.test_purge import everything, purged
from tests.sync.sync_harness import asked, opened

if TYPE_CHECKING:
    from pathlib import Path


def store(held: Lake, file_id: int, **values: Any) -> None:
    """Publish a file whose documents have these values, too, with its drift."""
    make, stored = lake_builder.version, list[FileVersion]()

    def version(*rest: Any) -> FileVersion:
        made = make(*rest)
        document = json.dumps(json.loads(made.detail or b"") | values).encode()
        stored.append(made._replace(list_item=document, detail=document))
        return stored[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lake_builder, "version", version)
        seq = commit(held, {file_id: 1})
    with held.ledger.transaction() as db:
        record_drift(db, Commit(seq, "r", AT, drift=flatten(stored, run_id="r", seq=seq).drift))
    held.publish("", at=AT, complete=True, watermark=AT)


def test_rejects_without_an_id_go(lake: Path) -> None:
    """Rejects without an id go, whatever they hold: any may be of the file. Those of other files stay."""
    spelled = [
        b'{"id": null, "scan_code": "r\\u00e9f\\/1"}',
        b'{"uploads": {"file_id": "4711"}}',
        b'{"uploads": [7, {"id":"98765"}]}',
        b'{"scan_code": "r\\u00e9f\\/1", "cut of',
        b'{"scan_code": "r\xe9f", "file_id": 4711}',
        b'{"name": "of jane"}',
    ]
    other = (12, b'{"id": 12, "uploads": [{"file_id": 4711}]}')
    with Lake(lake, doing="test") as held:
        with held.ledger.transaction() as db:
            for place, row in enumerate([other, *((None, document) for document in spelled)]):
                insert_reject(db, *row, key=f"document {place}")
        store(held, 4711, scan_code="réf/1", uploads=[{"id": 98765}, {"id": "x"}, None])
    assert "is dropped by the first verify that no longer finds it" in told(lake, "status")
    purged(lake, 4711)
    assert asked(lake, "SELECT file_id, document FROM reject") == [other]
    assert "of jane" not in everything(lake)


def test_errors_from_before_it_go(lake: Path) -> None:
    """Every error text goes from runs, requests and old statistics of runs: that a run failed stays."""
    quoting = ("HTTP 422: ref 11 cannot be read", "GET /files?reference=ref%2011&x: HTTP 500", "he is called jane")
    with Lake(lake, doing="test") as held, held.ledger.transaction() as db:
        db.execute("DELETE FROM run")
        for place, error in enumerate((*quoting, None)):
            row = (f"run {place}", error)
            db.execute(
                "INSERT INTO run (run_id, command, version, started_at, state, error) VALUES (?, '', '', 1, '', ?)", row
            )
        db.execute(
            "INSERT INTO share (request, reference, state, created_at, send_email, error)"
            " VALUES ('x', 'r', 'failed', 1, 0, ?)",
            quoting[:1],
        )
    purged(lake, 11)
    with opened(lake) as db:
        errors = [error for (error,) in db.execute("SELECT error FROM meta.runs ORDER BY run_id").fetchall()]
        assert db.execute("SELECT error FROM meta.shares").fetchall() == [("(purged)",)]
    assert errors == ["(purged)"] * 3 + [None]
    assert re.findall(r"ref(?: |%20)11\b|jane", everything(lake)) == []


def test_unknown_keys_are_forgotten(lake: Path) -> None:
    """Unknown keys go from the drift, whosoever they are; misfits of columns stay."""
    secret, long = "of jane", "of jane " * 30
    with Lake(lake, doing="test") as held:
        store(
            held, 4711, **{secret: 1, long: 2, "uploads": [{"id": 1, "nested \ud800": {"deep": 1}}], "snap_count": "x"}
        )
        store(held, 4712, **{"other key": 1})
        with held.ledger.transaction() as db:
            row = "'identity', 1, 'r', 'r', 1, 1), ('uploads', 'deep', 'unknown_key', 1, 'r', 'r', 1, 1)"
            db.execute(f"INSERT INTO schema_drift VALUES ('files', '{secret}', {row}")
    drift = "SELECT table_name, json_key, kind FROM schema_drift ORDER BY 1, 2, 3"
    assert len(asked(lake, drift)) == 7
    purged(lake, 4711)
    assert asked(lake, drift) == [
        ("files", secret, "identity"),
        ("files", "snap_count", "type_mismatch"),
    ]
    with opened(lake) as db:
        assert db.execute("SELECT key FROM meta.schema_drift ORDER BY key").fetchall() == [
            (secret,),
            ("snap_count",),
        ]
