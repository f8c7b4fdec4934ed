"""Selections of files from a published lake."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pytest

from pipeline.emulator import Emulator
from pipeline.errors import SettingsError
from pipeline.query.reader import open_catalog
from pipeline.reports.selection import Selection, select_files, select_references
from pipeline.settings.settings import Settings
from tests.reports.report_harness import FILES, SEED
from tests.rows import every

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pipeline.lake.ledger.request_log import ReportJobFile

_CLOSED: Final = "SELECT file_id FROM copy WHERE closed"
_SHUFFLED: Final = "SELECT file_id, scan_code FROM files ORDER BY hash(file_id) DESC"


def select(lake_folder: Path, kind: Any, **options: Any) -> Sequence[ReportJobFile]:
    """Return the selected files."""
    with open_catalog(Settings(lake=lake_folder)) as lake:
        return select_files(lake, Selection(kind, **options))[0]


@every(
    "query",
    [
        "SELECT file_id FROM files WHERE closed;",
        "FROM files SELECT closed, file_id AS id WHERE closed",
        f"WITH copy AS (FROM files) {_CLOSED} UNION ALL {_CLOSED} ORDER BY random()",
        'SELECT CAST(file_id AS VARCHAR) AS "any ""name" FROM files WHERE closed -- no more',
    ],
)
def test_equal_selections(query: str, listed_lake: Path) -> None:
    """A condition and equal queries select the same files, each once; a condition selects them by id."""
    ids = [file.file_id or 0 for file in select(listed_lake, "where", sql="closed -- the closed ones")]
    assert ids
    assert ids == sorted(set(ids))
    assert sorted(file.file_id or 0 for file in select(listed_lake, "sql", sql=query)) == ids


def test_the_order_of_a_selection_is_kept(listed_lake: Path) -> None:
    """ORDER BY of a query, and the order of ids and references, are those of each group. NULL is a group."""
    with open_catalog(Settings(lake=listed_lake)) as lake:
        found = dict(lake.execute(_SHUFFLED).fetchall())
    expected, references = list(found), list(dict.fromkeys(found.values()))
    by_sql = select(listed_lake, "sql", sql=_SHUFFLED)
    by_id = select(listed_lake, "ids", ids=(*expected, *expected[:5]))
    assert [file.file_id for file in by_sql] == [file.file_id for file in by_id] == expected
    by_reference = select(listed_lake, "reference", references=tuple(references))
    assert list(dict.fromkeys(file.reference for file in by_reference)) == references
    grouped = select(listed_lake, "ids", ids=tuple(expected), group_by="CASE WHEN closed THEN 'x' END")
    assert {file.group_name for file in grouped} == {"NULL", "x"}
    places = [(str(file.group_name), expected.index(file.file_id or 0)) for file in grouped]
    assert places == sorted(places)


@every(
    ("kind", "options", "says"),
    [
        ("where", {"sql": "colour = 'red'"}, "colour"),
        ("where", {"sql": "closed) UNION SELECT (1"}, "Set operations"),
        ("sql", {"sql": "SELECT scan_code, closed FROM files"}, "file_id or id"),
        ("sql", {"sql": "SELECT scan_code AS file_id FROM files"}, "Could not convert"),
        ("sql", {"sql": "SELECT file_id FROM read_csv('/etc/passwd')"}, "reads tables only"),
        ("where", {"sql": "FALSE"}, "empty"),
        ("where", {"sql": "TRUE", "group_by": "nothing"}, "column .nothing. not found"),
        ("ids", {}, "empty"),
    ],
)
def test_invalid_selections(kind: str, options: dict[str, str], says: str, listed_lake: Path) -> None:
    """Wrong SQL, no column of ids, values that are not ids and an empty selection are errors."""
    with pytest.raises(SettingsError, match=says):
        select(listed_lake, kind, **options)


def test_a_comment_may_follow_the_semicolon(listed_lake: Path) -> None:
    """The last semicolon of --sql goes, whatever comment follows it."""
    assert select(listed_lake, "sql", sql="SELECT file_id FROM files; -- all") == select(
        listed_lake, "sql", sql="SELECT file_id FROM files"
    )


def test_unknown_files_come_last_with_a_reason(listed_lake: Path) -> None:
    """Unknown ids and references are part of the selection; a reference selects every file that has it."""
    references = Emulator(FILES, seed=SEED).world.by_reference
    reference, keys = next((reference, keys) for reference, keys in references.items() if len(keys) > 1)
    with open_catalog(Settings(lake=listed_lake)) as lake:
        assert set(select_references(lake, "TRUE")) == set(references)
    by_id = select(listed_lake, "ids", ids=(5, keys[0], 5))
    by_reference = select(listed_lake, "reference", references=(reference, "NOPE", reference))
    assert [(file.file_id, file.reason) for file in by_id] == [(keys[0], None), (5, "not in the lake")]
    assert [file.file_id for file in by_reference] == [*sorted(keys), None]
    assert (by_reference[-1].reference, by_reference[-1].reason) == ("NOPE", "no file with this reference in the lake")
