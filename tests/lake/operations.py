"""The command as people give it, for the verbs that keep a lake; in this process, which is a second faster each."""

from __future__ import annotations

import os
from contextlib import redirect_stderr, redirect_stdout
from io import BytesIO, StringIO, TextIOWrapper
from typing import TYPE_CHECKING
from unittest.mock import patch

import pytest

from pipeline.cli.app import main
from pipeline.lake import compaction
from pipeline.lake.catalog import outputs
from pipeline.lake.compaction import run_compaction
from pipeline.lake.lake import Lake
from tests.lake.lake_builder import AT
from tests.processes import Answer

if TYPE_CHECKING:
    from pathlib import Path

    from pipeline.settings.settings import Settings


class Terminal(StringIO):
    """A terminal on which a person has typed a text."""

    def isatty(self) -> bool:
        """It is one."""
        return True


def called(lake: Path, *arguments: str, **environment: str) -> Answer:
    """Run a verb that needs no service to its end."""
    out, err = (TextIOWrapper(BytesIO(), "utf-8", write_through=True) for _ in range(2))
    surroundings = patch.dict(os.environ, {"NO_COLOR": "1", **environment})
    with surroundings, redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as ended:
        main([*arguments, "--lake", str(lake)])
    assert isinstance(ended.value.code, int)
    return Answer(ended.value.code, *(stream.buffer.getvalue().decode() for stream in (out, err)))


def told(lake: Path, *arguments: str, code: int = 0, **environment: str) -> str:
    """What a verb prints: on standard output, or when it is to fail with `code` on standard error, if anything."""
    answer = called(lake, *arguments, **environment)
    assert answer.code == code, answer
    return (answer.err or answer.out) if code else answer.out


def compact_all(lake: Lake, settings: Settings) -> bool:
    """Compact the documents of an open lake and publish, although it is not due."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compaction, "_MAX_SMALL_RAW_PARTS", 2)
        patch.setattr(compaction, "_MAX_EXPIRED_RATIO", 0)
        return run_compaction(lake, settings)


def fold_all(lake: Lake, *, at: int = AT) -> None:
    """Write the outputs of each table as one, and publish."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(outputs, "is_part_there", lambda *_: False)
        lake.republish(at=at)


def republish(lake: Path) -> None:
    """Publish the lake's last state again, as the next sync does after a move."""
    with Lake(lake, doing="test") as held:
        held.republish(at=AT)
