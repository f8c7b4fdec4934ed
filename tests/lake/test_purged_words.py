"""A purged file is nowhere any more: one rich world, and one search for its words over the lake and its targets."""

from __future__ import annotations

import json
import re
import shutil
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

import pytest
from msgspec.structs import replace

from pipeline.flatten.flatten import flatten
from pipeline.lake.lake import Lake
from pipeline.lake.ledger.images import ImageRecord, ImageState, write_images
from pipeline.lake.ledger.ledger import make_publish_due, record_drift
from pipeline.lake.ledger.queries import Commit, RunRecord
from pipeline.lake.ledger.request_log import (
    FileConfirmation,
    OrderState,
    ReportBatch,
    ReportJob,
    ReportJobFile,
    RequestLog,
    ShareRecord,
    ShareState,
)
from pipeline.lake.purge import purge
from pipeline.lake.storage.atomic_files import damaged_name, temp_name
from pipeline.lake.storage.images import ImageKind
from pipeline.reports.models import JobOptions
from schemas.file_versions import FileVersion
from tests.lake import lake_builder
from tests.lake.corruption import checked
from tests.lake.lake_builder import AT, commit, insert_reject, undeclared_parts
from tests.lake.operations import told
from tests.publish.erasure import purged as purged_everywhere
from tests.publish.erasure import read_texts
from tests.sync.sync_harness import asked, opened, tampered

if TYPE_CHECKING:
    from pathlib import Path


_SECRET: Final = r"s3cret(?!ar)|(?<!of-)ref 11\b|of 11\b"
"""What is of file 11, or can be; the reference of file 12 begins alike."""
_REFERENCES: Final = ("s3cret O'B\u00e9/7", "7", "kind")
_WRITTEN: Final = (
    "field value question upload key long x y z name r reject run order error reported shared snapshot image download"
    " cut damaged spilled removed"
).split()
"""Words after `s3cret_`, one for each place of the rich world."""
_OTHERS: Final = (
    "k33p_field k33p_value k33p_question k33p_upload k33p_key k33p_long k33p_reject k33p_identity k33p_image k33p_other"
    " s3cretary"
).split()


def read_all(folder: Path) -> str:
    """All that the files below a folder hold: their bytes, and what readers of their formats see, decompressed."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return "\n".join(text for path in files for text in read_texts(path))


def purged(lake: Path, *file_ids: int) -> Any:
    """Purge as the command does."""
    with Lake(lake, doing="purge") as held:
        return purge(held, file_ids, by="the data protection officer", at=1_700_000_000_000_000)


# The rich world


def store(held: Lake, file_id: int, rows: dict[str, list[dict[str, Any]]] | None = None, **values: Any) -> None:
    """Publish a version with these children, and these values in its documents, with its drift."""
    make, stored = lake_builder.version, list[FileVersion]()

    def version(*rest: Any) -> FileVersion:
        made = make(*rest)
        document = json.dumps(json.loads(made.detail or b"") | values).encode()
        stored.append(made._replace(list_item=document, detail=document))
        return stored[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lake_builder, "version", version)
        seq = commit(held, {file_id: 1}, rows)
    with held.ledger.transaction() as db:
        record_drift(db, Commit(seq, "r", AT, drift=flatten(stored, run_id="r", seq=seq).drift))
    held.publish("", at=AT, complete=True, watermark=AT)


def fill_tables(held: Lake) -> None:
    """Versions of a file under three references, with names of fields and questions and with unknown keys.

    A file 79 is only in a kept snapshot.
    """
    for file_id, word in ((11, "s3cret"), (12, "k33p")):
        place = {"file_id": file_id, "position": 0}
        field = {**place, "field_id": 1, "name": f"{word}_field", "value": f"{word}_value"}
        answer = {**place, "form_id": 7, "question_id": "1", "label": f"{word}_question", "value": "v"}
        uploads = [{"id": 98765, "image_name": f"{word}_upload"}, {"id": "x"}, None]
        unknown: dict[str, Any] = {
            f"{word}_key": 1,
            f"{word}_long " * 30: 2,
            "nested \ud800": {"deep": 1},
            "snap_count": "x",
        }
        for reference in _REFERENCES if file_id == 11 else ("s3cretary",):
            store(held, file_id, {"fields": [field], "form_answers": [answer]}, scan_code=reference, uploads=uploads)
        store(held, file_id, scan_code="ref 11" if file_id == 11 else "s3cretary", **unknown)
    store(held, 79, scan_code="s3cret_snapshot")
    (*_, former) = [part for part in held.ledger.parts() if part.table_name == "documents"]
    outputs = [part for part in held.ledger.parts() if part.table_name != "documents"]
    held.ledger.replace_parts([former, *outputs], [])  # every version is compacted away
    with held.ledger.transaction() as db:
        db.execute("DELETE FROM file_version WHERE file_id = 79")
        make_publish_due(db)  # the former snapshot keeps it
    held.republish(at=AT)


def fill_ledger(held: Lake) -> None:
    """Rejects with and without an id, drift, error texts, and the records of a verification."""
    spelled = [
        b'{"id": null, "scan_code": "s3cret_r\\u00e9f\\/1"}',
        b'{"uploads": {"file_id": "4711"}, "s3cret_x": 1}',
        b'{"uploads": [7, {"id":"98765", "s3cret_y": 1}]}',
        b'{"scan_code": "s3cret_z\\/1", "cut of',
        b'{"scan_code": "s3cret_r\xe9f", "file_id": 4711}',
        b'{"name": "s3cret_name"}',
    ]
    errors = ("HTTP 422: s3cret_run cannot be read", "GET /files?reference=ref%2011&x: HTTP 500", None)
    for place, error in enumerate(errors):
        held.ledger.begin_run(
            RunRecord(f"run {place}", "sync", "0", AT, state="failed" if error else "done", error=error)
        )
    with held.ledger.transaction() as db:
        for place, document in enumerate(spelled):
            insert_reject(db, None, document, key=f"document {place}")
        db.execute("UPDATE reject SET reason = 'no id'")
        insert_reject(db, 78, b"\x00", key="of 78")
        drift = "'r', 'r', 1, 1), ('uploads', 'deep', 'unknown_key', 1, 'r', 'r', 1, 1)"
        db.execute(f"INSERT INTO schema_drift VALUES ('files', 'k33p_identity', 'identity', 1, {drift}")
        names = ["run_id", "verified_at", "mode", "consistent", "ids"]
        columns = db.execute("PRAGMA table_info(verification)").fetchall()
        names += [row["name"] for row in columns if row["name"] not in names and row["notnull"]]
        values = ["r", 1, "check", 0, '{"missing": [76, 77]}', *[0] * (len(names) - 5)]
        db.execute(f"INSERT INTO verification ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})", values)


_SELECTION: Final = {
    "kind": "reference",
    "references": [*_REFERENCES, "s3cretary"],
    "sql": "scan_code = 's3cret O''B\u00e9/7' OR scan_code = 's3cretary O''B\u00e9/77' OR id = 'ref 11'",
    "per_file": True,
}


def order_pdf(log: RequestLog, job: str, batch: ReportBatch, state: OrderState) -> None:
    """Record an order of a batch, with its PDF."""
    order = log.record_order(job, batch, AT, {key: FileConfirmation(AT, AT, "list") for key in batch.files})
    log.update(job, order, state=state, pdf=f"{batch.group_name}.pdf", url=f"http://x/{batch.group_name}")


def fill_requests(held: Lake) -> None:
    """Reports and shares of a file, of others, and of both; references that no document has lead to some of them."""
    log = RequestLog(held.ledger)
    title = "About ref 11, s3cret_reported, s3cret_shared and ref 12."
    options = JobOptions("http://service", _SELECTION, template=7, title=title).to_json()
    jobs: dict[str, list[int | None]] = {"a": [11], "b": [11, 12], "c": [None], "d": [12]}
    names: dict[int | None, str | None] = {11: "s3cret O'B\u00e9", 12: "ref 12", None: None}
    for job, ids in jobs.items():
        files = [ReportJobFile(place, key, f"ref {key or 11}", names[key], None) for place, key in enumerate(ids)]
        files += [ReportJobFile(1, 11, "s3cret_reported", None, None)] if job == "a" else []
        batches = [ReportBatch(place, f"{place:04}", names[key], (key,)) for place, key in enumerate(ids, 1) if key]
        log.create(ReportJob(job, f"/x/of-ref 11/{job}", options, "{}", AT), files, batches)
        for batch in batches:
            order_pdf(log, job, batch, OrderState.SAVED)
    (order, _) = log.orders("b")
    order = replace(order, state=OrderState.REPLACED, error="s3cret_order")
    log.exclude_files("b", 1, {11: "not in its PDF"}, AT, order)
    shares = {
        "s3cret O'B\u00e9/7": None, "s3cret_reported": None, "s3cret_shared": "[4711, 11]", "s3cretary": "[12, 111]",
    }  # fmt: skip
    for reference, file_ids in shares.items():
        share = ShareRecord("x", reference, None, ShareState.CREATED, AT, None, send_email=False, file_ids=file_ids)
        number, _ = log.begin_share(share, now=AT, renew=True)
        log.finish_share(number, ShareState.FAILED, error="s3cret_error")


def write_image(held: Lake, upload: int, content: bytes, *file_ids: int) -> Path:
    """Store the image of an upload that these files have."""
    digest, root = sha256(content).hexdigest(), held.layout.root
    path = root / "images" / digest[:2] / f"{digest[2:]}.jpg"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    facts = ("image/jpeg", str(path.relative_to(root)))
    rows = [(file_id, upload, ImageKind.IMAGE, ImageState.STORED, AT, None, digest) for file_id in file_ids]
    write_images(held.ledger, [ImageRecord(*row, len(content), *facts) for row in rows])
    return path


def put(path: Path, text: str) -> Path:
    """Write a file, and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def leave_remains(lake: Path, own: Path) -> list[Path]:
    """Leave what killed runs and repairs leave, beside an image of its own. Return the files of others there."""
    incoming = lake / "images" / "incoming"
    left = put(incoming / f"11.1.image.{'0' * 64}", "s3cret_download")
    linked = lake / "images" / "00" / f"{'0' * 62}.jpg"
    linked.parent.mkdir()
    linked.hardlink_to(left)
    put(incoming / temp_name("download"), "s3cret_cut")
    moved = put(own.with_name(damaged_name(own.name)), "s3cret_damaged")
    put(lake / "spill" / temp_name("duckdb") / "duckdb_temp_storage", "s3cret_spilled")
    with tampered(lake) as db:  # of a reject that was removed long ago; SQLite does not always overwrite
        insert_reject(db, 11, b"s3cret_reject")
        insert_reject(db, 12, b'{"id": 12, "k33p_reject": [{"file_id": 11}]}', key="of 12")
        db.execute("PRAGMA secure_delete = OFF")
        insert_reject(db, 11, b"s3cret_removed" * 900, key="y")
        db.commit()
        db.execute("DELETE FROM reject WHERE reject_key = 'y'")
    shutil.copy(lake / "ledger.sqlite", lake / damaged_name("ledger.sqlite"))
    names = (incoming / "11.txt", own.with_name("x.damaged-yesterday"), lake / "images" / "zz" / moved.name)
    return [put(path, "k33p_other") for path in names]


def test_no_word_of_it_is_found(lake: Path, tmp_path: Path) -> None:
    """No file of the lake, its mirror, its tables or its backup has a word of a purged file, or one that may be.

    What others have stays, word for word: also under a reference that begins alike, and where options are no words.
    """
    mirror, tables = ((tmp_path / name).as_uri() for name in ("mirror", "tables"))
    settings = {"SCANLAKE_PUBLISH_TO": mirror, "SCANLAKE_ICEBERG_LOCATION": tables, "SCANLAKE_PUBLISH_IMAGES": "true"}
    backup = ("backup", str(tmp_path / "backup"), "--with-images")
    with Lake(lake, doing="test") as held:
        fill_ledger(held)
        fill_tables(held)
        fill_requests(held)
        own = write_image(held, 1, b"\xff\xd8 s3cret_image \xff\xd9", 11)
        shared = write_image(held, 2, b"\xff\xd8 k33p_image \xff\xd9", 11, 12)
    told(lake, "publish", code=0, **settings)
    told(lake, *backup)
    assert "is dropped by the first verify that no longer finds it" in told(lake, "status")
    others = leave_remains(lake, own)
    before = read_all(tmp_path)
    words = [*(f"s3cret_{word}" for word in _WRITTEN), *_OTHERS, *_REFERENCES, "ref 11", "of 11"]
    assert [word for word in words if word not in before] == []
    answer = purged_everywhere(lake, 11, 77, 78, 79, **settings)
    assert (answer.code, answer.out.count(": erased (")) == (0, 2), answer
    told(lake, *backup)
    after = read_all(tmp_path)
    assert set(re.findall(f".{{20}}(?:{_SECRET})", after)) == set()
    assert [word for word in (*_OTHERS, "ref 12", "of 12") if word not in after] == []
    assert [path.read_text() for path in others] == ["k33p_other"] * 3
    assert (own.exists(), shared.exists()) == (False, True)
    assert asked(lake, "SELECT file_id FROM purge") == [(11,), (77,), (78,), (79,)]
    assert asked(lake, "SELECT reject_key FROM reject") == [("of 12",)]
    errors = asked(lake, "SELECT error FROM run WHERE run_id GLOB 'run ?' ORDER BY run_id")
    assert errors == [("(purged)",), ("(purged)",), (None,)]
    assert asked(lake, "SELECT reference, error FROM share") == [("s3cretary", "(purged)")]
    assert asked(lake, "SELECT ids FROM verification") == [("{}",)]
    misfits = [("files", "snap_count"), ("files", "uploads"), ("uploads", "id")]
    drift = [("files", "k33p_identity", "identity"), *((*key, "type_mismatch") for key in misfits)]
    assert asked(lake, "SELECT table_name, json_key, kind FROM schema_drift ORDER BY 1, 2") == drift
    with opened(lake) as db:
        assert db.execute("SELECT table_name, key, kind FROM meta.schema_drift ORDER BY 1, 2").fetchall() == drift
        for table in ("files", "images"):
            assert db.execute(f"SELECT file_id FROM {table}").fetchall() == [(12,)]
    check_requests(lake)
    assert undeclared_parts(lake) == []
    assert checked(lake, read_data=True, mend=False).damage == []


def check_requests(lake: Path) -> None:
    """Check what is left of reports: those of others, and no reference of the purged file in what people wrote."""
    assert asked(lake, "SELECT job, file_id FROM report_file") == [("b", 12), ("d", 12)]
    assert asked(lake, "SELECT job, pdf FROM report_order") == [("b", "ref 12.pdf"), ("d", "ref 12.pdf")]
    assert asked(lake, "SELECT job, group_name FROM report_batch") == [("b", "ref 12"), ("d", "ref 12")]
    folders = asked(lake, "SELECT job, folder FROM report_job ORDER BY job")
    assert folders == [(job, f"/x/of-{'ref 11' if job in 'bd' else 'purged'}/{job}") for job in "abcd"]
    for (text,) in asked(lake, "SELECT options FROM report_job"):
        stored = JobOptions(**json.loads(text))
        assert (stored.template, stored.title) == (7, "About purged, purged, purged and ref 12.")
        references = [*["purged"] * 3, "s3cretary"]
        sql = "scan_code = 'purged' OR scan_code = 's3cretary O''B\u00e9/77' OR id = 'purged'"
        assert stored.selection == {"kind": "reference", "references": references, "sql": sql, "per_file": True}


def test_a_reference_beside_a_lone_surrogate_is_forgotten(lake: Path) -> None:
    """A share goes under a former reference that only a document with half a character has."""
    with Lake(lake, doing="test") as held:
        store(held, 11, scan_code="f0rmer", comment="\ud800")
        store(held, 11)
        held.republish(at=AT, rebuild=True)
        share = ShareRecord("x", "f0rmer", None, ShareState.CREATED, AT, None, send_email=False)
        RequestLog(held.ledger).begin_share(share, now=AT, renew=True)
    purged(lake, 11)
    assert asked(lake, "SELECT reference FROM share") == []
