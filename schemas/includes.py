"""The includes of a list call: what the service adds to each file. Apart from the requests, which take long to load."""

from __future__ import annotations

from typing import Final, Literal

Include = Literal["uploads", "geocoding", "forms", "fields", "locations", "workflows"]
INCLUDES: Final[tuple[Include, ...]] = ("uploads", "geocoding", "forms", "fields", "locations", "workflows")
