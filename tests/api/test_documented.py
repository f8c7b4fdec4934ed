"""The section on Python: its blocks run unchanged but for address and token."""

from __future__ import annotations

import ast
import asyncio
import inspect
from typing import TYPE_CHECKING, Any

import pipeline
from pipeline.emulator import Emulator
from tests.docs import documents

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

PAGE = documents.QUERIES.section("Python")


async def run_block(block: str, names: dict[str, Any]) -> None:
    """Run a block in a thread, as a script; with `await` in this loop, as a notebook does."""
    code = compile(block, "docs/queries.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    if code.co_flags & inspect.CO_COROUTINE:
        await eval(code, names)  # noqa: S307 - a block of the project's own page
    else:
        await asyncio.to_thread(exec, code, names)


async def test_the_blocks_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script syncs and queries a lake, and a notebook syncs it again."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    script, notebook, _ = PAGE.blocks("python")
    async with Emulator(20, seed=3) as emulator:
        for block in (script, notebook):
            text = block.replace("https://service.example", emulator.base_url).replace("secret-token", emulator.token)
            await run_block(text, names)
    assert names["result"]["ok"]
    assert sum(count for _, count in names["rows"]) > 0


def test_every_public_name_is_documented() -> None:
    """The table has each public name, and none that does not exist."""
    listed = {name.partition("(")[0] for name in PAGE.code_spans}
    assert set(pipeline.__all__) - {"__version__", "OpenLake"} <= listed
