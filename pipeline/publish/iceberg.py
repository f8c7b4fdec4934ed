"""Publish of the lake as Iceberg tables, by the settings: the entry to everything that needs pyiceberg.

pyiceberg takes most of a second of processor time to import. So it is imported by name, when tables are published.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final, cast

from pipeline.errors import PublishError, SettingsError
from pipeline.lake.ledger.targets import TargetState, note_published, note_target, refuse_lost_target
from pipeline.publish.target import OWNER, SweepRule
from schemas.tables import BY_NAME

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pipeline.lake.lake import Lake
    from pipeline.lake.ledger.queries import LakeProperties, PublishRecord
    from pipeline.lake.storage.layout import LakeLayout
    from pipeline.output.findings import Finding
    from pipeline.publish.outcome import IcebergResult
    from pipeline.publish.target_checks import Objects
    from pipeline.settings.settings import Settings

_LIBRARIES: Final = frozenset({"pyiceberg", "sqlalchemy", "obstore"})


def has_iceberg_tables(settings: Settings) -> bool:
    """Return whether the settings name a place of Iceberg tables, or variables of pyiceberg their catalog."""
    return settings.iceberg_location is not None or read_catalog_properties() is not None


def read_catalog_properties() -> dict[str, str] | None:
    """Return the properties of the catalog scanlake in the variables of pyiceberg; None without any."""
    try:
        properties = _import_configuration()().get_catalog_config("scanlake")
    except ModuleNotFoundError:  # without it the lake has no Iceberg tables
        return None
    except ValueError as error:
        raise SettingsError("The variables PYICEBERG_* contradict each other.", hint="Correct them.") from error
    return cast("dict[str, str] | None", properties)


def _import_configuration() -> Any:
    """Return pyiceberg's configuration, without its files: other users may own the one in the current folder.

    Every module of pyiceberg reads the configuration by itself, some when they are imported.
    """
    configuration = importlib.import_module("pyiceberg.utils.config").Config
    configuration._from_configuration_files = staticmethod(lambda: None)  # noqa: SLF001 - nothing else stops it
    return configuration


def publish_iceberg_tables(lake: Lake, settings: Settings, *, at: int, location: str | None = None) -> IcebergResult:
    """Publish the newest snapshot of the locked lake at `at` (microseconds).

    `location` is used if the settings have none. A failure is added to the record of the last publish. Raises
    `SettingsError`, `PublishConflictError` and `PublishError`.
    """
    last = lake.ledger.last_snapshot()
    if last is None:
        raise SettingsError("The lake has no snapshot to publish.", hint="Run `scanlake sync` first.")
    publish = _import("pipeline.publish.iceberg_publish")
    location = settings.iceberg_location or location or ""
    try:
        catalog = _connect(settings, location)
        target = f"{catalog.root}/{OWNER}"
        if catalog.root:  # a place that cannot be reached is no target
            owner = catalog.io.open_root(catalog.root).head(OWNER)
            if owner is None and not catalog.load(BY_NAME):
                refuse_lost_target(lake.ledger, target)
        has_purged = note_target(lake.ledger, target) is not TargetState.PUBLISHED
        grace_seconds, lake_id = settings.retention_hours * 3600, lake.ledger.get_lake_id()
        rule = SweepRule.from_lake(lake, at=at, grace_seconds=grace_seconds, has_purged=has_purged)
        result: IcebergResult = publish.publish_iceberg(
            catalog, lake.layout, last.snapshot, lake_id=lake_id, rule=rule, has_purged=has_purged
        )
    except PublishError as error:
        if (record := lake.ledger.properties.remote_publish) is not None:
            failed = {**record, "problem": error.message, "failures": record["failures"] + 1}
            lake.ledger.set_properties(remote_publish=cast("PublishRecord", failed))
        raise
    note_published(lake.ledger, target)
    return result


def find_tables_location(properties: LakeProperties) -> str | None:
    """Return the location of the tables that were published last, "" if their catalog chose it; None without any."""
    suffix = f"/{OWNER}"
    locations = [url.removesuffix(suffix) for url in properties.published_targets if url.endswith(suffix)]
    return locations[-1] if locations else None


def list_iceberg_objects(settings: Settings, location: str) -> tuple[Objects, list[str]]:
    """Return all objects in the folders of the tables, and the locations of the manifests that no table needs.

    Raises `PublishError`, also if a table is missing.
    """
    catalog, publish = _connect(settings, location), _import("pipeline.publish.iceberg_publish")
    states = publish.load_all_tables(catalog)
    needed = publish.list_table_files(catalog.io, states.values())
    files = [item for state in states.values() for item in publish.list_stored_files(catalog.io, state)]
    unneeded = [file for _, file, _ in files if file.endswith(".avro") and file not in needed]
    return [(store, item.path) for store, _, item in files], unneeded


def check_iceberg_tables(
    layout: LakeLayout, settings: Settings, location: str, subject: str, *, read_data: bool
) -> Iterator[Finding]:
    """Yield findings for the files and the rows of the tables, of which `subject` is the name."""
    findings = _import("pipeline.publish.iceberg_check").check_tables(
        _connect(settings, location), layout, subject, read_data=read_data
    )
    yield from findings


def _connect(settings: Settings, location: str) -> Any:
    catalogs = _import("pipeline.publish.iceberg_catalogs")
    return catalogs.connect_catalog(location, settings.iceberg_namespace, read_catalog_properties())


def _import(name: str) -> Any:
    try:
        _import_configuration()
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in _LIBRARIES:
            raise
        raise SettingsError(
            f"Iceberg tables need the library {error.name}.", hint="Run `pip install pyiceberg sqlalchemy obstore`."
        ) from None
