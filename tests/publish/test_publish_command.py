"""The commands around a publish: what a person types, sees and gets as an exit code."""

from __future__ import annotations

import asyncio
import hashlib
import json
from typing import TYPE_CHECKING, Any

import duckdb
import pytest

from pipeline.emulator import Emulator, ImageOptions
from pipeline.errors import ExitCode
from pipeline.lake.lake import Lake
from pipeline.output.findings import Severity
from pipeline.publish.stores import open_store
from tests.findings import printed_lines
from tests.images.image_harness import Scene, files_in, rows_of
from tests.lake.corruption import flip
from tests.lake.lake_builder import commit
from tests.lake.operations import called, republish, told
from tests.lake_copies import copy_lake
from tests.monitoring.monitoring_harness import Collector
from tests.processes import forked
from tests.publish.target_reading import differing, latest
from tests.sync.sync_harness import SEED

if TYPE_CHECKING:
    from pathlib import Path

    from tests.images.image_harness import PicturedLakes
    from tests.publish.lake_history import History


@pytest.fixture
def url(tmp_path: Path) -> str:
    """URL of a folder that does not exist."""
    return f"file://{tmp_path}/target"


def test_publish_to_s3(history: History, s3_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host that is not there is one line and exit code 8; then the command uploads once, and later what changed.

    `status` tells the failure, then the published snapshot. Documents stay at home.
    """
    lake, store = history.root, open_store(s3_url)
    with monkeypatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
        text = told(lake, "publish", "--to", s3_url, "--quiet", code=ExitCode.PUBLISH)
    assert (text.count("\n"), "the host cannot be reached" in text, "testing-secret" in text) == (1, True, False)
    status = told(lake, "status", code=1)
    assert f"Publishing to {s3_url} failed 1 time; nothing was published there before: " in status
    first = json.loads(told(lake, "publish", "--to", s3_url, "--json"))["mirror"]
    assert (first["changed"], first["target"]) == (True, s3_url)
    assert "nothing to publish" in told(lake, "publish", "--to", s3_url)
    newest = history.sync({1: 3})
    assert f"has snapshot {newest - 1}, the lake has {newest}" in told(lake, "check", "--published")
    assert f"snapshot {newest}: " in told(lake, "publish", "--to", s3_url)
    assert latest(store).catalog.snapshot == newest
    assert differing(lake, store, tmp_path / "copy") == []
    assert list(store.list("documents")) == []
    assert f"{s3_url} has snapshot {newest}, published " in told(lake, "status")


def test_a_lake_with_a_rebuilt_ledger_publishes_on(history: History, url: str, tmp_path: Path) -> None:
    """A mirror and tables that show a snapshot from before the kept ones are renewed after a lost ledger, too.

    They stay its targets, which a purge erases.
    """
    lake, places = history.root, {"SCANLAKE_PUBLISH_TO": url, "SCANLAKE_ICEBERG_LOCATION": url}
    told(lake, "publish", code=0, **places)
    for stamp in range(4):
        history.sync({1: stamp})
    for path in [*sorted(lake.glob("snapshots/*"))[:-1], *lake.glob("ledger.sqlite*")]:
        path.unlink()
    told(lake, "repair")
    told(lake, "publish", code=0, **places)
    assert json.loads(told(lake, "snapshots", "--json"))["snapshots"][0]["state"] == "deleted"
    assert differing(lake, open_store(url), tmp_path / "read") == []
    assert f"{url}: erased" in told(lake, "purge", "1", "--yes")


def test_what_is_published_is_what_the_lake_has(history: History, url: str, tmp_path: Path) -> None:
    """A catalog that somebody has written to since its publish is built again before it is uploaded.

    Rows that a killed run has committed and not published are published here first, then to `publish_to`.
    """
    lake, store = history.root, open_store(url)
    flip(lake / "catalog.duckdb")
    told(lake, "publish", "--to", url)
    assert differing(lake, store, tmp_path / "copy") == []
    assert "nothing to publish" in told(lake, "publish", "--to", url)
    with Lake(lake, doing="sync") as held:
        number = held.ledger.next_snapshot()
        commit(held, {900: 1})
    result = json.loads(told(lake, "publish", "--json", SCANLAKE_PUBLISH_TO=url))["mirror"]
    current = latest(store).catalog
    assert (result["target"], current.snapshot, current.files) == (url, number, 42)
    assert differing(lake, store, tmp_path / "copy") == []


def test_wrong_usage(history: History) -> None:
    """Options that make no sense together, and URLs of other kinds, are exit code 2."""
    lake = history.root
    assert "No target to publish to. Add --to URL, or set publish_to." in told(lake, "publish", code=2)
    assert "must be a URL such as s3://" in told(lake, "publish", "--to", "ftp://host/x", code=2)
    assert "publish_to" in told(lake, "publish", code=2, SCANLAKE_PUBLISH_AFTER_SYNC="true")


async def test_publish_after_sync(tmp_path: Path, url: str) -> None:
    """A failed publish fails no sync; it is counted, alerted once, shown, and retried by the next sync.

    With all three settings one sync brings its images to the target, and the next publish keeps them.
    """
    target, metrics, page, hook = (tmp_path / "target"), tmp_path / "metrics.prom", tmp_path / "page.html", Collector()
    settings = {
        "SCANLAKE_PUBLISH_TO": url,
        "SCANLAKE_PUBLISH_AFTER_SYNC": "true",
        "SCANLAKE_METRICS_FILE": str(metrics),
    }
    with hook.serving():
        settings["SCANLAKE_NOTIFY_URL"] = hook.url
        async with Emulator(5, seed=SEED, images=ImageOptions()) as emulator:
            here = Scene(emulator, tmp_path / "lake")
            target.write_text("no folder")
            for failures in (1, 2):
                answer = await here.run("sync", "--json", **settings)
                assert answer.code == 0, answer.err
                published = answer.json["publish"]
                assert published["failures"] == failures
                assert "Not a directory" in published["problem"]
                assert f'scanlake_publish_failures{{lake="{here.lake}"}} {failures}\n' in metrics.read_text()
            assert [(alert["event"], alert["exit_code"]) for alert in hook.bodies] == [("failed", 8)]
            assert f'scanlake_consecutive_failures{{lake="{here.lake}"}} 0\n' in metrics.read_text()
            told(here.lake, "serve", "--write", str(page))
            assert "failed 2 times" in page.read_text()
            target.unlink()
            settings |= {"SCANLAKE_PUBLISH_IMAGES": "true", "SCANLAKE_IMAGES_AFTER_SYNC": "true"}
            answer = await here.run("sync", "--json", **settings)
            assert answer.json["publish"]["problem"] is None
    assert [(alert["event"], alert["exit_code"]) for alert in hook.bodies[1:]] == [("recovered", 0)]
    assert f'scanlake_publish_failures{{lake="{here.lake}"}} 0\n' in metrics.read_text()
    assert "scanlake_last_publish_timestamp_seconds" in metrics.read_text()
    assert differing(here.lake, open_store(url), tmp_path / "copy") == []
    assert files_in(target) == files_in(here.lake) != {}
    republish(here.lake)
    assert (await asyncio.to_thread(forked, here.lake, "publish", **settings)).code == 0
    assert f"{url} has snapshot" in told(here.lake, "status")
    record = latest(open_store(url)).images
    assert record is not None
    assert record.count == len(files_in(here.lake))


def test_purge_and_rollback_are_published(history: History, url: str, tmp_path: Path) -> None:
    """Each brings its new snapshot to the target, by a process of its own."""
    lake, store, number = history.root, open_store(url), history.sync({1: 3})
    told(lake, "publish", "--to", url)
    settings = {"SCANLAKE_PUBLISH_TO": url, "SCANLAKE_PUBLISH_AFTER_SYNC": "true"}
    rolled_back = forked(lake, "rollback", str(number - 1), "--yes", "--json", **settings).json
    assert rolled_back["publish"]["snapshot"] == latest(store).catalog.snapshot == rolled_back["snapshot"]
    purged = forked(lake, "purge", "777123", "--yes", "--json").json
    assert purged["publish"]["problem"] is None
    assert latest(store).catalog.snapshot == purged["erased"]["snapshot"]
    assert differing(lake, store, tmp_path / "copy") == []


def test_readers_find_each_image_by_its_path(pictured: PicturedLakes, url: str, tmp_path: Path) -> None:
    """The table of the target's catalog leads a stock DuckDB to every image, byte for byte; new ones come alone.

    A purge deletes the images of its file from the target, too, and no other.
    """
    half, lake, target = copy_lake(pictured.half, tmp_path / "half"), tmp_path / "lake", tmp_path / "target"
    copy_lake(pictured.whole, lake)

    def publish(of: Path, *arguments: str, **environment: str) -> dict[str, Any]:
        mirror: dict[str, Any] = called(of, "publish", "--to", url, "--json", *arguments, **environment).json["mirror"]
        return mirror

    assert publish(half)["images"] is None
    assert files_in(target) == {}
    first = publish(half, "--set", "publish_images=true")
    assert first["images"] == first["images_uploaded"] == len(files_in(half)) > 0
    assert not publish(half, "--set", "publish_images=true")["changed"]
    second = publish(lake, SCANLAKE_PUBLISH_IMAGES="true")
    assert second["images"] == len(files_in(lake)) == first["images"] + second["images_uploaded"]
    assert files_in(target) == files_in(lake)
    with duckdb.connect(target / "catalog.duckdb", read_only=True) as db:
        rows = db.execute(
            "SELECT images.sha256, content FROM images"
            f" JOIN read_blob('{target}/images/*/*') ON ends_with(filename, path) WHERE state = 'stored'"
        ).fetchall()
    assert len(rows) == len(rows_of(lake))
    assert all(hashlib.sha256(content).hexdigest() == sha256 for sha256, content in rows)
    assert forked(lake, "purge", str(min(key[0] for key in rows_of(lake))), "--yes").code == ExitCode.OK
    assert len(files_in(lake)) < second["images"]
    assert files_in(target) == files_in(lake)
    assert latest(open_store(url)).images is not None


def test_damage_on_the_target_is_named(pictured: PicturedLakes, url: str, tmp_path: Path) -> None:
    """A check compares every object with what was published, and names what is missing or differs: exit code 9.

    Nothing published is no damage. The hint is right: without the damaged objects, a publish makes the target whole.
    """
    lake, target = copy_lake(pictured.whole, tmp_path / "lake"), tmp_path / "target"
    settings = {"SCANLAKE_PUBLISH_TO": url, "SCANLAKE_PUBLISH_IMAGES": "true"}
    assert "not published" in told(lake, "check", "--published", code=2)
    assert "has no published lake" in told(lake, "check", "--published", code=2, **settings)
    [line] = printed_lines(called(lake, "check", "--json", **settings).json, "target", Severity.OK)
    assert (line, target.exists()) == (f"{url}: nothing published yet", False)
    for number in (901, 902):
        with Lake(lake, doing="sync") as held:
            commit(held, {number: 1})
    told(lake, "backup", url)
    told(lake, "publish", code=0, **settings)
    documents, images = (sorted(path for path in target.glob(glob)) for glob in ("documents/*", "images/*/*"))
    parts = len(documents) + len(list(target.glob("tables/*/data/*")))
    [line] = printed_lines(called(lake, "check", "--published", "--read-data", "--json").json, "target", Severity.OK)
    assert line.endswith(f": {parts + 2} objects, {len(images)} images compared")
    plain, thorough = [], []
    for missing, cut, changed in (documents[:3], images[:3]):
        names, size = [str(path.relative_to(target)) for path in (missing, cut, changed)], cut.stat().st_size
        plain += [f"{names[0]}: missing", f"{names[1]}: {size - 1:,} bytes instead of {size:,}"]
        thorough.append(f"{names[2]}: sha256 differs")
        missing.unlink()
        for path, end in ((cut, b""), (changed, b"?")):
            path.chmod(0o600)
            path.write_bytes(path.read_bytes()[:-1] + end)
    for options, expected in (((), plain), (("--read-data",), plain + thorough)):
        answer = called(lake, "check", "--published", "--json", *options)
        assert (answer.code, sorted(printed_lines(answer.json, "target"))) == (ExitCode.DAMAGE, sorted(expected))
    for path in (*documents[1:3], *images[1:3]):
        path.unlink()
    told(lake, "publish", code=0, **settings)
    told(lake, "check", "--published", "--read-data")
    catalog, record = target / "catalog.duckdb", target / "latest.json"
    for content, problem in ((b"other", "not what was published (sha256 differs)"), (None, "missing")):
        catalog.unlink()
        if content is not None:
            catalog.write_bytes(content)
        answer = called(lake, "check", "--published", "--json")
        assert printed_lines(answer.json, "target") == [f"catalog.duckdb: {problem}"]
    record.chmod(0o600)
    record.write_text("[]")
    answer = called(lake, "check", "--json", **settings)
    assert (len(printed_lines(answer.json, "target")), answer.code) == (1, ExitCode.PUBLISH)
