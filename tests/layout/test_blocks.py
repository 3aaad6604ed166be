"""One place for each block of a tensor, as NumPy repeats them."""

from __future__ import annotations

import numpy as np
import pytest

from intarsia.layout import cover
from intarsia.layout.blocks import grid_of, one_per_block
from intarsia.layout.layout import Layout


@pytest.mark.parametrize(
    ("shape", "block"),
    [
        ((11, 14), (4, 3)),
        ((8, 6), (4, 3)),
        ((5, 7), (1, 7)),
        ((5, 7), (5, 7)),
        ((3, 2), (8, 9)),
        ((7,), (2,)),
        ((3, 5, 4), (2, 2, 3)),
        ((1, 1), (1, 1)),
        ((4, 0), (2, 2)),
    ],
)
def test_each_element_has_the_place_of_its_block(
    shape: tuple[int, ...], block: tuple[int, ...]
) -> None:
    layout = one_per_block("w", shape, block)
    grid = grid_of(shape, block)
    expected = np.arange(np.prod(grid, dtype=int)).reshape(grid)
    for axis, b in enumerate(block):
        expected = expected.repeat(b, axis)
    expected = expected[tuple(slice(n) for n in shape)]
    places = np.full(np.prod(shape, dtype=int), -1)
    for piece in layout.pieces:
        at, to = np.array(piece.at), np.array(piece.to)
        for loop in piece.loops:
            at = at[..., None] + np.arange(loop.n) * loop.at
            to = to[..., None] + np.arange(loop.n) * loop.to
        assert (places[to] == -1).all(), "no element has two"
        places[to] = at
    assert (places.reshape(shape) == expected).all()
    found = cover(Layout.of("w", shape), [layout])
    assert (found.covered, found.doubled) == (np.prod(shape, dtype=int), 0)
    assert len(layout.pieces) <= 2 ** len(shape)
