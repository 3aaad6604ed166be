"""Windows of targets in memory, on their way to the slots of files."""

from __future__ import annotations

from collections.abc import Sequence

from intarsia.dtypes import DType
from intarsia.frozen import frozen
from intarsia.mesh import Box
from intarsia.planning.manifest import Target
from intarsia.run.room import Bytes
from intarsia.run.windows.slots import CutWindow
from intarsia.value.bits import bits_dtype


@frozen
class Filled:
    """A window of a target, row-major in memory, and the boxes of slots that it is cut into."""

    target: Target
    window: Box
    cut: CutWindow
    whole: Bytes
    boxes: Sequence[Bytes]


def cut_boxes(dtype: DType, window: Box, cut: CutWindow, whole: Bytes, room: Bytes) -> list[Bytes]:
    """A window that is filled, cut into the boxes of slots; `room` has as many bytes.

    A box that is consecutive bytes of its window stays where it is, one that is not is copied.
    """
    size, bits, used = dtype.itemsize, bits_dtype(dtype), 0
    boxes: list[Bytes] = []
    for each in cut.boxes:
        length = each.box.size * size
        if each.index is None:
            boxes.append(whole[each.start * size : each.start * size + length])
            continue
        box = room[used : used + length]
        used += length
        found = whole.view(bits).reshape(window.shape)[each.index]
        box.view(bits).reshape(each.box.shape)[...] = found
        boxes.append(box)
    return boxes
