"""The command within the test's own process, which is left as it was."""

from __future__ import annotations

import io
import sys
from typing import TYPE_CHECKING

import pytest

from pipeline.cli import app as cli
from tests.logging_reset import logging_as_before
from tests.processes import Answer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def main(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[..., Answer]]:
    """Runs the command line here: what a process would do, without its start. Keywords are environment variables."""

    def call(*arguments: str, stdin: str = "", **environment: str) -> Answer:
        capsys.readouterr()
        with monkeypatch.context() as around:
            around.setattr(sys, "stdin", io.StringIO(stdin))
            for name, value in environment.items():
                around.setenv(name, value)
            with pytest.raises(SystemExit) as end:
                cli.main(arguments)
        shown = capsys.readouterr()
        assert isinstance(end.value.code, int)
        return Answer(end.value.code, shown.out, shown.err)

    with logging_as_before():
        yield call
