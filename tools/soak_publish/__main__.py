"""`make soak-publish`: publishing to SeaweedFS, its REST catalog, Postgres and Glue (moto), on loopback.

For each kind of catalog: the history of a lake row by row, two publishers at once, and many publishes beside pinned
readers. Then a large lake. At last the tests of publishing, with SeaweedFS as their store.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

from tests.publish.s3_server import start_moto
from tools.soak_publish import services

if TYPE_CHECKING:
    from collections.abc import Mapping

KINDS: Final = ("none", "sql", "rest", "glue")
_SLOW: Final = {"glue": 20}
"""moto's Glue needs seconds for a publish: it gets a part of the publishes."""


def main() -> int:
    """Run all parts, print their figures, and return 1 if one has failed."""
    parser = argparse.ArgumentParser(prog="make soak-publish", description=__doc__)
    parser.add_argument(
        "--kinds", nargs="*", choices=KINDS, default=list(KINDS), help="none named: the large lake alone"
    )
    parser.add_argument("--publishes", type=int, default=1_000, help="publishes beside readers, for each kind")
    parser.add_argument("--rows", type=int, default=10_000_000, help="uploads of the large lake; 0: without it")
    parser.add_argument("--large", choices=KINDS, default="sql", help="catalog of the large lake")
    parser.add_argument("--lives", type=int, default=60, help="of the test of erasure, on SeaweedFS; 0: no test runs")
    options = parser.parse_args()
    services.install()
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="soak-publish-"))
        environments = start(stack)
        failures = 0
        for kind in options.kinds:
            print(f"{kind}:", flush=True)
            publishes = str(options.publishes // _SLOW.get(kind, 1))
            failures += run("history", environments[kind], f"{folder}/{kind}")
            failures += run("pinned", environments[kind], f"{folder}/{kind}", publishes) if publishes != "0" else 0
        if options.rows:
            print(f"{options.large}, {options.rows:,} rows:", flush=True)
            failures += run("large", environments[options.large], f"{folder}/large", str(options.rows))
        if options.lives:
            failures += check_on_store(environments["none"], options.lives)
    return 1 if failures else 0


def start(stack: ExitStack) -> dict[str, dict[str, str]]:
    """Start all servers. Return the environment variables that lead to each kind of catalog."""
    seaweedfs, rest = stack.enter_context(services.start_seaweedfs())
    postgres = stack.enter_context(services.start_postgres())
    moto = stack.enter_context(start_moto())
    location = f"s3://{services.BUCKET}/iceberg"
    credential = ":".join(seaweedfs.environment[f"AWS_{name}"] for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY"))
    return {
        "none": seaweedfs.environment | {"SCANLAKE_ICEBERG_LOCATION": f"{location}-none"},
        "sql": seaweedfs.environment
        | {"SCANLAKE_ICEBERG_LOCATION": f"{location}-sql", "PYICEBERG_CATALOG__SCANLAKE__URI": postgres},
        "rest": seaweedfs.environment
        | {
            "PYICEBERG_CATALOG__SCANLAKE__URI": rest,
            "PYICEBERG_CATALOG__SCANLAKE__WAREHOUSE": f"s3://{services.TABLE_BUCKET}",
            "PYICEBERG_CATALOG__SCANLAKE__CREDENTIAL": credential,
        },
        "glue": moto.environment
        | {"PYICEBERG_CATALOG__SCANLAKE__TYPE": "glue", "SCANLAKE_ICEBERG_LOCATION": f"{moto.create_bucket()}/iceberg"},
    }


def run(part: str, environment: Mapping[str, str], *arguments: str) -> bool:
    """Run a part in a process, with tables of its own. Return whether it has failed."""
    own = clean_environment()
    own.update(environment, PYTHONPATH=f"{services.ROOT}{os.pathsep}{services.FOLDER}")
    own["SCANLAKE_ICEBERG_NAMESPACE"] = f"scanlake_{part}"
    if location := own.get("SCANLAKE_ICEBERG_LOCATION"):
        own["SCANLAKE_ICEBERG_LOCATION"] = f"{location}/{part}"
    started = time.monotonic()
    command = [sys.executable, "-W", "ignore", "-m", f"tools.soak_publish.{part}", *arguments]
    ended = subprocess.run(command, env=own, check=False)
    verdict = "passed" if ended.returncode == 0 else f"FAILED, exit code {ended.returncode}"
    print(f"  {part}: {verdict} ({time.monotonic() - started:.0f} s)", flush=True)
    return ended.returncode != 0


def check_on_store(environment: Mapping[str, str], lives: int) -> bool:
    """Run the tests of publishing that use an object store on the one of `environment`. Return whether one failed."""
    own = clean_environment() | {
        "SCANLAKE_TEST_S3_PORT": environment["AWS_ENDPOINT_URL"].rpartition(":")[2],
        "SCANLAKE_TEST_S3_BUCKET": services.BUCKET,
        "HYPOTHESIS_PROFILE": "soak",
        "SOAK_EXAMPLES": str(lives),
    }
    print("the tests of publishing:", flush=True)
    options = ["-q", "--timeout", "0", "-k", "s3 or nowhere or emptied"]
    command = [sys.executable, "-m", "pytest", *options, "tests/publish"]
    return subprocess.run(command, env=own, cwd=services.ROOT, check=False).returncode != 0


def clean_environment() -> dict[str, str]:
    """Return the environment without what leads scanlake, pyiceberg or S3 anywhere."""
    prefixes = ("SCANLAKE_", "PYICEBERG_", "AWS_")
    return {name: text for name, text in os.environ.items() if not name.startswith(prefixes)}


if __name__ == "__main__":
    sys.exit(main())
