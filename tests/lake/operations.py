"""The command as people give it, for the verbs that keep a lake; in this process, which is a second faster each."""

from __future__ import annotations

import os
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import BytesIO, StringIO, TextIOWrapper
from typing import TYPE_CHECKING
from unittest.mock import patch

import pytest

from pipeline.cli.app import main
from pipeline.lake import compaction
from pipeline.lake.compaction import run_compaction
from pipeline.lake.lake import Lake
from tests.lake.lake_builder import AT
from tests.processes import Answer

if TYPE_CHECKING:
    from collections.abc import Iterator
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
    """Compact an open lake and publish, although it is not due."""
    with _everything_due(lake):
        return run_compaction(lake, settings)


def merge_all(lake: Lake, number: int) -> None:
    """Write all rows of an open lake into new parts, without a publish."""
    with _everything_due(lake):
        compaction.compact(lake.layout, lake.ledger, now=AT, name_suffix=f"{number:06x}")


@contextmanager
def _everything_due(lake: Lake) -> Iterator[None]:
    """Let all part groups be compacted, and all documents that have expired go."""
    groups = compaction.list_part_groups(lake.ledger)
    with pytest.MonkeyPatch.context() as patch:
        if len(groups) > 1 or any(group.superseded for group in groups):
            patch.setattr(compaction, "MAX_SUPERSEDED_RATIO", -1)
            patch.setattr(compaction, "MIN_SUPERSEDED", 0)
        patch.setattr(compaction, "_MAX_EXPIRED_RATIO", 0)
        yield


def republish(lake: Path) -> None:
    """Publish the lake's last state again, as the next sync does after a move."""
    with Lake(lake, doing="test") as held:
        held.republish(at=AT)
