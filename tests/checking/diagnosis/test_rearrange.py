"""Orders of rows do to layouts what NumPy's `take` does to arrays."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from intarsia.checking.diagnosis.rearranged.order import (
    along,
    compose,
    inverse,
    numbers,
    of_runs,
    unmoved,
)
from intarsia.layout import Layout, concat
from tests.oracle.layouts import ids


@given(st.permutations(range(9)))
def test_any_order_is_its_runs(order: list[int]) -> None:
    assert numbers(of_runs(np.array(order))).tolist() == order


@given(st.permutations(range(8)))
def test_an_order_and_its_inverse_leave_all_in_place(order: list[int]) -> None:
    there = of_runs(np.array(order))
    assert numbers(compose(inverse(there), there)).tolist() == [*range(8)]


@given(st.integers(0, 2), st.data())
def test_along_takes_indices_of_an_axis(axis: int, data: st.DataObject) -> None:
    shape = (4, 3, 5)
    order = data.draw(st.lists(st.integers(0, shape[axis] - 1), min_size=1, max_size=6))
    array = np.arange(60).reshape(shape)
    found = along(Layout.of("w", shape), axis, of_runs(np.array(order)))
    assert np.array_equal(ids(found), np.take(array, order, axis))


def test_composing_reads_through_a_concatenation() -> None:
    fused = concat([Layout.of("w", (2, 3)), Layout.of("v", (2, 3))])
    swapped = concat([unmoved(4).narrow(0, 2, 4), unmoved(4).narrow(0, 0, 2)])
    expected = concat([Layout.of("v", (2, 3)), Layout.of("w", (2, 3))])
    assert np.array_equal(ids(along(fused, 0, swapped)), ids(expected))


def test_empty_places_stay_empty() -> None:
    assert numbers(of_runs(np.array([3, -1, 0]))).tolist() == [3, -1, 0]
