"""moto's server of S3 and Glue, as a process on loopback."""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.request import Request, urlopen
from uuid import uuid4

if TYPE_CHECKING:
    from collections.abc import Iterator

_PROGRAM: Final = Path(__file__).parents[1] / "moto_server.py"
_START_SECONDS: Final = 60


@dataclass(frozen=True)
class S3Server:
    """A server of S3 and Glue on loopback. Of one that refuses unsigned requests, `bucket` is there already."""

    port: int
    bucket: str = ""

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
        """Create an empty bucket; return its URL. In a bucket that is there already: an empty folder."""
        bucket = f"b-{uuid4().hex[:12]}"
        if self.bucket:
            return f"s3://{self.bucket}/{bucket}"
        urlopen(Request(f"{self.endpoint}/{bucket}", method="PUT"), timeout=10).close()
        return f"s3://{bucket}"


@contextmanager
def start_moto() -> Iterator[S3Server]:
    """Yield moto's server as soon as it answers; it ends with the block."""
    server = S3Server(find_port())
    command = [sys.executable, str(_PROGRAM), "-p", str(server.port)]
    with tempfile.TemporaryFile() as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            end = time.monotonic() + _START_SECONDS
            while not _answers(server):
                if process.poll() is not None or time.monotonic() > end:
                    log.seek(0)
                    raise TimeoutError(log.read().decode(errors="replace"))
                time.sleep(0.05)
            yield server
        finally:
            process.kill()


def find_port() -> int:
    """Return a free port of loopback."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _answers(server: S3Server) -> bool:
    try:
        urlopen(f"{server.endpoint}/moto-api/data.json", timeout=10).close()
    except OSError:
        return False
    return True
