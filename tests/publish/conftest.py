"""Object stores of the tests: moto's server as a process on loopback, a folder, and memory."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.request import Request, urlopen
from uuid import uuid4

import pytest
from obstore.store import MemoryStore

from pipeline.publish.cloud_store import CloudStore
from pipeline.publish.object_store import ObjectStore, open_store
from tests.images.image_harness import PicturedLakes, make_pictured_lakes
from tests.made_once import make_once
from tests.publish.lake_history import Changes, History

if TYPE_CHECKING:
    from collections.abc import Iterator

MOTO_SERVER: Final = Path(__file__).parents[1] / "moto_server.py"
_START_SECONDS: Final = 60


@dataclass(frozen=True)
class S3Server:
    """A server of S3 and Glue on loopback."""

    port: int

    @property
    def endpoint(self) -> str:
        """Its URL."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        """What leads the libraries of S3 and Glue to it, and to no other service."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "testing-secret",
            "AWS_REGION": "us-east-1",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_METADATA_ENDPOINT": "http://127.0.0.1:1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def create_bucket(self) -> str:
        """Create an empty bucket; return its URL."""
        bucket = f"b-{uuid4().hex[:12]}"
        urlopen(Request(f"{self.endpoint}/{bucket}", method="PUT"), timeout=10).close()
        return f"s3://{bucket}"


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """One server for the session; each test creates its own bucket."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = tmp_path_factory.mktemp("moto") / "log"
    command = [sys.executable, str(MOTO_SERVER), "-p", str(port)]
    with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=output) as process:
        try:
            _wait_for(process, port, log)
            yield S3Server(port)
        finally:
            process.kill()


def _wait_for(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    end = time.monotonic() + _START_SECONDS
    while time.monotonic() < end:
        assert process.poll() is None, log.read_text()
        try:
            connection = HTTPConnection("127.0.0.1", port, timeout=10)
            connection.request("GET", "/moto-api/data.json")
            assert connection.getresponse().status == 200
        except OSError:
            time.sleep(0.05)
        else:
            connection.close()
            return
    pytest.fail(f"moto's server did not start: {log.read_text()}")


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
    if request.param == "file":
        return open_store(f"file://{tmp_path}/target")
    return open_store(request.getfixturevalue("s3_url"))
