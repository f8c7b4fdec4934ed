"""What a purge leaves of a file in the records of requests: nothing."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import duckdb
from msgspec.structs import replace

from pipeline.flatten.flatten import flatten
from pipeline.lake.lake import Lake
from pipeline.lake.ledger.ledger import record_drift
from pipeline.lake.ledger.queries import Commit
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
from pipeline.reports.models import JobOptions
from schemas.file_versions import FileVersion
from schemas.timestamps import DAY, now_us
from tests.lake.lake_builder import AT, commit, insert_reject
from tests.lake.operations import told
from tests.lake.test_purge import everything, purged
from tests.sync.sync_harness import asked, opened

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_the_request_log_forgets_it(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A report of a purged file alone, its reference as a group and in the options of a job: nothing of it is found.

    What the log has of other files stays, also of one whose reference is longer; so do options that are no words.
    """
    files = {1: "ref 1", 2: "ref 2", 12: "ref 12"}
    monkeypatch.setattr("pipeline.lake.purge.find_references", lambda *_: ["ref 1", "7", "kind"])
    selection = {"kind": "reference", "references": list(files.values()), "per_file": True}
    options = JobOptions("http://service", selection, template=7, title="About ref 1 and ref 2.").to_json()
    batches = [
        ReportBatch(place, f"{place:04}", name, files=(key,)) for place, (key, name) in enumerate(files.items(), 1)
    ]
    with Lake(lake, doing="test") as held:
        commit(held, dict.fromkeys(files, 0))
        held.publish("", at=AT, complete=True, watermark=None)
        log = RequestLog(held.ledger)
        selected = [ReportJobFile(place, key, name, name, None) for place, (key, name) in enumerate(files.items())]
        log.create(ReportJob("job", "folder", options, "{}", AT), selected, batches)
        orders = []
        for batch in batches:
            confirmed = {key: FileConfirmation(AT, AT, "list") for key in batch.files}
            order = log.record_order("job", batch, AT, confirmed)
            pdf, url = f"{batch.group_name}.pdf", f"http://x/{batch.group_name}"
            orders.append(log.update("job", order, state=OrderState.SAVED, pdf=pdf, url=url))
        log.exclude_files("job", 1, {1: "not in its PDF"}, AT, replace(orders[0], state=OrderState.REPLACED))
    before = re.findall(r"ref \d+", everything(lake))
    purged(lake, 1)
    after = re.findall(r"ref \d+", everything(lake))
    assert [("ref 1" in words, "ref 12" in words) for words in (before, after)] == [(True, True), (False, True)]
    with Lake(lake, doing="test") as held:
        log = RequestLog(held.ledger)
        assert [batch.files for batch in log.batches("job")] == [(2,), (12,)]
        assert [order.pdf for order in log.orders("job")] == ["ref 2.pdf", "ref 12.pdf"]
        job = log.job("job")
    assert job is not None
    stored = JobOptions(**json.loads(job.options))
    assert (stored.template, stored.title) == (7, "About purged and ref 2.")
    assert stored.selection == selection | {"references": ["purged", "ref 2", "ref 12"]}


def test_shares_of_a_former_reference_are_forgotten(tmp_path: Path) -> None:
    """A reference that only the documents of a former version have leads to no share any more."""
    lake = tmp_path / "lake"

    def make_former(made: FileVersion) -> FileVersion:
        document = (made.list_item or b"").replace(b"ref 1", b"f0rmer")
        return made._replace(list_item=document, detail=document)

    with Lake(lake, doing="test") as held:
        commit(held, {1: 0, 2: 0}, change=make_former)
        commit(held, {1: 0})
        held.publish("", at=AT, complete=True, watermark=AT)
        held.republish(at=AT, rebuild=True)
        with held.ledger.transaction() as db:
            for reference in ("f0rmer", "ref 2"):
                db.execute(
                    "INSERT INTO share (request, reference, state, created_at, send_email)"
                    " VALUES ('x', ?, 'created', 1, 0)",
                    (reference,),
                )
    purged(lake, 1)
    assert asked(lake, "SELECT reference FROM share") == [("ref 2",)]


def make_share(reference: str, file_ids: str | None) -> ShareRecord:
    """Return a share under a reference that these files had."""
    return ShareRecord("x", reference, None, ShareState.CREATED, AT, None, send_email=False, file_ids=file_ids)


def test_references_that_no_document_has_are_forgotten(lake: Path) -> None:
    """Shares, and the words of a job, go under former references: of a report of the file, and of a share of it."""
    title = "Of f0rmer 1, of f0rmer 2 and of f0rmer 3."
    options = JobOptions("http://service", {"kind": "ids"}, title=title).to_json()
    with Lake(lake, doing="test") as held:
        log = RequestLog(held.ledger)
        log.create(ReportJob("job", "folder", options, "{}", AT), [ReportJobFile(0, 11, "f0rmer 1", None, None)], [])
        for number, file_ids in ((1, None), (2, "[4711, 11]"), (3, "[12, 111]")):
            log.begin_share(make_share(f"f0rmer {number}", file_ids), now=AT, renew=True)
    assert purged(lake, 11).known == (11,)
    assert asked(lake, "SELECT reference FROM share") == [("f0rmer 3",)]
    ((stored,),) = asked(lake, "SELECT options FROM report_job")
    assert json.loads(stored)["title"] == "Of purged, of purged and of f0rmer 3."
    assert not {"f0rmer 1", "f0rmer 2"}.intersection(re.findall(r"f0rmer \d", everything(lake)))
    with Lake(lake, doing="test") as held:
        RequestLog(held.ledger).begin_share(make_share("f0rmer 4", "[11]"), now=AT, renew=True)
    purged(lake, 11)
    assert asked(lake, "SELECT reference FROM share") == [("f0rmer 3",)], "a file that only a share has had since"


def test_sql_and_folders_with_its_reference_are_changed(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reference goes from a job's SQL, also quoted there, and from the folder of a job without other files."""
    monkeypatch.setattr("pipeline.lake.purge.find_references", lambda *_: ["O'Brien/7", "ref 11"])
    selection = {"kind": "where", "sql": "scan_code = 'O''Brien/7' OR scan_code = 'O''Brien/77' OR id = 'ref 11'"}
    options = JobOptions("http://service", selection).to_json()
    with Lake(lake, doing="test") as held:
        log = RequestLog(held.ledger)
        for job, folder, file_ids in (("a", "/x/of-ref 11/b", [11]), ("b", "/x/of-ref 11/c", [11, 12])):
            files = [ReportJobFile(place, key, f"ref {key}", None, None) for place, key in enumerate(file_ids)]
            log.create(ReportJob(job, folder, options, "{}", AT), files, [])
        log.create(ReportJob("c", "/x/ref 11", options, "{}", AT), [ReportJobFile(0, None, "ref 11", None, None)], [])
    purged(lake, 11)
    folders = asked(lake, "SELECT job, folder FROM report_job ORDER BY job")
    assert folders == [("a", "/x/of-purged/b"), ("b", "/x/of-ref 11/c"), ("c", "/x/purged")]
    stored = {json.loads(text)["selection"]["sql"] for (text,) in asked(lake, "SELECT options FROM report_job")}
    assert stored == {"scan_code = 'purged' OR scan_code = 'O''Brien/77' OR id = 'purged'"}


def test_what_no_purge_reaches_is_named_before_and_after(lake: Path, tmp_path: Path) -> None:
    """Folders of reports with the file, share links that may be valid, and places with a copy; then they are forgotten.

    Folders and links of other files are not named, nor is a link that has expired. meta.purges says who and when.
    """
    told(lake, "backup", str(tmp_path / "backup"))
    options = JobOptions("http://service", {"kind": "ids"}).to_json()
    with Lake(lake, doing="test") as held:
        log = RequestLog(held.ledger)
        for name, keys in (("both", (11, 12)), ("other", (12,)), ("none", (11,))):
            batches = [] if name == "none" else [ReportBatch(1, "0001", None, files=keys)]
            files = [ReportJobFile(place, key, f"ref {key}", None, None) for place, key in enumerate(keys)]
            log.create(ReportJob(name, f"/reports/{name}", options, "{}", AT), files, batches)
            for batch in batches:
                confirmed = {key: FileConfirmation(AT, AT, "list") for key in keys}
                order = log.record_order(name, batch, AT, confirmed)
                log.update(name, order, state=OrderState.DELIVERED, pdf=f"{name}.pdf")
        shares = (
            ("ref 11", None, None),
            ("former", "[11]", now_us() + DAY),
            ("ref 11", None, AT),
            ("ref 12", "[12]", None),
        )
        for place, (reference, file_ids, until) in enumerate(shares):
            share = replace(make_share(reference, file_ids), expires_at=until, request=f"{place}")
            number, _ = log.begin_share(share, now=AT, renew=True)
            log.finish_share(number, ShareState.CREATED, url=f"http://service/s/{place}")
    told(lake, "publish", "--to", (tmp_path / "mirror").as_uri())
    plan = json.loads(told(lake, "purge", "11", "--dry-run", "--json"))
    assert plan["targets"] == [(tmp_path / "mirror").as_uri()]
    places = {item["location"]: item["content"] for item in plan["outside"]}
    backup = (tmp_path / "backup").as_uri()
    assert "the next backup to it erases" in places.pop(backup)
    # Tests share the lake that this one is a copy of, and some of them make a backup of it.
    others = {place for place in places if place.startswith("file://")}
    places = {place: content for place, content in places.items() if place not in others}
    assert places.pop("http://service/s/1").startswith("valid until 20")
    assert places == {
        "/reports/both": "both.pdf, manifest",
        "/reports/none": "manifest",
        "http://service/s/0": "valid without an end",
    }
    shown = told(lake, "purge", "11", "--dry-run")
    assert "  report folder /reports/both: both.pdf, manifest\n" in shown
    assert "exports" in shown
    done = json.loads(told(lake, "purge", "11", "--yes", "--requested-by", "me", "--json"))
    assert done["erased"]["outside"] == plan["outside"]
    assert [copy["name"] for copy in done["copies"]] == plan["targets"]
    assert done["purged_at"] <= done["looked_at"]

    def find_places() -> list[str]:
        planned, again = (json.loads(told(lake, "purge", "11", option, "--json")) for option in ("--dry-run", "--yes"))
        assert planned["outside"] == again["erased"]["outside"]
        return [item["location"] for item in planned["outside"] if item["location"] not in others]

    assert find_places() == [backup], "the records of the others are erased, too"
    told(lake, "backup", str(tmp_path / "backup"))
    assert find_places() == []
    with duckdb.connect(str(lake / "catalog.duckdb"), read_only=True) as db:
        *_, (file_id, purged_at, by) = db.execute("FROM meta.purges").fetchall()
    assert (file_id, f"{purged_at.isoformat()}Z", by) == (11, done["purged_at"], "me")


def store(held: Lake, file_id: int, **values: Any) -> None:
    """Publish a file whose documents have these values, too, with its drift."""
    stored = list[FileVersion]()

    def add(made: FileVersion) -> FileVersion:
        document = json.dumps(json.loads(made.detail or b"") | values).encode()
        stored.append(made._replace(list_item=document, detail=document))
        return stored[-1]

    seq = commit(held, {file_id: 1}, change=add)
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
