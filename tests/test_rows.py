"""A table of cases says which of its rows fail."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.rows import every

if TYPE_CHECKING:
    from pathlib import Path


def test_every_failing_row_is_named(tmp_path: Path) -> None:
    """All rows run, also after a failure, with the fixtures; the report names exactly the rows that fail."""
    seen = []

    @every("number, text", [(1, "a"), (2, "b"), (3, "c")])
    def check(number: int, text: str, tmp_path: Path) -> None:
        seen.append((number, text, tmp_path))
        assert number == 2, "odd"

    with pytest.raises(ExceptionGroup, match="2 of 3 rows fail") as caught:
        check(tmp_path=tmp_path)  # type: ignore[call-arg]
    assert [error.__notes__ for error in caught.value.exceptions] == [["row: 1, 'a'"], ["row: 3, 'c'"]]
    assert seen == [(1, "a", tmp_path), (2, "b", tmp_path), (3, "c", tmp_path)]
