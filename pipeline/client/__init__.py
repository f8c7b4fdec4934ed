"""Client of the file service: requests, responses, retries and rate limit. `__all__` is its public interface."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pipeline.client.client import Client
    from pipeline.client.options import ClientOptions
    from pipeline.client.protocol import Detail, ListItem, ListPage, NotFound, ReportOrder, Share
    from schemas.requests import FileQuery, ReportRequest, ReportSettings, ShareRequest

__all__ = [
    "Client",
    "ClientOptions",
    "Detail",
    "FileQuery",
    "ListItem",
    "ListPage",
    "NotFound",
    "ReportOrder",
    "ReportRequest",
    "ReportSettings",
    "Share",
    "ShareRequest",
]

_MODULES: Final = {
    "pipeline.client.client": ("Client",),
    "pipeline.client.options": ("ClientOptions",),
    "pipeline.client.protocol": ("Detail", "ListItem", "ListPage", "NotFound", "ReportOrder", "Share"),
    "schemas.requests": ("FileQuery", "ReportRequest", "ReportSettings", "ShareRequest"),
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is used: `scanlake --help` must not import the HTTP library."""
    if name not in __all__:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    module = next(module for module, names in _MODULES.items() if name in names)
    return getattr(import_module(module), name)
