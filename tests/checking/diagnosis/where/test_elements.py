"""The elements that differ: the block or flat range of a rank that they fill, and the words for them."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from intarsia.checking.diagnosis.where.elements import AxisBlock, AxisSpan, DifferingElements, Flat
from intarsia.checking.diagnosis.where.runs import MarkRuns
from intarsia.mesh import Box

SHAPE = (16, 8)


def elements(differ: NDArray[np.bool_]) -> DifferingElements:
    """What a mask of differences comes to."""
    spans = []
    for axis in range(differ.ndim):
        runs = MarkRuns()
        runs.add(0, differ.any(axis=tuple(k for k in range(differ.ndim) if k != axis)))
        spans.append(AxisSpan(runs.first, runs.end, runs.marks, runs.few))
    box = Box(tuple(s.first for s in spans), tuple(s.end - s.first for s in spans))
    flat = np.flatnonzero(differ)
    return DifferingElements(
        box, len(flat), differ.shape, tuple(spans), int(flat[0]), int(flat[-1])
    )


def mask(*index: slice) -> NDArray[np.bool_]:
    found = np.zeros(SHAPE, np.bool_)
    found[index] = True
    return found


def test_a_rank_s_rows_are_its_block() -> None:
    found = elements(mask(slice(4, 8)))
    assert found.cuts == (AxisBlock(0, 4, 1),)
    assert found.dense
    assert found.is_large
    assert (found.index(found.first), found.index(found.last)) == ((4, 0), (7, 7))
    assert str(found.cuts[0]) == "block 1 of 4 on axis 0"


def test_a_block_of_two_axes_has_a_cut_for_each() -> None:
    found = elements(mask(slice(8, 16), slice(0, 4)))
    assert found.cuts == (AxisBlock(0, 2, 1), AxisBlock(1, 2, 0))


def test_rows_that_no_even_cut_gives_are_no_block() -> None:
    found = elements(mask(slice(3, 9)))
    assert found.cuts is None
    assert found.flat is None


@pytest.mark.parametrize(("lo", "hi", "flat"), [
    (64, 128, Flat(64, 127, 2, 1)), (12, 60, Flat(12, 59)), (8, 16, None),
])  # fmt: skip
def test_a_flat_range_is_a_rank_s_or_cuts_a_row(lo: int, hi: int, flat: Flat | None) -> None:
    differ = np.zeros(SHAPE, np.bool_)
    differ.reshape(-1)[lo:hi] = True
    assert elements(differ).flat == flat


def test_differences_in_nearly_every_element_are_all_over() -> None:
    found = elements(mask(slice(0, 16)))
    assert found.everywhere
    assert found.flat is None
    assert str(found) == "all over the tensor"


def test_rows_and_columns_are_named_where_they_are_few() -> None:
    differ = mask(slice(2, 4), slice(1, 2)) | mask(slice(9, 10), slice(1, 2))
    assert str(elements(differ)) == "100.0% of rows 2 to 3 and 9, column 1"
    differ[::2, 1] = True
    assert str(elements(differ)).startswith("100.0% of 10 of rows 0 to 14, column 1")
