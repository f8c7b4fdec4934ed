"""Names of the tables that scanlake keeps in a catalog for itself.

They are in schema `physical`, apart from the data: tools list the tables of `main` first, so it has only those.
"""

from __future__ import annotations

from typing import Final

PHYSICAL_SCHEMA: Final = "physical"
SUPERSEDED_VERSIONS: Final = f"{PHYSICAL_SCHEMA}.superseded_versions"
PARTS: Final = f"{PHYSICAL_SCHEMA}.parts"
EMBEDDED_LEDGER: Final = f"{PHYSICAL_SCHEMA}.ledger"
