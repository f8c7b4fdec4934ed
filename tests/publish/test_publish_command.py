"""The commands around a publish: what a person types, sees and gets as an exit code."""

from __future__ import annotations

import json
from contextlib import redirect_stdout
from io import BytesIO, TextIOWrapper
from typing import TYPE_CHECKING, Any

import duckdb
import pytest

from pipeline.cli import main
from pipeline.emulator import Emulator
from pipeline.errors import ExitCode
from pipeline.lake.lake import Lake
from pipeline.monitoring.run_history import RunStatsFile
from pipeline.publish.object_store import open_store
from pipeline.publish.target_layout import is_part_path, remove_hash, to_unhashed_path
from tests.findings import printed_lines
from tests.lake.lake_builder import commit
from tests.lake.lake_copies import grow_once
from tests.lake.operations import told
from tests.processes import Answer, ran
from tests.publish.lake_history import History
from tests.publish.target_reading import all_differing, latest
from tests.sync.sync_harness import SEED, synced

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.lake.lake_copies import LakeCopies
    from tests.publish.conftest import S3Server


@pytest.fixture(scope="module")
def lakes(tmp_path_factory: pytest.TempPathFactory) -> LakeCopies:
    """A lake of several snapshots."""
    return grow_once(tmp_path_factory.mktemp("publish-command") / "lake", files=20)


@pytest.fixture
def lake(lakes: LakeCopies) -> Iterator[Path]:
    """A new copy of the lake."""
    with lakes.copied() as copy:
        yield copy


async def finished(emulator: Emulator, lake: Path, *arguments: str, **environment: str) -> Answer:
    """What a process of the command left behind."""
    return Answer(*await ran(emulator, lake, *arguments, **environment))


def test_publish_to_s3(lake: Path, s3_url: str, tmp_path: Path) -> None:
    """The command uploads once, then has nothing to do; an earlier snapshot is one more publish."""
    store = open_store(s3_url)
    first = json.loads(told(lake, "publish", "--to", s3_url, "--json"))["mirror"]
    assert (first["changed"], first["target"]) == (True, s3_url)
    assert "nothing to publish" in told(lake, "publish", "--to", s3_url)
    assert all_differing(lake, store, tmp_path / "copy") == []
    newest = latest(store).current.snapshot
    assert f"snapshot {newest - 1}: " in told(lake, "publish", "--to", s3_url, "--snapshot", str(newest - 1))
    assert latest(store).current.snapshot == newest - 1
    assert [item.snapshot for item in latest(store).earlier] == [newest]
    assert all_differing(lake, store, tmp_path / "copy") == []
    assert f"snapshot {newest}: " in told(lake, "publish", "--to", s3_url)
    assert latest(store).current.snapshot == newest
    text = told(lake, "status")
    assert f"{s3_url} has snapshot {newest}, published " in text


def test_publish_with_the_setting(lake: Path, tmp_path: Path) -> None:
    """Without options the command publishes to `publish_to`."""
    url = f"file://{tmp_path}/target"
    result = json.loads(told(lake, "publish", "--json", SCANLAKE_PUBLISH_TO=url))["mirror"]
    assert result["target"] == url
    assert all_differing(lake, open_store(url), tmp_path / "copy") == []


def test_a_publish_completes_what_a_killed_run_left(tmp_path: Path) -> None:
    """Rows that a run has committed and not published are published here first, then to the target."""
    history = History(tmp_path / "lake")
    number = history.sync({1: 2})
    with Lake(history.root, doing="sync") as lake:
        commit(lake, {2: 1})
    store = open_store(f"file://{tmp_path}/target")
    told(history.root, "publish", "--to", store.base_url)
    assert (latest(store).current.snapshot, latest(store).current.files) == (number + 1, 2)
    assert all_differing(history.root, store, tmp_path / "copy") == []


def test_documents_are_published_on_request(lake: Path, tmp_path: Path) -> None:
    """The documents stay at home unless publish_documents is set; then file_history is there, too."""
    for documents in (False, True):
        url = f"file://{tmp_path}/target-{documents}"
        told(lake, "publish", "--to", url, SCANLAKE_PUBLISH_DOCUMENTS=str(documents))
        store = open_store(url)
        assert any(store.list("raw")) is documents
        with duckdb.connect(f"{tmp_path}/target-{documents}/catalog.duckdb", read_only=True) as db:
            views = {row[0] for row in db.execute("SELECT view_name FROM duckdb_views() WHERE NOT internal").fetchall()}
            assert [name in views for name in ("file_history", "file_versions", "file_events")] == [documents] * 3
            if documents:
                assert db.execute("SELECT count(*) > 20 FROM file_history").fetchall() == [(True,)]


@pytest.mark.parametrize(
    ("url", "environment", "line"),
    [
        ("{s3}", {"AWS_ACCESS_KEY_ID": ""}, "no credentials were found"),
        ("s3://no-such-bucket-here/lake", {}, "the bucket does not exist"),
        ("{s3}", {"AWS_ENDPOINT_URL": "http://127.0.0.1:1"}, "the host cannot be reached"),
    ],
)
def test_a_wrong_target_is_one_line(
    lake: Path, s3_url: str, url: str, environment: dict[str, str], line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wrong credentials, bucket or host: one line with a hint, exit code 8, and `status` shows it."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value) if value else monkeypatch.delenv(name)
    if "AWS_ACCESS_KEY_ID" in environment:
        monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    target = url.format(s3=s3_url)
    text = told(lake, "publish", "--to", target, "--quiet", code=ExitCode.PUBLISH)
    assert text.count("\n") == 1
    assert line in text
    assert "testing-secret" not in text
    assert f"Publishing to {target} failed 1 time; nothing was published there before: " in told(lake, "status")
    assert line in told(lake, "status")


def test_wrong_usage(lake: Path) -> None:
    """Options that make no sense together, and URLs of other kinds, are exit code 2."""
    for options in ((), ("--snapshot", "1"), ("--with-images",)):
        message = told(lake, "publish", *options, code=2)
        assert "No target to publish to. Add --to URL, or set publish_to." in message.replace("\n", " ")
    assert "object store" in told(lake, "publish", "--to", "ftp://host/x", code=2)
    assert "publish_to" in told(lake, "publish", code=2, SCANLAKE_PUBLISH_AFTER_SYNC="true")
    assert "is not kept" in told(lake, "publish", "--to", f"file://{lake}-target", "--snapshot", "99", code=2)


async def test_publish_after_sync(tmp_path: Path) -> None:
    """A failed publish fails no sync; it is counted, alerted once, shown, and retried by the next sync."""
    lake, target = tmp_path / "lake", tmp_path / "target"
    metrics, alerts = tmp_path / "metrics.prom", tmp_path / "alerts"
    script = tmp_path / "alert.sh"
    script.write_text(f'#!/bin/sh\necho "$SCANLAKE_ALERT_EVENT $SCANLAKE_ALERT_EXIT_CODE" >> {alerts}\n')
    script.chmod(0o755)
    settings = {
        "SCANLAKE_PUBLISH_TO": f"file://{target}",
        "SCANLAKE_PUBLISH_AFTER_SYNC": "true",
        "SCANLAKE_METRICS_FILE": str(metrics),
        "SCANLAKE_ON_FAILURE": str(script),
    }
    async with Emulator(20, seed=SEED) as emulator:
        target.write_text("no folder")
        for failures in (1, 2):
            answer = await finished(emulator, lake, "sync", "--json", **settings)
            assert answer.code == 0, answer.err
            published = answer.json["publish"]
            assert published["failures"] == failures
            assert "Not a directory" in published["problem"]
            assert f'scanlake_publish_failures{{lake="{lake}"}} {failures}\n' in metrics.read_text()
        assert alerts.read_text() == "failed 8\n"
        assert RunStatsFile(lake).last.failures == 0
        page = tmp_path / "page.html"
        told(lake, "serve", "--write", str(page))
        assert "failed 2 times" in page.read_text()
        target.unlink()
        answer = await finished(emulator, lake, "sync", "--json", **settings)
        assert answer.json["publish"]["problem"] is None
    assert alerts.read_text() == "failed 8\nrecovered 0\n"
    assert f'scanlake_publish_failures{{lake="{lake}"}} 0\n' in metrics.read_text()
    assert "scanlake_last_publish_timestamp_seconds" in metrics.read_text()
    assert all_differing(lake, open_store(f"file://{target}"), tmp_path / "copy") == []
    told(lake, "serve", "--write", str(page))
    assert f"file://{target} has snapshot" in page.read_text()


async def test_purge_and_rollback_are_published(lake: Path, s3_url: str, tmp_path: Path, s3_server: S3Server) -> None:
    """A purge erases on the target at once; if that fails, the command says so and exits with 8."""
    store, environment = open_store(s3_url), s3_server.environment
    told(lake, "publish", "--to", s3_url)
    with Lake(lake, doing="look") as held:
        first, second = [file_id for file_id, _ in held.ledger.iter_files()][:2]
    async with Emulator(1, seed=SEED) as emulator:
        answer = await finished(emulator, lake, "rollback", "2", "--yes", "--json", **environment,
                                SCANLAKE_PUBLISH_TO=s3_url, SCANLAKE_PUBLISH_AFTER_SYNC="true")  # fmt: skip
        assert answer.json["publish"]["snapshot"] == latest(store).current.snapshot == answer.json["snapshot"]
        answer = await finished(emulator, lake, "purge", str(first), "--yes", "--json", **environment)
        assert answer.code == 0, answer.err
    assert answer.json["publish"]["problem"] is None
    assert [item.snapshot for item in latest(store).snapshots] == [answer.json["erased"]["snapshot"]]
    with Lake(lake, doing="look") as held:
        names = {to_unhashed_path(name) for name in held.ledger.part_names()}
    assert {remove_hash(item.path) for item in store.list() if is_part_path(item.path)} <= names
    assert all_differing(lake, store, tmp_path / "copy") == []
    async with Emulator(1, seed=SEED) as emulator:
        wrong = environment | {"AWS_ENDPOINT_URL": "http://127.0.0.1:1"}
        answer = await finished(emulator, lake, "purge", str(second), "--yes", **wrong)
        assert answer.code == ExitCode.PUBLISH
        assert f"{s3_url}: NOT ERASED; run `scanlake publish --to {s3_url}`" in answer.out


async def test_check_reads_the_target(lake: Path, s3_url: str) -> None:
    """The target has a finding of its own, with the published snapshot, or with the problem and a hint."""

    async def finding(**environment: str) -> dict[str, Any]:
        answer = await finished(emulator, lake, "check", "--json", SCANLAKE_PUBLISH_TO=s3_url, **environment)
        found: list[dict[str, Any]] = answer.json["findings"]
        return next(item for item in found if item["area"] == "target")

    async with Emulator(1, seed=SEED) as emulator:
        assert (await finding())["problem"] == "nothing published yet"
        assert not list(open_store(s3_url).list()), "nothing was written"
        told(lake, "publish", "--to", s3_url)
        assert "has snapshot " in (await finding())["problem"]
        wrong = await finding(AWS_ENDPOINT_URL="http://127.0.0.1:1")
    assert (wrong["severity"], wrong["exit_code"]) == ("error", ExitCode.PUBLISH)


async def test_one_lake_of_many(tmp_path: Path) -> None:
    """The id of a lake is its own: another lake with the same target is refused."""
    url = f"file://{tmp_path}/target"
    async with Emulator(5, seed=SEED) as emulator:
        for name in ("one", "two"):
            await synced(emulator, tmp_path / name)
    told(tmp_path / "one", "publish", "--to", url)
    assert "has the mirror of another lake" in told(tmp_path / "two", "publish", "--to", url, code=2)


def test_check_published(lake: Path, s3_url: str) -> None:
    """The check compares the objects with what was published, and names what is missing or differs: exit code 9."""
    store = open_store(s3_url)
    assert "not published" in told(lake, "check", "--published", code=2)
    assert "has no published lake" in told(lake, "check", "--published", code=2, SCANLAKE_PUBLISH_TO=s3_url)
    told(lake, "publish", "--to", s3_url)
    [line] = [line for line in told(lake, "check", "--published").splitlines() if s3_url in line]
    assert line.endswith(" objects compared")
    (path,) = [item.path for item in store.list("tables/files") if is_part_path(item.path)][:1]
    content = store.read(path)
    store.delete([path])
    assert _checked(lake) == [f"{path}: missing"]
    store.create(path, content[:-1])
    assert _checked(lake) == [f"{path}: {len(content) - 1:,} bytes instead of {len(content):,}"]
    store.delete([path])
    store.create(path, content[:-1] + b"x")
    assert _checked(lake) == []
    assert _checked(lake, "--read-data") == [f"{path}: sha256 differs"]
    store.delete([path])
    store.create(path, content)
    (empty, *_) = [item.path for item in store.list("tables/uploads") if "/empty-" in item.path]
    content = store.read(empty)
    store.delete([empty])
    assert _checked(lake) == [f"{empty}: missing"]
    store.create(empty, content[:-1] + b"x")
    assert _checked(lake, "--read-data") == [f"{empty}: sha256 differs"]
    store.delete([empty])
    store.create(empty, content)
    head = store.head("catalog.duckdb")
    assert head is not None
    store.swap("catalog.duckdb", b"other", head.version)
    assert _checked(lake) == ["catalog.duckdb: not what was published (sha256 differs)"]


def _checked(lake: Path, *options: str) -> list[str]:
    """What a check of the target finds."""
    with (
        redirect_stdout(TextIOWrapper(BytesIO(), "utf-8", write_through=True)) as out,
        pytest.raises(SystemExit) as ended,
    ):
        main(["check", "--published", *options, "--json", "--lake", str(lake)])
    lines = printed_lines(json.loads(out.buffer.getvalue()), "target")
    assert ended.value.code == (9 if lines else 0)
    return lines
