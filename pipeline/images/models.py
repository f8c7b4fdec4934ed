"""The result of a download of images."""

from __future__ import annotations

from msgspec import Struct, field

from pipeline.lake.image_records import ImageTotals


class ImageSummary(Struct):
    """Result of a run; the object that `--json` prints.

    Counts are pictures of uploads. `stored` were stored by this run, `duplicates` of them had a content that the lake
    had, `adopted` of them were downloaded by a run that was killed. `left` were selected and not tried or not
    answered. `reasons` counts those that are not there, by reason.
    """

    state: str = "done"
    selected: int = 0
    stored: int = 0
    duplicates: int = 0
    adopted: int = 0
    stored_before: int = 0
    not_found: int = 0
    refused: int = 0
    failed: int = 0
    not_found_before: int = 0
    refused_before: int = 0
    without_link: int = 0
    left: int = 0
    renewed_links: int = 0
    bytes: int = 0
    is_decoded: bool = True
    reasons: dict[str, int] = field(default_factory=dict)
    requests: dict[str, int] = field(default_factory=dict)
    retries: int = 0
    seconds: float = 0.0
    lake: ImageTotals = field(default_factory=ImageTotals)
    problem: str | None = None

    @property
    def has_new_rejects(self) -> bool:
        """Whether this run found pictures that are not there."""
        return bool(self.not_found or self.refused or self.failed)
