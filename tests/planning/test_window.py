"""Windows partition a tensor in order, within their limit, and cut every box in one stretch."""

from __future__ import annotations

from math import prod

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from intarsia.mesh import Box
from intarsia.planning.window import flat_start, slabs_of, windows, windows_beside

shapes = st.lists(st.integers(0, 7), max_size=4).map(tuple)
some = settings(max_examples=100, deadline=None)


def slices(box: Box) -> tuple[slice, ...]:
    return tuple(slice(o, o + n) for o, n in zip(box.offsets, box.shape, strict=True))


@some
@given(shapes, st.sampled_from([1, 2, 4, 8]), st.integers(1, 300))
def test_windows_hold_every_element_once_in_row_major_order(shape, itemsize, limit) -> None:
    whole = np.arange(prod(shape)).reshape(shape)
    found = [whole[slices(box)].reshape(-1) for box in windows(shape, itemsize, limit)]
    assert np.array_equal(np.concatenate(found), whole.reshape(-1))


@some
@given(shapes, st.sampled_from([1, 2, 4, 8]), st.integers(1, 300))
def test_a_window_is_within_its_limit_or_one_element(shape, itemsize, limit) -> None:
    for box in windows(shape, itemsize, limit):
        assert box.size * itemsize <= limit or box.size == 1


@some
@given(shapes, st.integers(1, 300), st.data())
def test_a_window_takes_one_stretch_of_any_box(shape, limit, data) -> None:
    ends = [sorted((data.draw(st.integers(0, n)), data.draw(st.integers(0, n)))) for n in shape]
    outer = Box(tuple(lo for lo, _ in ends), tuple(hi - lo for lo, hi in ends))
    inside = np.full(shape, -1)
    inside[slices(outer)] = np.arange(outer.size).reshape(outer.shape)
    for window in windows(shape, 1, limit):
        part = outer.meet(window)
        if part is None or not outer.size:
            continue
        start = flat_start(part, outer)
        stretch = inside[slices(part)].reshape(-1)
        assert np.array_equal(stretch, np.arange(start, start + part.size))


@some
@given(shapes, st.data())
def test_slabs_are_the_elements_of_a_range_in_order_and_few(shape, data) -> None:
    start, end = sorted(data.draw(st.integers(0, prod(shape))) for _ in range(2))
    whole = np.arange(prod(shape)).reshape(shape)
    found = [whole[slices(box)].reshape(-1) for box in slabs_of(shape, start, end)]
    assert np.array_equal(np.concatenate([np.arange(0), *found]), np.arange(start, end))
    assert len(found) <= max(1, 2 * len(shape) - 1)


@some
@given(shapes, st.integers(1, 300), st.data())
def test_windows_beside_what_is_done_are_the_rest(shape, limit, data) -> None:
    ends = sorted(data.draw(st.lists(st.integers(0, prod(shape)), max_size=6)))
    done = list(zip(ends[::2], ends[1::2], strict=False))
    data.draw(st.randoms(use_true_random=False)).shuffle(done)
    whole = np.arange(prod(shape)).reshape(shape)
    windows_left = list(windows_beside(shape, 1, limit, done))
    found = [whole[slices(box)].reshape(-1) for box in windows_left]
    rest = np.setdiff1d(np.arange(prod(shape)), [k for lo, hi in done for k in range(lo, hi)])
    assert np.array_equal(np.concatenate([np.arange(0), *found]), rest)
    assert all(box.size <= limit or box.size == 1 for box in windows_left)
