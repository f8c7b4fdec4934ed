"""Worlds that tests only read: one worker makes each of them, for all workers of a run."""

from __future__ import annotations

import fcntl
import os
import pickle
from typing import TYPE_CHECKING, TypeVar

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_Value = TypeVar("_Value")


def make_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], _Value]) -> _Value:
    """Return what `make` returns for a new folder. Only the first caller of a run calls it.

    For fixtures of modules and sessions: there are no SCANLAKE_ variables during the call.
    The value is pickled. No test may change the folder: copy it for that.
    """
    own = factory.getbasetemp()
    shared = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    with (shared / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        cache = shared / f"{name}.pickle"
        if not cache.exists():
            folder = shared / f"made-{name}"
            folder.mkdir()
            with pytest.MonkeyPatch.context() as environment:
                for variable in [variable for variable in os.environ if variable.startswith("SCANLAKE_")]:
                    environment.delenv(variable)
                cache.write_bytes(pickle.dumps(make(folder)))
        value: _Value = pickle.loads(cache.read_bytes())  # noqa: S301 - written three lines above
    return value
