"""Other values of the product's constants, in this process and in commands that tests start as processes."""

from __future__ import annotations

import json
import os
import runpy
import sys
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

VARIABLE: Final = "TEST_CONSTANTS"
_OF_RUNS: Final = {
    "commit_every_files": "pipeline.sync.crawl_runner.COMMIT_EVERY_FILES",
    "commit_every_seconds": "pipeline.sync.crawl_runner.COMMIT_EVERY_SECONDS",
    "publish_every_seconds": "pipeline.sync.run.PUBLISH_EVERY_SECONDS",
    "max_attempts": "pipeline.client.client.MAX_ATTEMPTS",
}
"""How often a run commits and publishes, and how often it tries a request."""


@contextmanager
def run_constants(values: dict[str, Any]) -> Iterator[None]:
    """Use the constants of runs among `values` in the block. They are taken out: settings remain."""
    with pytest.MonkeyPatch.context() as patch:
        for name in _OF_RUNS.keys() & values.keys():
            patch.setattr(_OF_RUNS[name], values.pop(name))
        yield


def set_run_constants(**values: object) -> dict[str, str]:
    """Return the environment of a command with other constants of its run."""
    return set_constants({_OF_RUNS[name]: value for name, value in values.items()})


def set_constants(values: Mapping[str, object]) -> dict[str, str]:
    """Return the environment of a command with other constants, by dotted names. Its own children do not get them."""
    return {VARIABLE: json.dumps(values)}


def apply_constants(environment: Mapping[str, str]) -> None:
    """Set the constants that the environment names, in this process."""
    for path, value in json.loads(environment.get(VARIABLE, "{}")).items():
        module, _, name = path.rpartition(".")
        assert hasattr(import_module(module), name), path
        setattr(import_module(module), name, value)


if __name__ == "__main__":
    apply_constants(os.environ)
    sys.orig_argv = [argument if argument != "tests.constants" else "pipeline" for argument in sys.orig_argv]
    runpy.run_module("pipeline", run_name="__main__", alter_sys=True)
