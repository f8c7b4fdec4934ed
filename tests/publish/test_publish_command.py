"""The commands around a publish: what a person types, sees and gets as an exit code."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import duckdb
import pytest

from pipeline.emulator import Emulator
from pipeline.errors import ExitCode
from pipeline.lake.lake import Lake
from pipeline.lake.layout import LakeLayout
from pipeline.monitoring.run_history import RunStatsFile
from pipeline.publish.check_published import check_published
from pipeline.publish.object_store import open_store
from tests.findings import lines_of, printed_lines
from tests.lake.corruption import flip
from tests.lake.lake_builder import commit
from tests.lake.operations import called, told
from tests.monitoring.monitoring_harness import Collector
from tests.processes import Answer, forked, ran
from tests.publish.target_reading import differing, latest
from tests.sync.sync_harness import SEED

if TYPE_CHECKING:
    from pathlib import Path

    from pipeline.publish.object_store import ObjectStore
    from tests.publish.lake_history import History


@pytest.fixture
def lake(history: History) -> Path:
    """The folder of the copy."""
    return history.root


@pytest.fixture
def url(tmp_path: Path) -> str:
    """URL of a folder that does not exist."""
    return f"file://{tmp_path}/target"


def test_publish_to_s3(history: History, s3_url: str, tmp_path: Path) -> None:
    """The command uploads once, then has nothing to do; what changed is one more publish."""
    lake, store = history.root, open_store(s3_url)
    first = json.loads(told(lake, "publish", "--to", s3_url, "--json"))["mirror"]
    assert (first["changed"], first["target"]) == (True, s3_url)
    assert "nothing to publish" in told(lake, "publish", "--to", s3_url)
    assert differing(lake, store, tmp_path / "copy") == []
    newest = history.sync({1: 3})
    assert f"snapshot {newest}: " in told(lake, "publish", "--to", s3_url)
    assert latest(store).catalog.snapshot == newest
    assert differing(lake, store, tmp_path / "copy") == []
    text = told(lake, "status")
    assert f"{s3_url} has snapshot {newest}, published " in text


def test_a_publish_completes_what_a_killed_run_left(lake: Path, url: str, tmp_path: Path) -> None:
    """Rows that a run has committed and not published are published here first, then to `publish_to`."""
    with Lake(lake, doing="sync") as held:
        number = held.ledger.next_snapshot()
        commit(held, {900: 1})
    result = json.loads(told(lake, "publish", "--json", SCANLAKE_PUBLISH_TO=url))["mirror"]
    assert result["target"] == url
    current = latest(open_store(url)).catalog
    assert (current.snapshot, current.files) == (number, 42)
    assert differing(lake, open_store(url), tmp_path / "copy") == []


def test_a_catalog_that_was_changed_is_not_published(lake: Path, url: str, tmp_path: Path) -> None:
    """A catalog that somebody has written to since its publish is built again before it is uploaded."""
    flip(lake / "catalog.duckdb")
    told(lake, "publish", "--to", url)
    assert differing(lake, open_store(url), tmp_path / "copy") == []
    assert called(lake, "check", "--published").code == ExitCode.OK
    assert "nothing to publish" in told(lake, "publish", "--to", url)


def test_documents_are_published_on_request(lake: Path, tmp_path: Path) -> None:
    """The documents stay at home unless publish_documents is set; what they show of versions is there in any case."""
    for documents in (False, True):
        url = f"file://{tmp_path}/target-{documents}"
        told(lake, "publish", "--to", url, SCANLAKE_PUBLISH_DOCUMENTS=str(documents))
        store = open_store(url)
        assert any(store.list("documents")) is documents
        with duckdb.connect(f"{tmp_path}/target-{documents}/catalog.duckdb", read_only=True) as db:
            shown = {row[0] for row in db.execute("SELECT table_name FROM information_schema.tables").fetchall()}
            assert {"file_versions", "file_events"} <= shown
            paths = [f"{tmp_path}/target-{documents}/{item.path}" for item in store.list("documents")]
            if documents:
                assert db.execute(f"SELECT count(*) > 20 FROM read_parquet({paths})").fetchall() == [(True,)]


def test_a_wrong_target_is_one_line(lake: Path, s3_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host that is not there: one line, exit code 8, and `status` shows it."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    text = told(lake, "publish", "--to", s3_url, "--quiet", code=ExitCode.PUBLISH)
    assert text.count("\n") == 1
    assert "the host cannot be reached" in text
    assert "testing-secret" not in text
    status = told(lake, "status")
    assert f"Publishing to {s3_url} failed 1 time; nothing was published there before: " in status
    assert "the host cannot be reached" in status


def test_wrong_usage(lake: Path) -> None:
    """Options that make no sense together, and URLs of other kinds, are exit code 2."""
    for options in ((), ("--with-images",)):
        message = told(lake, "publish", *options, code=2)
        assert "No target to publish to. Add --to URL, or set publish_to." in message.replace("\n", " ")
    assert "object store" in told(lake, "publish", "--to", "ftp://host/x", code=2)
    assert "publish_to" in told(lake, "publish", code=2, SCANLAKE_PUBLISH_AFTER_SYNC="true")


async def finished(emulator: Emulator, lake: Path, *arguments: str, **environment: str) -> Answer:
    """What a process of the command left behind."""
    return Answer(*await ran(emulator, lake, *arguments, **environment))


async def test_publish_after_sync(tmp_path: Path) -> None:
    """A failed publish fails no sync; it is counted, alerted once, shown, and retried by the next sync."""
    lake, target = tmp_path / "lake", tmp_path / "target"
    metrics, hook = tmp_path / "metrics.prom", Collector()
    settings = {
        "SCANLAKE_PUBLISH_TO": f"file://{target}",
        "SCANLAKE_PUBLISH_AFTER_SYNC": "true",
        "SCANLAKE_METRICS_FILE": str(metrics),
    }
    with hook.serving():
        settings["SCANLAKE_NOTIFY_URL"] = hook.url
        async with Emulator(5, seed=SEED) as emulator:
            target.write_text("no folder")
            for failures in (1, 2):
                answer = await finished(emulator, lake, "sync", "--json", **settings)
                assert answer.code == 0, answer.err
                published = answer.json["publish"]
                assert published["failures"] == failures
                assert "Not a directory" in published["problem"]
                assert f'scanlake_publish_failures{{lake="{lake}"}} {failures}\n' in metrics.read_text()
            assert [(alert["event"], alert["exit_code"]) for alert in hook.bodies] == [("failed", 8)]
            assert RunStatsFile(lake).last.failures == 0
            page = tmp_path / "page.html"
            told(lake, "serve", "--write", str(page))
            assert "failed 2 times" in page.read_text()
            target.unlink()
            answer = await finished(emulator, lake, "sync", "--json", **settings)
            assert answer.json["publish"]["problem"] is None
    assert [(alert["event"], alert["exit_code"]) for alert in hook.bodies[1:]] == [("recovered", 0)]
    assert f'scanlake_publish_failures{{lake="{lake}"}} 0\n' in metrics.read_text()
    assert "scanlake_last_publish_timestamp_seconds" in metrics.read_text()
    assert differing(lake, open_store(f"file://{target}"), tmp_path / "copy") == []
    told(lake, "serve", "--write", str(page))
    assert f"file://{target} has snapshot" in page.read_text()


def test_purge_and_rollback_are_published(history: History, url: str, tmp_path: Path) -> None:
    """A purge erases on the target at once; if that fails, the command says so and exits with 8."""
    lake, store, number = history.root, open_store(url), history.sync({1: 3})
    told(lake, "publish", "--to", url)
    settings = {"SCANLAKE_PUBLISH_TO": url, "SCANLAKE_PUBLISH_AFTER_SYNC": "true"}
    rolled_back = forked(lake, "rollback", str(number - 1), "--yes", "--json", **settings).json
    assert rolled_back["publish"]["snapshot"] == latest(store).catalog.snapshot == rolled_back["snapshot"]
    purged = forked(lake, "purge", "777123", "--yes", "--json").json
    assert purged["publish"]["problem"] is None
    assert latest(store).catalog.snapshot == purged["erased"]["snapshot"]
    assert differing(lake, store, tmp_path / "copy") == []
    (tmp_path / "target").rename(tmp_path / "moved")
    (tmp_path / "target").write_text("no folder")
    answer = forked(lake, "purge", "2", "--yes")
    assert answer.code == ExitCode.PUBLISH
    assert f"{url}: NOT ERASED: {url} has no published lake. " in answer.out


def test_check_reads_the_target(lake: Path, url: str, tmp_path: Path) -> None:
    """The target has a finding of its own, with the published snapshot, or with the problem and a hint."""

    def finding() -> dict[str, Any]:
        found: list[dict[str, Any]] = called(lake, "check", "--json", SCANLAKE_PUBLISH_TO=url).json["findings"]
        return next(item for item in found if item["area"] == "target")

    assert finding()["problem"] == "nothing published yet"
    assert not list(open_store(url).list()), "nothing was written"
    told(lake, "publish", "--to", url)
    assert "has snapshot " in finding()["problem"]
    (tmp_path / "target" / "latest.json").chmod(0o600)
    (tmp_path / "target" / "latest.json").write_text("[]")
    wrong = finding()
    assert (wrong["severity"], wrong["exit_code"]) == ("error", ExitCode.PUBLISH)


def test_check_published(history: History, lake: Path, url: str) -> None:
    """The check compares the objects with what was published, and names what is missing or differs: exit code 9."""
    store = open_store(url)
    assert "not published" in told(lake, "check", "--published", code=2)
    assert "has no published lake" in told(lake, "check", "--published", code=2, SCANLAKE_PUBLISH_TO=url)
    told(lake, "publish", "--to", url, SCANLAKE_PUBLISH_DOCUMENTS="true")
    [line] = [line for line in told(lake, "check", "--published").splitlines() if url in line]
    assert line.endswith(f" {len(list(store.list('documents'))) + 1} objects compared")
    path, other = sorted(item.path for item in store.list("documents"))[:2]
    for name in (path, other):
        content = store.read(name)
        store.delete([name])
        assert _compare(lake, store) == [f"{name}: missing"]
        if name == path:
            store.create(name, content[:-1])
            assert _compare(lake, store) == [f"{name}: {len(content) - 1:,} bytes instead of {len(content):,}"]
            store.delete([name])
        store.create(name, content[:-1] + b"x")
        assert _compare(lake, store) == []
        assert _compare(lake, store, read_data=True) == [f"{name}: sha256 differs"]
        store.delete([name])
        store.create(name, content)
    history.sync({1: 2})
    told(lake, "publish", "--to", url, SCANLAKE_PUBLISH_DOCUMENTS="true")
    for name in (path, "catalog.duckdb"):
        store.delete([name])
        assert f"{name}: missing" in _compare(lake, store)
        told(lake, "publish", "--to", url, SCANLAKE_PUBLISH_DOCUMENTS="true")
        assert _compare(lake, store, read_data=True) == [], "the hint is to publish again"
    head = store.head("catalog.duckdb")
    assert head is not None
    store.swap("catalog.duckdb", b"other", head.version)
    answer = called(lake, "check", "--published", "--json")
    expected = ["catalog.duckdb: not what was published (sha256 differs)"]
    assert (answer.code, printed_lines(answer.json, "target")) == (ExitCode.DAMAGE, expected)


def _compare(lake: Path, store: ObjectStore, *, read_data: bool = False) -> list[str]:
    """What a check of the target finds."""
    return lines_of(check_published(LakeLayout(lake), store, read_data=read_data))
