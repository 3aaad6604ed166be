"""Windows of targets in memory, on their way to the slots of files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field

import numpy as np
from numpy.typing import NDArray

from intarsia.frozen import frozen
from intarsia.mesh import Box
from intarsia.planning.manifest import Target
from intarsia.run.room import Bytes
from intarsia.run.slots import Cut
from intarsia.run.sums.neighbours import Run
from intarsia.value import Window
from intarsia.value.bits import bits_dtype

Rows = NDArray[np.uint8]
"""Bytes of several targets, those of each in a row."""


@frozen
class Filled:
    """One window of each of several targets that are cut alike, row-major in memory, and their boxes of slots.

    `wholes` has the windows in its rows; each array of `boxes` has in its rows what one box of the cut is of
    each.  `runs` are what the windows are summed as, with others; None for a window that is summed alone, of
    which `parts` are what those of the target's value hold for each element.
    """

    targets: Sequence[Target]
    window: Box
    cut: Cut
    wholes: Rows
    boxes: Sequence[Rows]
    runs: Sequence[Run] | None
    parts: Mapping[str, Window] = field(default_factory=dict)


def cut_boxes(
    targets: Sequence[Target],
    window: Box,
    cut: Cut,
    wholes: Rows,
    runs: Sequence[Run] | None,
    room: Bytes,
) -> Filled:
    """Windows that are filled, cut into the boxes of slots; `room` has as many bytes.

    A box that is consecutive bytes of its window stays where it is, one that is not is copied for all
    windows at once.
    """
    dtype = targets[0].dtype
    size, bits, count = dtype.itemsize, bits_dtype(dtype), len(targets)
    boxes: list[Rows] = []
    used = 0
    for each in cut.boxes:
        length = each.box.size * size
        if each.index is None:
            rows = wholes[:, each.start * size : each.start * size + length]
        else:
            rows = room[used : used + count * length].reshape(count, length)
            used += count * length
            found = wholes.view(bits).reshape(count, *window.shape)[(slice(None), *each.index)]
            rows.view(bits).reshape(count, *each.box.shape)[...] = found
        boxes.append(rows)
    return Filled(targets, window, cut, wholes, boxes, runs)
