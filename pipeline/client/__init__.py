"""Client of the file service: requests, responses, retries and rate limit. `__all__` is its public interface."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pipeline.client.client import Client
    from pipeline.client.options import ClientOptions
    from pipeline.client.protocol import Detail, ListItem, ListPage, NotFound, ReportOrder, Share

__all__ = ["Client", "ClientOptions", "Detail", "ListItem", "ListPage", "NotFound", "ReportOrder", "Share"]

_MODULES: Final = {"Client": "client", "ClientOptions": "options"}


def __getattr__(name: str) -> Any:
    """Import a public name when it is used: `scanlake --help` must not import the HTTP library."""
    if name not in __all__:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    return getattr(import_module(f"{__name__}.{_MODULES.get(name, 'protocol')}"), name)
