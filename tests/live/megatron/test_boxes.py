"""Boxes of a tensor that a piece of a buffer fills, against NumPy."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from intarsia.layout import Layout, concat
from intarsia.live.megatron.boxes import boxes_of_piece
from intarsia.mesh import Box


def gathered(
    layout: Layout, buffer: np.ndarray, shape: tuple[int, ...]
) -> tuple[np.ndarray, list[Box]]:
    """A tensor filled box by box from a buffer, with the boxes."""
    found, boxes = np.full(shape, -1), []
    for piece in layout.pieces:
        for box, over in boxes_of_piece(piece, shape):
            places = np.full((), over.to)
            for loop in over.loops:
                places = np.add.outer(places, np.arange(loop.n) * loop.to)
            index = tuple(slice(o, o + n) for o, n in zip(box.offsets, box.shape, strict=True))
            assert (found[index] == -1).all()
            found[index] = buffer[places.reshape(-1)].reshape(box.shape)
            boxes.append(box)
    return found, boxes


@given(st.lists(st.integers(1, 5), min_size=0, max_size=3), st.data())
def test_a_flat_slice_is_cut_into_boxes_of_all_its_elements(
    sizes: list[int], data: st.DataObject
) -> None:
    shape = tuple(sizes)
    start = data.draw(st.integers(0, prod(shape)))
    stop = data.draw(st.integers(start, prod(shape)))
    ids = np.arange(prod(shape))
    layout = Layout.of("w", shape).reshape(-1).narrow(0, start, stop)
    found, boxes = gathered(layout, ids[start:stop], shape)
    want = np.where((ids >= start) & (ids < stop), ids, -1).reshape(shape)
    assert (found == want).all()
    assert len(boxes) <= 2 * max(len(shape), 1) - 1


def test_rows_that_lie_apart_in_the_buffer_are_one_box() -> None:
    """The queries of several groups, each group followed by its key."""
    q, k = Layout.of("q", (6, 4)), Layout.of("k", (2, 4))
    fused = concat([q.reshape(2, 3, 4), k.reshape(2, 1, 4)], axis=1).reshape(8, 4)
    buffer = np.arange(32)
    rows = buffer.reshape(2, 4, 4)
    of_q = Layout(fused.shape, tuple(p for p in fused.pieces if p.tensor == "q"))
    found, boxes = gathered(of_q, buffer, (6, 4))
    assert (found == rows[:, :3].reshape(6, 4)).all()
    assert boxes == [Box((0, 0), (6, 4))]


def test_rows_with_others_between_them_are_boxes_of_their_own() -> None:
    every_other = Layout.of("w", (3, 2, 4)).narrow(1, 1, 2).reshape(3, 4)
    buffer = np.arange(12)
    found, boxes = gathered(every_other, buffer, (6, 4))
    assert (found[1::2] == buffer.reshape(3, 4)).all()
    assert boxes == [Box((row, 0), (1, 4)) for row in (1, 3, 5)]


@pytest.mark.parametrize("axis", [0, 1])
def test_a_tensor_parallel_part_is_one_box(axis: int) -> None:
    part = Layout.of("w", (4, 6)).narrow(axis, 2, 4)
    want = np.arange(24).reshape(4, 6).take([2, 3], axis)
    found, boxes = gathered(part, want.reshape(-1), (4, 6))
    assert len(boxes) == 1
    assert (found.take([2, 3], axis) == want).all()
