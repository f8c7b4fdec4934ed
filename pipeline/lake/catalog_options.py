"""How the catalog is published: its form, and how often and how much may be written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, Self, TypeAlias

from schemas.timestamps import SECOND

if TYPE_CHECKING:
    from pipeline.lake.models import CatalogRecord
    from pipeline.settings import Settings

CatalogForm: TypeAlias = Literal["auto", "tables", "views"]
"""Setting `catalog`: the form of the catalog, or that its size decides."""

HOUR: Final = 3600 * SECOND
_SMALL_BYTES: Final = 64 * 1024**2
"""Size up to which a catalog is published with every run, also when it has no new rows."""


@dataclass(frozen=True, slots=True)
class CatalogOptions:
    """Form of the catalog; seconds between two copies of a large one without new rows; bytes of copies in an hour."""

    form: CatalogForm = "auto"
    seconds_between_copies: float = 600
    bytes_per_hour: float = 20e9

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        """Return the options that the settings give."""
        return cls(settings.catalog, settings.publish_every_seconds, settings.publish_gb_per_hour * 1e9)

    def find_postponement(self, record: CatalogRecord | None, size: int, *, at: int, has_new_rows: bool) -> int | None:
        """Return until when a publish waits, in microseconds; None if it need not. `size`: bytes of the last catalog.

        Only a catalog of tables is copied by a publish.
        """
        if record is None or record["form"] != "tables" or at < record["written_at"]:
            return None
        if not has_new_rows and size > _SMALL_BYTES:
            next_copy = record["written_at"] + int(self.seconds_between_copies * SECOND)
            if at < next_copy:
                return next_copy
        next_hour = record["hour_start"] + HOUR
        return next_hour if at < next_hour and record["hour_bytes"] + size > self.bytes_per_hour else None
