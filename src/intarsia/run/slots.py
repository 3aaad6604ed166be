"""The slots of a target, found by a window of it."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate

from intarsia.format.base import Slot
from intarsia.mesh import Box


class TargetSlots:
    """The slots of one target, in the order of their first rows: a target of 4,096 ranks has as many."""

    def __init__(self, slots: Sequence[Slot]) -> None:
        self._slots = slots
        self._order = sorted(range(len(slots)), key=lambda k: slots[k].box.offsets[:1])
        boxes = [slots[k].box for k in self._order]
        self._starts = [sum(box.offsets[:1]) for box in boxes]
        ends = (sum(box.offsets[:1]) + sum(box.shape[:1]) for box in boxes)
        self._ends = list(accumulate(ends, max))

    def in_window(self, window: Box) -> Iterator[tuple[int, Slot, Box]]:
        """The number of each slot that holds some of a window, the slot, and the box of what it holds."""
        numbers = self._order
        if window.offsets:
            start, stop = window.offsets[0], window.offsets[0] + window.shape[0]
            near = slice(bisect_right(self._ends, start), bisect_left(self._starts, stop))
            numbers = sorted(self._order[near])
        for number in numbers:
            slot = self._slots[number]
            box = slot.box.meet(window)
            if box is not None:
                yield number, slot, box
