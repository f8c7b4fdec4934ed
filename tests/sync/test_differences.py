"""The pure parts of a verify, with values."""

from __future__ import annotations

import math

from pipeline.sync.differences import select_rotating_share
from tests.rows import every


@every(("count", "share"), [(40, 0.1), (40, 1.0), (100, 0.07), (7, 0.001), (4_999, 0.3), (5_000, 0.999)])
def test_rotating_shares_have_their_size_and_select_every_file(count: int, share: float) -> None:
    """Each share has its part of the files, rounded up, whatever their ids; successive shares select all of them."""
    size, position = math.ceil(count * share - 1e-9), 0
    for ids in (range(1, count + 1), range(9_007_199_254_740_993, 9_007_199_254_740_993 + 222 * count, 222)):
        seen: set[int] = set()
        for _ in range(-(-count // size)):
            selected, position = select_rotating_share(ids, position=position, share=share)
            assert len(selected) == size
            seen |= selected
        assert seen == set(ids)
    spread, _ = select_rotating_share(range(1_000), position=0, share=0.1)
    assert all(sum(low <= file_id < low + 250 for file_id in spread) in range(20, 31) for low in range(0, 1_000, 250))
