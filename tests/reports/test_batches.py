"""Batches and names of PDFs."""

from __future__ import annotations

import re
import unicodedata
from itertools import groupby
from typing import Any, NoReturn

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pipeline.errors import SettingsError
from pipeline.lake.ledger.request_log import OrderState, ReportBatch, ReportJobFile, ReportOrderRecord
from pipeline.output.progress import Progress, ReportProgress
from pipeline.reports.models import JobOptions
from pipeline.reports.ordering import ReportRunState
from pipeline.reports.selection import Selection, make_batches, name_pdf, read_ids
from tests.rows import every

LIMIT = JobOptions("", {}).max_batch_files
"""What the service allows; the tests of jobs have less."""


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans())), st.integers(1, 5))
@example([("a", True)] * 201, LIMIT)
@example([("a", True)] * 9_999, 1)
@example([("a", True)] * 10_000, 1)
def test_each_file_has_one_batch_of_its_group(files: list[tuple[str, bool]], max_files: int) -> None:
    """Every file that can be ordered is in one batch of its group, in order; only a group's last batch has room.

    So are the files of a further order. The labels of all batches, also of 10,000, sort like their numbers.
    """
    selected = [
        ReportJobFile(0, number, None, group, None, None if is_known else "not in the lake")
        for number, (group, is_known) in enumerate(sorted(files))
    ]
    expected = []
    for group, members in groupby((file for file in selected if not file.reason), lambda file: file.group_name):
        ids = [file.file_id for file in members]
        expected += [(group, tuple(ids[at : at + max_files])) for at in range(0, len(ids), max_files)]
    batches = make_batches(selected, max_files)
    further = make_batches(selected, max_files, batches)
    for made in (batches, further):
        assert [(batch.group_name, batch.files) for batch in made] == expected
        assert len({len(batch.label) for batch in made}) <= 1
    labels = [batch.label for batch in (*batches, *further)]
    assert labels == sorted(set(labels))
    assert [batch.batch for batch in (*batches, *further)] == list(range(1, 2 * len(expected) + 1))
    assert LIMIT == 100


def _name(group: str | None, number: int = 1, suffix: str = "") -> str:
    return name_pdf(ReportBatch(number, f"{number:04}{suffix}", group, files=(1,)))


@every(
    ("group", "start"),
    [
        ("東京支店", "東京支店-"),
        ("المكتب الرئيسي", "المكتب_الرئيسي-"),
        ("Zu\u0308rich", "Zürich-"),
        ("a/b\\c\x00d\u202e", "a_b_c_d_-"),
        ("日" * 80, "日" * 50 + "-"),
        ("..", "_-"),
        (None, "report-"),
    ],
)
def test_groups_of_any_script_are_readable(group: str | None, start: str) -> None:
    """Letters of every script stay in the name; separators, control and direction characters do not."""
    name = _name(group)
    assert name.startswith(start), name
    assert len(f"{name}.damaged-99".encode()) < 255


DEVICES = {"con", "prn", "aux", "nul", "conin$", "conout$", "clock$"} | {
    f"{port}{number}" for port in ("com", "lpt") for number in "0123456789\u00b9\u00b2\u00b3"
}
ODD_GROUPS = [
    *(f"{name}{end}" for name in sorted(DEVICES) for end in ("", ".txt", ".", " ", "..x", ":", "-1")),
    *(f"{name.upper()}.{name}" for name in sorted(DEVICES)),
    *("a.", "a ", "a. .", " a", "a:b", "a<b>", 'a"b', "a|b", "a?b", "a*b", "a/b", "a\\b", "a\x7f", "a\x1f", "a\u0085b"),
    *("../../.ssh/x", "/etc/x", "C:\\x", "\0", "a\nb", ".", "\u202e"),
]


@given(st.lists(st.text(max_size=80)), st.integers(1, 99999))
@example(ODD_GROUPS, 1)
def test_names_stay_in_the_folder(groups: list[str], number: int) -> None:
    """For every group a name is visible, of limited length, without separator, legal on Windows, and has its batch."""
    for group in groups:
        name = _name(group, number, "ab")
        assert all(unicodedata.category(char)[0] in "LMN" or char in "._-" for char in name)
        assert name[0] not in ".-"
        assert len(name.encode()) < 210
        assert ".." not in name
        assert name.partition(".")[0].rstrip(" ").casefold() not in DEVICES
        assert not re.search(r"[<>:\"/\\|?*\x00-\x1f\x7f]", name)
        assert name.endswith(f"-{number:04}ab.pdf")


def test_read_ids() -> None:
    """A header, comments and empty lines are skipped; a line without an id is an error with its number."""
    assert read_ids(["file_id\n", "1\n", "\n", " 9007199254740993 \n", "# no\n"], "x") == (1, 9007199254740993)
    for wrong in ("1.5", "0x1", "9223372036854775808", "1 2"):
        with pytest.raises(SettingsError, match="x, line 2"):
            read_ids(["1", wrong], "x")


def test_the_same_ids_in_another_order_are_the_same_selection() -> None:
    """The order of a list of ids does not change the job."""
    assert Selection("ids", ids=(3, 1, 1)).to_json() == Selection("ids", ids=(1, 3)).to_json()
    assert Selection("ids", ids=(3, 1)).to_json() != Selection("ids", ids=(1, 4)).to_json()


def test_a_change_of_an_order_does_not_read_the_others() -> None:
    """The progress counts the last orders of the present batches, and no change of one walks all of a large job."""

    class Batches(dict[int, ReportBatch]):
        def __iter__(self) -> NoReturn:
            raise AssertionError

    class Shown(Progress):
        counts = ReportProgress()

        def update(self, state: Any, total: int | None = None) -> None:
            assert total == state.total
            self.counts = state

    missing: Any = None
    state = ReportRunState(missing, missing, missing, missing, 1.0, shown := Shown(), batches=Batches())
    state.take_up_orders([ReportOrderRecord(2, at, "name", OrderState.FAILED, 1, 0) for at in (1, 2)])
    for number in (1, 2, 3):
        state.set_batch(ReportBatch(number, str(number), None, files=(number,)))
    for number, last in ((1, OrderState.SAVED), (1, OrderState.DELIVERED), (3, OrderState.ORDERED)):
        state.replace_order(ReportOrderRecord(number, 1, "name", last, 1, 0))
    assert (shown.counts.pdfs, shown.counts.failed, shown.counts.waiting, shown.counts.total) == (1, 1, 1, 3)
    state.set_batch(ReportBatch(2, "2", None, files=()))
    state.update_progress()
    assert (shown.counts.pdfs, shown.counts.failed, shown.counts.waiting, shown.counts.total) == (1, 0, 1, 2)
