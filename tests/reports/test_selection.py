"""Selections of files from a published lake."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pipeline.emulator import Emulator
from pipeline.errors import SettingsError
from pipeline.lake.reader import open_catalog
from pipeline.lake.request_log import ReportJobFile
from pipeline.reports.selection import Selection, describe_unorderable, select_files, select_references
from pipeline.settings import Settings
from tests.reports.report_harness import FILES, SEED

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


_CLOSED: Final = "SELECT file_id FROM copy WHERE closed"


def select(lake_folder: Path, *selections: Selection) -> list[Sequence[ReportJobFile] | str]:
    """Return the selected files, or the error message, for each selection."""
    results: list[Sequence[ReportJobFile] | str] = []
    for selection in selections:
        with open_catalog(Settings(lake=lake_folder)) as lake:
            try:
                results.append(select_files(lake, selection)[0])
            except SettingsError as error:
                results.append(error.message)
    return results


def test_equal_selections(listed_lake: Path) -> None:
    """A condition and equal queries select the same files, each once; a condition selects them by id."""
    plain, *others = select(
        listed_lake,
        Selection("where", sql="closed -- the closed ones"),
        Selection("sql", sql="SELECT file_id FROM files WHERE closed;"),
        Selection("sql", sql="FROM files SELECT closed, file_id AS id WHERE closed"),
        Selection("sql", sql=f"WITH copy AS (FROM files) {_CLOSED} UNION ALL {_CLOSED} ORDER BY random()"),
        Selection("sql", sql='SELECT CAST(file_id AS VARCHAR) AS "any ""name" FROM files WHERE closed -- no more'),
    )
    assert plain
    ids = [file.file_id for file in plain if isinstance(file, ReportJobFile)]
    assert ids == sorted(set(ids))  # type: ignore[type-var]
    for other in others:
        assert sorted(file.file_id for file in other if isinstance(file, ReportJobFile)) == ids  # type: ignore[type-var]


def test_the_order_of_a_selection_is_kept(listed_lake: Path) -> None:
    """ORDER BY of a query, and the order of ids and references, are those of each group. NULL is a group."""
    query = "SELECT file_id FROM files ORDER BY hash(file_id) DESC"
    with open_catalog(Settings(lake=listed_lake)) as lake:
        expected = [row[0] for row in lake.execute(query).fetchall()]
        references = {row[0]: row[1] for row in lake.execute("SELECT file_id, scan_code FROM files").fetchall()}
    ordered = tuple(dict.fromkeys(references[file_id] for file_id in expected))
    by_sql, by_id, by_reference, by_group = select(
        listed_lake,
        Selection("sql", sql=query),
        Selection("ids", ids=(*expected, *expected[:5])),
        Selection("reference", references=ordered),
        Selection("ids", ids=tuple(expected), group_by="CASE WHEN closed THEN 'x' END"),
    )
    assert [file.file_id for file in by_sql if isinstance(file, ReportJobFile)] == expected
    assert [file.file_id for file in by_id if isinstance(file, ReportJobFile)] == expected
    found = [file.reference for file in by_reference if isinstance(file, ReportJobFile)]
    assert list(dict.fromkeys(found)) == list(ordered)
    grouped = [file for file in by_group if isinstance(file, ReportJobFile)]
    assert [file.group_name for file in grouped] == sorted(str(file.group_name) for file in grouped)
    assert {file.group_name for file in grouped} == {"NULL", "x"}
    for group in {file.group_name for file in grouped}:
        ids = [file.file_id for file in grouped if file.group_name == group]
        assert ids == [file_id for file_id in expected if file_id in ids]


def test_invalid_selections(listed_lake: Path) -> None:
    """Wrong SQL, no column of ids, values that are not ids and an empty selection are errors."""
    messages = select(
        listed_lake,
        Selection("where", sql="colour = 'red'"),
        Selection("where", sql="closed) UNION SELECT (1"),
        Selection("sql", sql="SELECT scan_code, closed FROM files"),
        Selection("sql", sql="SELECT scan_code AS file_id FROM files"),
        Selection("sql", sql="SELECT file_id FROM read_csv('/etc/passwd')"),
        Selection("where", sql="FALSE"),
        Selection("where", sql="TRUE", group_by="nothing"),
        Selection("ids", ids=()),
    )
    assert all(isinstance(message, str) for message in messages)
    assert "colour" in messages[0]
    assert "file_id or id" in messages[2]
    assert "empty" in messages[5]


def test_unknown_files_come_last_with_a_reason(listed_lake: Path) -> None:
    """Unknown ids and references are part of the selection; a reference selects every file that has it."""
    references = Emulator(FILES, seed=SEED).world.by_reference
    reference, keys = next((reference, keys) for reference, keys in references.items() if len(keys) > 1)
    with open_catalog(Settings(lake=listed_lake)) as lake:
        by_id, _ = select_files(lake, Selection("ids", ids=(5, keys[0], 5)))
    with open_catalog(Settings(lake=listed_lake)) as lake:
        by_reference, _ = select_files(lake, Selection("reference", references=(reference, "NOPE", reference)))
        assert set(select_references(lake, "TRUE")) == set(references)
    assert [(file.file_id, file.reason) for file in by_id] == [(keys[0], None), (5, "not in the lake")]
    assert [file.file_id for file in by_reference] == [*sorted(keys), None]
    assert describe_unorderable(by_reference) == ["reference NOPE: no file with this reference in the lake"]
