"""Targets of the lake, as the ledger knows them: by the URL of the record that names the lake there.

A purge asks them. A target stays known, because a folder that is not there can return.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from pipeline.errors import PublishError
from pipeline.lake.ledger.ledger import set_properties

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Collection, Mapping

    from pipeline.lake.ledger.ledger import Ledger
    from pipeline.lake.ledger.queries import LakeProperties


class TargetState(Enum):
    """What a target has of the lake. The values are those that the ledger stores."""

    BEGUN = False
    """A publish there was begun; none has ended."""
    UNERASED = None
    """It was published there, but not since a purge, or it may have been put back: it can have purged files."""
    PUBLISHED = True
    """It was published there since the last purge."""


def read_targets(properties: LakeProperties) -> dict[str, TargetState]:
    """Return the targets with their states, the newest last."""
    return {url: TargetState(state) for url, state in properties.published_targets.items()}


def _store(db: sqlite3.Connection, targets: Mapping[str, TargetState]) -> None:
    set_properties(db, published_targets={url: state.value for url, state in targets.items()})


def note_target(ledger: Ledger, url: str) -> TargetState:
    """Let the ledger know a target before a publish, as the newest one. Return its state."""
    targets = read_targets(ledger.properties)
    state = targets.pop(url, TargetState.BEGUN)
    with ledger.transaction() as db:
        _store(db, {**targets, url: state})
    return state


def note_published(ledger: Ledger, url: str) -> None:
    """Let the ledger know that a target, which it knows, has nothing that was purged."""
    targets = read_targets(ledger.properties)
    if url in targets:
        with ledger.transaction() as db:
            _store(db, {**targets, url: TargetState.PUBLISHED})


def note_unerased(db: sqlite3.Connection, properties: LakeProperties, urls: Collection[str] | None = None) -> None:
    """Let the ledger know that targets can have purged files; all of them without `urls`."""
    targets = read_targets(properties)
    published = {url for url, state in targets.items() if state is TargetState.PUBLISHED}
    unerased = published if urls is None else published.intersection(urls)
    _store(db, {**targets, **dict.fromkeys(unerased, TargetState.UNERASED)})


def refuse_lost_target(ledger: Ledger, url: str) -> None:
    """Raise `PublishError` if the lake was published to a target that has nothing of it now.

    A purge reads what is there: it would call a copy erased that is only away, in a folder that is not mounted.
    """
    if read_targets(ledger.properties).get(url, TargetState.BEGUN) is not TargetState.BEGUN:
        raise PublishError(
            f"{url.rpartition('/')[0]} has nothing of the lake, although it was published there. Is it mounted?",
            hint="Bring the copy back, or use another target.",
        )
