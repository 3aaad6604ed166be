"""Runs of marks that come in parts, and the pages and sectors of a file that they fill."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from intarsia.checking.diagnosis.where.runs import FEW, MarkRuns, Sectors


def test_a_run_goes_on_where_the_next_part_begins_with_a_mark() -> None:
    runs = MarkRuns()
    runs.add(0, np.array([False, True]))
    runs.add(2, np.array([True, False, True]))
    assert (runs.few, runs.count, runs.marks) == (((1, 3), (4, 5)), 2, 3)


@settings(max_examples=30)
@given(st.lists(st.booleans(), max_size=60), st.integers(1, 60))
def test_runs_do_not_depend_on_the_parts_that_they_come_in(marks: list[bool], step: int) -> None:
    whole, parts = MarkRuns(), MarkRuns()
    whole.add(0, np.array(marks, np.bool_))
    for at in range(0, len(marks), step):
        parts.add(at, np.array(marks[at : at + step], np.bool_))
    assert parts == whole
    assert whole.marks == sum(marks)
    assert len(whole.few) == (whole.count if whole.count <= FEW else 0)


def page_of(differ: np.ndarray, start_bytes: int, step: int) -> int:
    sectors = Sectors()
    for at in range(0, len(differ), step):
        sectors.add(start_bytes + 2 * at, 2, differ[at : at + step], None)
    return sectors.close()


@pytest.mark.parametrize("step", [100, 1024, 8192])
@pytest.mark.parametrize(("first", "end", "page"), [
    (2048, 4096, 4096), (2048, 6144, 4096), (256, 512, 512), (2048, 4095 - 64, 0), (0, 8192, 0),
])  # fmt: skip
def test_whole_pages_and_sectors_are_told_from_parts(
    first: int, end: int, page: int, step: int
) -> None:
    differ = np.zeros(8192, np.bool_)
    differ[first:end] = True
    assert page_of(differ, 0, step) == page


def test_pages_are_those_of_the_file_and_not_of_the_tensor() -> None:
    differ = np.zeros(8192, np.bool_)
    differ[2048:4096] = True
    assert page_of(differ, 64, 8192) == 0
    assert page_of(np.roll(differ, -32), 64, 8192) == 4096
