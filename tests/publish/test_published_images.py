"""Images on object storage: whole, uploaded once, erased with their files, and checked."""

from __future__ import annotations

import asyncio
import hashlib
from typing import TYPE_CHECKING, Any

import duckdb
import pytest

from pipeline.errors import ExitCode
from pipeline.findings import Severity
from pipeline.lake.kept_snapshots import RetentionRules
from pipeline.publish import mirror
from pipeline.publish.mirror import MirrorOptions
from pipeline.publish.object_store import open_store
from tests.findings import printed_lines
from tests.images.image_harness import Scene, errors_of, files_in, rows_of, scene
from tests.lake.operations import republish
from tests.publish.stopping_store import PublisherStopped, StoppingStore
from tests.publish.target_reading import latest, published

if TYPE_CHECKING:
    from pathlib import Path

    from tests.publish.conftest import S3Server

_WITH_IMAGES = MirrorOptions(images=True)


def _images_at(url: str) -> dict[str, bytes]:
    """The images of a target, by path."""
    store = open_store(url)
    return {item.path: store.read(item.path) for item in store.list("images")}


async def _publish(here: Scene, url: str, *arguments: str, **environment: str) -> dict[str, Any]:
    answer = await here.run("publish", "--to", url, "--json", *arguments, **environment)
    assert answer.code == ExitCode.OK, answer.lines
    mirror: dict[str, Any] = answer.json["mirror"]
    return mirror


async def test_readers_find_each_image_by_its_path(tmp_path: Path) -> None:
    """The table of the target's catalog leads a stock DuckDB to every image, byte for byte; new ones come alone."""
    url = f"file://{tmp_path / 'target'}"
    async with scene(tmp_path, 15, duplicate_ratio=0.3, duplicate_pictures=3) as here:
        assert (await here.fetch("--where", "files.file_id % 2 = 0")).code == ExitCode.OK
        assert (await _publish(here, url))["images"] is None
        assert _images_at(url) == {}
        first = await _publish(here, url, "--with-images")
        assert first["images"] == first["images_uploaded"] == len(files_in(here.lake)) > 0
        assert not (await _publish(here, url, "--with-images"))["changed"]
        assert (await here.fetch("--thumbnails")).code == ExitCode.OK
        second = await _publish(here, url, SCANLAKE_PUBLISH_IMAGES="true")
        assert second["images"] == len(files_in(here.lake)) == first["images"] + second["images_uploaded"]
        assert _images_at(url) == files_in(here.lake)
        with duckdb.connect(tmp_path / "target" / "catalog.duckdb", read_only=True) as db:
            rows = db.execute(
                "SELECT images.sha256, content FROM images"
                f" JOIN read_blob('{tmp_path}/target/images/*/*') ON ends_with(filename, path) WHERE state = 'stored'"
            ).fetchall()
        assert len(rows) == len(rows_of(here.lake))
        assert all(hashlib.sha256(content).hexdigest() == sha256 for sha256, content in rows)
        checked = await here.run("check", "--published", "--read-data", "--json")
        [line] = printed_lines(checked.json, "target", Severity.OK)
        assert (checked.code, f"{second['images']} images" in line) == (ExitCode.OK, True)


async def test_a_sync_publishes_the_images_that_it_fetched(tmp_path: Path) -> None:
    """With all three settings one sync brings its images to the target, and the next keeps them."""
    target = tmp_path / "target"
    environment = {
        "SCANLAKE_PUBLISH_TO": f"file://{target}",
        "SCANLAKE_PUBLISH_AFTER_SYNC": "true",
        "SCANLAKE_PUBLISH_IMAGES": "true",
        "SCANLAKE_IMAGES_AFTER_SYNC": "true",
    }
    async with scene(tmp_path, 8) as here:
        here.emulator.world.update(here.emulator.world.pick_random(3))
        answer = await here.run("sync", "--json", **environment)
        assert (answer.code, answer.json["publish"]["problem"]) == (ExitCode.OK, None), answer.lines
        assert _images_at(f"file://{target}") == files_in(here.lake)
        assert len(files_in(here.lake)) > 0
        assert (await here.run("sync", "--json", **environment)).code == ExitCode.OK
        record = latest(open_store(f"file://{target}"))
        assert record.images is not None
        assert record.images.pictures == len(files_in(here.lake))
        assert (await here.run("check", "--published", "--read-data")).code == ExitCode.OK


async def test_a_purge_erases_the_images_of_the_target(tmp_path: Path) -> None:
    """A purge deletes the images of its file from the target, too, and no other."""
    url = f"file://{tmp_path / 'target'}"
    async with scene(tmp_path, 12) as here:
        assert (await here.fetch()).code == ExitCode.OK
        before = (await _publish(here, url, "--with-images"))["images"]
        purged = min(key[0] for key in rows_of(here.lake))
        assert (await here.run("purge", str(purged), "--yes")).code == ExitCode.OK
        assert len(files_in(here.lake)) < before
        assert _images_at(url) == files_in(here.lake)
        assert latest(open_store(url)).images is not None
        assert (await here.run("check", "--published")).code == ExitCode.OK


async def test_damage_on_either_side_is_named_and_delays_no_table(tmp_path: Path) -> None:
    """A damaged image is exit code 9 and one line; tables and the other images are published all the same."""
    target = tmp_path / "target"
    async with scene(tmp_path, 12) as here:
        assert (await here.fetch()).code == ExitCode.OK
        damaged = sorted(files_in(here.lake))[3]
        file = here.lake / damaged
        whole = file.read_bytes()
        file.chmod(0o600)
        file.write_bytes(whole[:-1] + b"?")
        arguments = ("publish", "--to", f"file://{target}", "--with-images")
        answer = await here.run(*arguments)
        assert (answer.code, len(errors_of(answer))) == (ExitCode.DAMAGE, 1)
        assert file.name in errors_of(answer)[0]
        assert _images_at(f"file://{target}").keys() == files_in(here.lake).keys() - {damaged}
        assert latest(open_store(f"file://{target}")).current.files == 12
        assert (await here.run("check", "--published")).code == ExitCode.OK
        assert (await here.run(*arguments)).code == ExitCode.DAMAGE, "not repaired yet"
        file.write_bytes(whole)
        assert (await here.run(*arguments)).code == ExitCode.OK
        cut, changed, missing = (target / path for path in sorted(files_in(here.lake))[:3])
        for path, content in ((cut, b"cut"), (changed, changed.read_bytes()[:-1] + b"?")):
            path.chmod(0o600)
            path.write_bytes(content)
        missing.unlink()
        plain = (await here.run("check", "--published", "--json")).json
        lines = [
            f"images/{cut.parent.name}/{cut.name}: 3 bytes",
            f"images/{missing.parent.name}/{missing.name}: missing",
        ]
        found = printed_lines(plain, "target")
        assert len(found) == len(lines)
        assert all(any(line in other for other in found) for line in lines)
        thorough = await here.run("check", "--published", "--read-data", "--json")
        assert thorough.code == ExitCode.DAMAGE
        assert len(printed_lines(thorough.json, "target")) == 3


async def test_a_catalog_of_views_has_the_table_of_images_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A target whose catalog is too large to be copied has the same table, as a view; only the newest object stays."""
    target = tmp_path / "target"
    store = open_store(f"file://{target}")
    monkeypatch.setattr(mirror, "_MAX_TABLES_BYTES", 0)
    at_once = MirrorOptions(images=True, retention=RetentionRules(seconds=0))
    async with scene(tmp_path, 12) as here:
        for arguments in (("--where", "files.file_id % 2 = 0"), ()):
            assert (await here.fetch(*arguments)).code == ExitCode.OK
            published(here.lake, store, at_once)
            with duckdb.connect(target / "catalog.duckdb", read_only=True) as db:
                db.execute(f"ATTACH '{here.lake}/catalog.duckdb' AS local (READ_ONLY)")
                for one, other in (("main", "local"), ("local", "main")):
                    assert not db.execute(f"FROM {one}.images EXCEPT ALL FROM {other}.images").fetchall()
                assert db.execute("SELECT count(*) FROM images").fetchone() == (len(rows_of(here.lake)),)
            await asyncio.sleep(1.1)
        published(here.lake, store, at_once, number=latest(store).current.snapshot)
        tables = [item.path for item in store.list("tables/images")]
        assert len(tables) == 1
        assert (await here.run("check", "--published", SCANLAKE_PUBLISH_TO=f"file://{target}")).code == ExitCode.OK


async def test_a_publish_that_stops_at_any_write_is_completed(tmp_path: Path) -> None:
    """Whichever write stops the publisher, the next publish has every image, and what a purge erased is not there."""
    async with scene(tmp_path, 6) as here:
        assert (await here.fetch()).code == ExitCode.OK
        count = StoppingStore()
        published(here.lake, count, _WITH_IMAGES)
        for stop_at in (number for number, path in enumerate(count.written, 1) if not path.startswith("tables/")):
            store = StoppingStore(stop_at=stop_at)
            with pytest.raises(PublisherStopped):
                published(here.lake, store, _WITH_IMAGES)
            repeated = store.fork()
            published(here.lake, repeated, MirrorOptions(images=stop_at % 2 == 0))
            images = {item.path for item in repeated.list("images")}
            assert images <= files_in(here.lake).keys()
            assert stop_at % 2 or images == files_in(here.lake).keys(), stop_at
        left = {item.path for item in repeated.list("images")}
        purged = min(key[0] for key in rows_of(here.lake))
        answer = await here.run("purge", str(purged), "--yes")
        assert answer.code == ExitCode.PUBLISH, "no other process reaches this target"
        published(here.lake, repeated, MirrorOptions())
        assert {item.path for item in repeated.list("images")} == left & files_in(here.lake).keys()


async def test_a_publish_without_images_costs_what_it_did(tmp_path: Path) -> None:
    """A lake without images is listed once, with the option or without it."""
    async with scene(tmp_path, 6) as here:
        store = _CountingStore()
        published(here.lake, store, _WITH_IMAGES)
        assert store.lists == ["", "images"]
        republish(here.lake)
        published(here.lake, store)
        assert store.lists == ["", "images", ""]


class _CountingStore(StoppingStore):
    def __init__(self) -> None:
        super().__init__()
        self.lists: list[str] = []

    def list(self, prefix: str = "") -> Any:
        """List and count."""
        self.lists.append(prefix)
        return super().list(prefix)


async def test_images_on_s3(tmp_path: Path, s3_server: S3Server, s3_url: str) -> None:
    """Images go to S3 and are checked and erased there as in a folder."""
    async with scene(tmp_path, 10) as here:
        assert (await here.fetch()).code == ExitCode.OK
        await _publish(here, s3_url, "--with-images", **s3_server.environment)
        assert _images_at(s3_url) == files_in(here.lake)
        purged = min(key[0] for key in rows_of(here.lake))
        assert (await here.run("purge", str(purged), "--yes", **s3_server.environment)).code == ExitCode.OK
        assert _images_at(s3_url) == files_in(here.lake)
        checked = await here.run("check", "--published", "--read-data", **s3_server.environment)
        assert checked.code == ExitCode.OK, checked.lines
