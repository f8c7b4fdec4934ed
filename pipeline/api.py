"""Python interface: open a lake for queries, and sync it. `import pipeline` offers these names.

    import pipeline

    pipeline.sync_lake(lake="lake", base_url="https://service.example", token="...")
    with pipeline.open_lake("lake") as lake:
        frame = lake.sql("SELECT upload_type, count(*) FROM uploads GROUP BY 1").df()

Nothing here needs an event loop of its own, so it works in a notebook, whose loop runs.
"""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import structlog
from pydantic import SecretStr

from pipeline import config as settings_file
from pipeline.child_commands import run_maintenance
from pipeline.client.probe import probe_service
from pipeline.errors import ExitCode
from pipeline.lake.lake import Lake
from pipeline.lake.reader import fetch_dicts, open_catalog
from pipeline.lake.user_query import check_query, translate_query_errors
from pipeline.logs import configure_library, register_secrets
from pipeline.maintenance.compact import is_compaction_due
from pipeline.maintenance.writable_lake import open_writable_lake
from pipeline.monitoring.after_run import LakeStats, monitored_run
from pipeline.monitoring.killed_runs import record_killed_sync
from pipeline.process import ThreadRun
from pipeline.progress import NullProgress
from pipeline.results import to_json_value
from pipeline.settings import Settings, load_token, require_base_url
from pipeline.sync.regular_verify import VerifyStopped, verify_if_due
from pipeline.sync.sync import TimeRange, sync

if TYPE_CHECKING:
    from collections.abc import Mapping

    import duckdb

    from pipeline.sync.sync import SyncSummary
    from pipeline.sync.verify import VerifyResult

_HINT: Final = "Call `tables()` to list the tables."


@dataclass(frozen=True, slots=True)
class SyncResult:
    """Result of a sync. `verification` is that of the regular verify; None if it was not due, or was stopped."""

    summary: SyncSummary
    verification: VerifyResult | None

    @property
    def is_complete(self) -> bool:
        """Whether there is no reject, and the verification, if there was one, found lake and service equal."""
        return not self.summary.rejects and (self.verification is None or self.verification.consistent)


class OpenLake:
    """A lake's published catalog, opened read-only: one snapshot, also while syncs run. Close it, or use `with`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._stack = ExitStack()
        self._db: duckdb.DuckDBPyConnection = self._stack.enter_context(open_catalog(Settings(lake=folder)))

    def sql(self, query: str) -> duckdb.DuckDBPyRelation:
        """Return the rows of a query, which are read when they are used: `.df()`, `.arrow()`, `.fetchall()`.

        The query may only read tables. Raises `SettingsError` for another one and for wrong SQL.
        """
        with translate_query_errors(_HINT):
            check_query(self._db, query)
            return self._db.sql(query)

    def tables(self) -> dict[str, str]:
        """Return the comment of each table and view by its name; those of `meta` have the schema in front."""
        rows = fetch_dicts(
            self._db,
            "SELECT table_schema, table_name, coalesce(TABLE_COMMENT, '') AS comment FROM information_schema.tables"
            " WHERE table_schema IN ('main', 'meta') AND NOT starts_with(table_name, '_') ORDER BY ALL",
        )
        prefixes = {"main": "", "meta": "meta."}
        return {f"{prefixes[row['table_schema']]}{row['table_name']}": row["comment"] for row in rows}

    def freshness(self) -> dict[str, Any]:
        """Return the row of `meta.freshness`: the snapshot, its watermark and age, and counts of files."""
        (row,) = fetch_dicts(self._db, "FROM meta.freshness")
        return row

    def refresh(self) -> None:
        """Open the newest snapshot. Results of earlier queries that were not read yet become invalid."""
        self.close()
        self._stack = ExitStack()
        self._db = self._stack.enter_context(open_catalog(Settings(lake=self.folder)))

    def close(self) -> None:
        """Close the catalog."""
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def open_lake(folder: Path | str = "lake") -> OpenLake:
    """Open the lake in a folder for queries. Raises `SettingsError` if there is none."""
    return OpenLake(Path(folder))


def sync_lake(
    *, config: Path | str | None = None, source: str | None = None, token: str | None = None, **settings: Any
) -> SyncResult:
    """Fetch everything that changed in the service into the lake, as `scanlake sync` does; return when it is done.

    `settings` are those of scanlake.toml (`lake`, `base_url`, `max_concurrency`, ...) and override it. `config` names
    the file; without it ./scanlake.toml is read if it exists. `token` replaces SCANLAKE_TOKEN and `token_file`.
    Raises a `ScanlakeError`; complete batches are committed before that. Ctrl-C stops the sync cleanly.
    """
    work = _prepare(config, source, token, settings)
    return ThreadRun(work.run).wait()


async def sync_lake_async(
    *, config: Path | str | None = None, source: str | None = None, token: str | None = None, **settings: Any
) -> SyncResult:
    """Do the same as `sync_lake` while the running event loop goes on. Cancelling it stops the sync cleanly."""
    work = _prepare(config, source, token, settings)
    run = ThreadRun(work.run)
    try:
        return await asyncio.wrap_future(run.future)
    except asyncio.CancelledError:
        run.stop()
        await asyncio.to_thread(run.future.exception)
        raise


@dataclass(slots=True)
class _SyncWork:
    """One sync with its settings."""

    config: Path | None
    source: str | None
    settings: Settings
    token: str

    async def run(self) -> SyncResult:
        """Sync, verify and compact if that is due. Alerts and metrics are those of the command."""
        settings, progress = self.settings, NullProgress()
        if Lake(settings.lake, doing="sync").is_new:  # a wrong address or token leaves no folder
            await probe_service(settings, self.token, is_quick=False)
        record_killed_sync(settings, self.source or "")
        with (
            monitored_run(settings, "sync", self.source or "") as monitored,
            open_writable_lake(settings, "sync", must_exist=False) as lake,
        ):
            summary = await sync(lake, settings, self.token, TimeRange(), progress)
            verification = await verify_if_due(lake, settings, self.token, summary, progress)
            must_compact = is_compaction_due(lake)
            result = SyncResult(summary, None if isinstance(verification, VerifyStopped) else verification)
            values: dict[str, Any] = asdict(summary) | {"lake": LakeStats.read_from(lake)}
            if verification:
                values["verify"] = verification if isinstance(verification, VerifyStopped) else verification.report()
            monitored.result = to_json_value(values)
            monitored.code = ExitCode.OK if result.is_complete else ExitCode.REJECTS
        if must_compact:
            source = ["--source", self.source] if self.source else []
            config = ["--config", str(self.config)] if self.config else []
            await run_maintenance(
                ["--quiet", *config, *source, "--lake", str(settings.lake), "rebuild", "--small-parts"]
            )
        return result


def _prepare(
    config: Path | str | None, source: str | None, token: str | None, overrides: Mapping[str, Any]
) -> _SyncWork:
    path = None if config is None else Path(config)
    settings = settings_file.load(path, overrides, source=source)
    if token is not None:
        settings = settings.model_copy(update={"token": SecretStr(token)})
    require_base_url(settings)
    secret = load_token(settings)
    register_secrets(secret)
    if not structlog.is_configured():
        configure_library()
    return _SyncWork(path, source, settings, secret)
