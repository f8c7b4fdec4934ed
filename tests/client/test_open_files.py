"""The limit on open files bounds the connections."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.conftest import ROOT

_PROGRAM = """
import sys

from pipeline.client.factory import create_client
from pipeline.settings import Settings
client = create_client(Settings(base_url="http://127.0.0.1:9", max_concurrency=int(sys.argv[1])), "token")
print(client.options.max_concurrency)
"""


@pytest.mark.parametrize(("open_files", "wanted", "expected"), [(256, 512, 128), (256, 100, 100)])
def test_open_files_bound_the_connections(open_files: int, wanted: int, expected: int) -> None:
    """Under `ulimit -n 256` at most 128 requests are in flight, and a log event says so."""
    command = f"ulimit -n {open_files} && exec {sys.executable} -c '{_PROGRAM}' {wanted}"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(["/bin/sh", "-c", command], env=environment, capture_output=True, text=True, check=True)
    assert ran.stdout.split()[-1] == str(expected)
    assert ("concurrency.limited" in ran.stdout + ran.stderr) == (expected == 128)
