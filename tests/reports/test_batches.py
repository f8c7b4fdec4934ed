"""Batches and names of PDFs."""

from __future__ import annotations

import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import SettingsError
from pipeline.lake.request_log import ReportBatch, ReportJobFile
from pipeline.reports.batches import make_batches, name_pdf
from pipeline.reports.models import JobOptions
from pipeline.reports.selection import Selection, read_ids
from tests.rows import every

NAMES = st.text(max_size=80) | st.sampled_from(["../../.ssh/x", "/etc/x", "C:\\x", "CON", "\0", "a\nb", ".", "\u202e"])


LIMIT = JobOptions("", {}).max_batch_files
"""What the service allows; the tests of jobs have less."""


def _selected(file_id: int, group: str | None = None, reason: str | None = None) -> ReportJobFile:
    return ReportJobFile(0, file_id, None, group, None, reason)


@given(st.lists(st.integers(0, 3)), st.integers(0, 5))
def test_groups_stay_apart_and_each_file_has_one_batch(groups: list[int], unknown: int) -> None:
    """Every file that can be ordered is in exactly one batch of its group; the others are in none."""
    selected = [_selected(position, str(group)) for position, group in enumerate(sorted(groups))]
    selected += [_selected(-number, reason="not in the lake") for number in range(1, unknown + 1)]
    batches = make_batches(selected)
    assert [file_id for batch in batches for file_id in batch.files] == list(range(len(groups)))
    by_id = {file.file_id: file.group_name for file in selected}
    assert all({by_id[file_id] for file_id in batch.files} == {batch.group_name} for batch in batches)


def _name(group: str | None, number: int = 1, suffix: str = "") -> str:
    return name_pdf(ReportBatch(number, f"{number:04}{suffix}", group, split=False, files=(1,)))


def test_labels_sort_in_the_order_of_the_batches() -> None:
    """The labels of all batches, also of 10,000, have the same length and sort like their numbers."""
    for count in (1, 9_999, 10_000):
        batches = make_batches([_selected(number, str(number)) for number in range(count)])
        labels = [batch.label for batch in batches]
        assert (len(labels), sorted(labels)) == (count, labels)
        further = make_batches([_selected(1, "x")], existing=batches)
        assert further[0].label > labels[-1]
        assert further[0].batch == count + 1


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
]


def is_legal_on_windows(name: str) -> bool:
    """Return whether Windows, too, can create a file with this name."""
    is_device = name.partition(".")[0].rstrip(" ").casefold() in DEVICES
    return not (is_device or re.search(r"[<>:\"/\\|?*\x00-\x1f\x7f]", name) or name.endswith((".", " ")))


def _check_name(name: str) -> None:
    assert all(unicodedata.category(char)[0] in "LMN" or char in "._-" for char in name)
    assert name[0] not in ".-"
    assert len(name.encode()) < 210
    assert ".." not in name
    assert is_legal_on_windows(name)


@given(NAMES | st.sampled_from(ODD_GROUPS), st.integers(1, 99999))
def test_names_stay_in_the_folder(group: str, number: int) -> None:
    """For every group a name is visible, of limited length, has no separator, and contains its batch."""
    _check_name(_name(group, number, "ab"))
    assert _name(group, number, "ab").endswith(f"-{number:04}ab.pdf")


def test_names_are_legal_on_windows() -> None:
    """No group gives a device's name, a reserved character, or a dot or blank at the end."""
    for number, group in enumerate(ODD_GROUPS, 1):
        _check_name(_name(group, number))


@given(st.integers(1, 5) | st.just(LIMIT), st.integers(1, 12) | st.integers(99, 201))
def test_no_batch_has_more_files_than_allowed(max_files: int, count: int) -> None:
    """Files of one reference are in as many PDFs as the limit demands, in order, also when they are ordered again."""
    files = [_selected(number, "R") for number in range(count)]
    batches = make_batches(files, max_files)
    further = make_batches(files, max_files, batches)
    for group in (batches, further):
        assert [file_id for batch in group for file_id in batch.files] == list(range(count))
        *full, last = [len(batch.files) for batch in group]
        assert (set(full) <= {max_files}, 0 < last <= max_files) == (True, True)
    assert LIMIT == 100


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
