"""Fixtures of the tests of publishing: object stores, lakes with a history, lakes with images."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from obstore.store import MemoryStore

from pipeline.publish.stores import CloudStore, open_store
from tests.images.image_harness import PicturedLakes, make_pictured_lakes
from tests.made_once import make_once
from tests.publish.lake_history import Changes, History
from tests.publish.s3_server import S3Server, start_moto

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pipeline.publish.object_store import ObjectStore

# Read at once: a test sees no variable of this name.
_PORT = os.environ.get("SCANLAKE_TEST_S3_PORT")
_STARTED = S3Server(int(_PORT), os.environ["SCANLAKE_TEST_S3_BUCKET"]) if _PORT else None


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """One server for the session, moto's or one that `make soak-publish` has started; each test has its own bucket."""
    if _STARTED is not None:
        yield _STARTED
        return
    with start_moto() as server:
        yield server


@pytest.fixture
def s3_url(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """URL of a folder in a new bucket; the environment leads there."""
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    return f"{s3_server.create_bucket()}/lake"


@pytest.fixture(scope="session")
def changes(tmp_path_factory: pytest.TempPathFactory) -> Changes:
    """One lake of eight snapshots for the whole run; no test writes to it."""
    return make_once(tmp_path_factory, "changes", Changes.make)


@pytest.fixture
def history(changes: Changes, tmp_path: Path) -> History:
    """A copy of the lake of small changes."""
    return changes.copy(tmp_path / "lake")


@pytest.fixture(scope="session")
def pictured(tmp_path_factory: pytest.TempPathFactory) -> PicturedLakes:
    """Lakes with images; no test writes to them."""
    return make_pictured_lakes(tmp_path_factory)


@pytest.fixture(params=["memory", "file", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    """Each kind of store, empty."""
    if request.param == "memory":
        return CloudStore("memory://test", MemoryStore())
    url = f"file://{tmp_path}/target" if request.param == "file" else request.getfixturevalue("s3_url")
    return open_store(url)
