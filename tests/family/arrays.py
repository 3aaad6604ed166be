"""Layouts carried out on NumPy arrays, the slow and obvious way."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np
from numpy.lib.stride_tricks import as_strided

from intarsia.layout import Layout


def carried(layout: Layout, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """The array that a layout describes, out of the arrays of its tensors."""
    kinds = {arrays[name].dtype for name in layout.tensors}
    out = np.zeros(prod(layout.shape), kinds.pop())
    assert not kinds, "one stored tensor of several element types"
    for p in layout.pieces:
        flat = np.ascontiguousarray(arrays[p.tensor]).reshape(-1)
        shape = [loop.n for loop in p.loops]
        at = as_strided(out[p.at :], shape, [loop.at * out.itemsize for loop in p.loops])
        to = as_strided(flat[p.to :], shape, [loop.to * flat.itemsize for loop in p.loops])
        at[...] = to
    return out.reshape(layout.shape)


def element_ids(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    """Arrays whose entries are all different, so that no two places can be confused."""
    out, first = {}, 0
    for name, shape in shapes.items():
        n = prod(shape)
        out[name] = np.arange(first, first + n).reshape(shape)
        first += n
    return out
