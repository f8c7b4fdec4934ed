"""The command within the test's own process, which is left as it was."""

from __future__ import annotations

import logging
import sys
import threading
from typing import TYPE_CHECKING

import pytest
import structlog

from pipeline import bugs, cli, logs
from tests.setup.command import Answer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def main(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[..., Answer]]:
    """Runs the command line here: what a process would do, without its start. Keywords are environment variables."""
    root = logging.getLogger()
    hooks, handlers, level = (sys.unraisablehook, threading.excepthook), list(root.handlers), root.level
    place = bugs._place

    def call(*arguments: str, **environment: str) -> Answer:
        capsys.readouterr()
        with monkeypatch.context() as around:
            for name, value in environment.items():
                around.setenv(name, value)
            with pytest.raises(SystemExit) as end:
                cli.main(arguments)
        shown = capsys.readouterr()
        assert isinstance(end.value.code, int)
        return Answer(end.value.code, shown.out, shown.err)

    yield call
    logs.stop()
    structlog.reset_defaults()
    logging.captureWarnings(capture=False)
    sys.unraisablehook, threading.excepthook = hooks
    root.handlers[:] = handlers
    root.setLevel(level)
    bugs._place = place
