"""Batches and names, without a service."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import SettingsError
from pipeline.exports.batches import checked_pattern, cut, stem
from pipeline.exports.selection import Chosen, Wish, read_ids
from pipeline.lake.orders import Batch

NAMES = st.text(max_size=80) | st.sampled_from(["../../.ssh/x", "/etc/x", "C:\\x", "CON", "\0", "a\nb", ".", "\u202e"])


@pytest.mark.parametrize(
    ("count", "sizes"), [(0, []), (1, [1]), (99, [99]), (100, [100]), (101, [100, 1]), (250, [100, 100, 50])]
)
def test_batches_hold_a_hundred(count: int, sizes: list[int]) -> None:
    """At most 100 files a batch, in order."""
    files, batches = cut([Chosen(number, None) for number in range(count)])
    assert [len(batch.files) for batch in batches] == sizes
    assert [file_id for batch in batches for file_id in batch.files] == list(range(count))
    assert [file.batch for file in files] == [place // 100 + 1 for place in range(count)]


@given(st.lists(st.integers(0, 3)), st.integers(0, 5))
def test_groups_stay_apart_and_each_file_has_one_batch(groups: list[int], unknown: int) -> None:
    """Every orderable file is in exactly one batch, whose files are all of its group; the others are in none."""
    chosen = [Chosen(place, None, str(group)) for place, group in enumerate(sorted(groups))]
    chosen += [Chosen(-place, None, reason="not in the lake") for place in range(1, unknown + 1)]
    files, batches = cut(chosen)
    assert [file_id for batch in batches for file_id in batch.files] == list(range(len(groups)))
    by_id = {each.file_id: each.group for each in chosen}
    assert all({by_id[file_id] for file_id in batch.files} == {batch.group_name} for batch in batches)
    assert [file.batch is None for file in files] == [each.reason is not None for each in chosen]


@given(NAMES, st.text(alphabet="abc./\\ -{}", max_size=40), st.integers(1, 99999))
def test_names_stay_in_the_folder(group: str, text: str, number: int) -> None:
    """Whatever the group and the pattern, a name is plain, visible, of bounded length, and holds its batch."""
    label = f"{number:04}ab"
    try:
        pattern = checked_pattern("{group}" + text, grouped=True)
    except SettingsError:
        return
    name = stem(pattern, Batch(number, label, group, split=False, files=(1,)))
    assert re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}", name)
    assert label in name
    assert ".." not in name


def test_patterns_know_their_fields() -> None:
    """The batch is always part of the name; fields that are not known are refused."""
    assert checked_pattern(None, grouped=False) == "report-{batch}"
    assert checked_pattern("audit", grouped=False) == "audit-{batch}"
    for wrong in ("{reference}", "{batch.__class__}", "{batch", "batch}"):
        with pytest.raises(SettingsError, match="--name"):
            checked_pattern(wrong, grouped=False)


def test_lists_of_ids() -> None:
    """A head, comments and empty lines are passed over; what is no id is named with its line."""
    assert read_ids(["file_id\n", "1\n", "\n", " 9007199254740993 \n", "# no\n"], "x") == (1, 9007199254740993)
    for wrong in ("1.5", "0x1", "9223372036854775808", "1 2"):
        with pytest.raises(SettingsError, match="x, line 2"):
            read_ids(["1", wrong], "x")


def test_the_same_ids_in_another_order_are_the_same_selection() -> None:
    """A job begun with a list is resumed with it however it is sorted."""
    assert Wish("ids", ids=(3, 1, 1)).words() == Wish("ids", ids=(1, 3)).words()
    assert Wish("ids", ids=(3, 1)).words() != Wish("ids", ids=(1, 4)).words()
