"""Python interface: open a lake for queries, and sync it. `import pipeline` offers these names.

    import pipeline

    pipeline.sync_lake(lake="lake", base_url="https://service.example", token="...")
    with pipeline.open_lake("lake") as lake:
        frame = lake.sql("SELECT upload_type, count(*) FROM uploads GROUP BY 1").df()

In a notebook, whose event loop runs, `await pipeline.sync_lake_async(...)` takes the place of `sync_lake`.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.child_commands import run_for_object
from pipeline.config import SettingsLayers, token_variable
from pipeline.lake.reader import open_catalog
from pipeline.settings import PREFIX

if TYPE_CHECKING:
    from collections.abc import Iterator

    import duckdb


@contextmanager
def open_lake(folder: Path | str = "lake") -> Iterator[duckdb.DuckDBPyConnection]:
    """Open the published catalog of a lake: one snapshot, also while syncs run. SQL can read its tables only.

    Raises `SettingsError` if there is none, and the errors of DuckDB for wrong SQL.
    """
    settings = SettingsLayers(None, None, (("flag", {"lake": Path(folder)}),)).settings()
    with open_catalog(settings) as lake:
        yield lake


def sync_lake(
    *, config: Path | str | None = None, source: str | None = None, token: str | None = None, **settings: Any
) -> dict[str, Any]:
    """Run `scanlake sync` to its end and return the object that it prints with `--json`; `ok` if nothing is missing.

    `settings` are those of scanlake.toml (`lake`, `base_url`, `max_concurrency`, ...) and override it. `config` names
    the file; without it ./scanlake.toml is read if it exists. `token` replaces SCANLAKE_TOKEN and `token_file`.
    Raises a `ScanlakeError`; complete batches are committed before that. Ctrl-C stops the sync cleanly. While an event
    loop runs, use `sync_lake_async`.
    """
    return asyncio.run(sync_lake_async(config=config, source=source, token=token, **settings))


async def sync_lake_async(
    *, config: Path | str | None = None, source: str | None = None, token: str | None = None, **settings: Any
) -> dict[str, Any]:
    """Do the same as `sync_lake` while the running event loop goes on. Cancelling it stops the sync cleanly."""
    options = {"--config": config, "--source": source}
    argv = [word for name, value in options.items() if value is not None for word in (name, str(value))]
    texts = {name: ",".join(value) if isinstance(value, list | tuple) else value for name, value in settings.items()}
    variables = {f"{PREFIX}{name.upper()}": str(text) for name, text in texts.items() if text is not None}
    if token is not None:
        variables[token_variable(source)] = token
    return await run_for_object(["--quiet", *argv, "sync"], variables={**os.environ, **variables})
