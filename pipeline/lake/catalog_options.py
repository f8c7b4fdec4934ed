"""How the catalog is published: its form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Self, TypeAlias

if TYPE_CHECKING:
    from pipeline.settings import Settings

CatalogForm: TypeAlias = Literal["auto", "tables", "views"]
"""Setting `catalog`: the form of the catalog, or that its size decides."""


@dataclass(frozen=True, slots=True)
class CatalogOptions:
    """Form of the catalog."""

    form: CatalogForm = "auto"

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        """Return the options that the settings give."""
        return cls(settings.catalog)
