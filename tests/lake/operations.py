"""The command as people give it, for the verbs that keep a lake; in this process, which is a second faster each."""

from __future__ import annotations

import os
from contextlib import redirect_stderr, redirect_stdout
from io import BytesIO, TextIOWrapper
from typing import TYPE_CHECKING
from unittest.mock import patch

import pytest

from pipeline.cli import main
from pipeline.lake.lake import Lake
from tests.lake.lake_builder import AT

if TYPE_CHECKING:
    from pathlib import Path


def told(lake: Path, *arguments: str, code: int = 0, **environment: str) -> str:
    """What a verb prints: on standard output, or on standard error when it is to fail with `code`."""
    out, err = (TextIOWrapper(BytesIO(), "utf-8", write_through=True) for _ in range(2))
    surroundings = patch.dict(os.environ, {"NO_COLOR": "1", **environment})
    with surroundings, redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as ended:
        main([*arguments, "--lake", str(lake)])
    printed = [stream.buffer.getvalue().decode() for stream in (out, err)]
    assert ended.value.code == code, printed
    return printed[1] if code else printed[0]


def republish(lake: Path) -> None:
    """Publish the lake's last state again, as the next sync does after a move."""
    with Lake(lake, doing="test") as held:
        held.republish(at=AT)
