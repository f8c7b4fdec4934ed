"""Other values of the product's constants, for commands that tests start as processes of their own."""

from __future__ import annotations

import json
import os
import runpy
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

VARIABLE: Final = "TEST_CONSTANTS"


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
