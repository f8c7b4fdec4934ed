"""scanlake: a complete, queryable, provable copy of everything a file and scan service holds.

`open_lake` opens a lake for queries, `sync_lake` and `sync_lake_async` update it. `Client` is the service's client, and
takes `FileQuery`, `ShareRequest` and `ReportRequest`.
"""

from __future__ import annotations

from importlib import import_module

from pipeline.version import __version__

TYPE_CHECKING = False  # as in `pipeline.__main__`
if TYPE_CHECKING:
    from typing import Any, Final

    from pipeline.api import open_lake, sync_lake, sync_lake_async
    from pipeline.client.client import Client
    from pipeline.errors import ScanlakeError
    from schemas.file_query import FileQuery
    from schemas.requests import ReportRequest, ShareRequest

__all__ = [
    "Client",
    "FileQuery",
    "ReportRequest",
    "ScanlakeError",
    "ShareRequest",
    "__version__",
    "open_lake",
    "sync_lake",
    "sync_lake_async",
]

_MODULES: Final = {
    "Client": "pipeline.client.client",
    "ScanlakeError": "pipeline.errors",
    "FileQuery": "schemas.file_query",
    **dict.fromkeys(("ReportRequest", "ShareRequest"), "schemas.requests"),
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is used: `scanlake --help` must not import DuckDB."""
    if name not in __all__:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    return getattr(import_module(_MODULES.get(name, "pipeline.api")), name)
