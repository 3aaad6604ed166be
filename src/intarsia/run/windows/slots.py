"""Windows of targets cut into the boxes of slots, worked out once for all targets that are cut alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import add

from intarsia.format.arrangement import Slot, SlotColumns, Wrapped, in_columns
from intarsia.frozen import frozen
from intarsia.mesh import Box
from intarsia.planning.ranges import Ranges
from intarsia.planning.window import flat_start, is_stretch

MOST_CUTS = 1 << 12
"""Windows of one pattern whose cuts are kept; those of more are worked out again."""


@frozen
class BoxInWindow:
    """What a window holds of slot `number`: `start` is its first element in the window, `first` in the slot.

    `index` selects it from the window, None where it is consecutive elements of that; `whole` says whether
    it is all of the slot.
    """

    number: int
    box: Box
    start: int
    first: int
    index: tuple[slice, ...] | None
    whole: bool


@frozen
class CutWindow:
    """A window, cut into the boxes of slots; `finishes` says whether each is all of its slot."""

    boxes: tuple[BoxInWindow, ...]
    finishes: bool


class Pattern:
    """What targets have in common that are cut alike: the boxes of their slots, and what is wrapped around them."""

    def __init__(self, wrapped: Wrapped) -> None:
        self.boxes, self.wrappings = self.wrapped = wrapped
        boxes = self.boxes
        # What is wrapped around no elements is written all the same.
        around = enumerate(zip(*wrapped, strict=True))
        self.empty = [k for k, (box, x) in around if x is not None and 0 in box.shape]
        # In the order of their first rows: a target of 4,096 ranks has as many.
        self._order = sorted(range(len(boxes)), key=lambda k: boxes[k].offsets[:1])
        ordered = [boxes[k] for k in self._order]
        starts = [sum(box.offsets[:1]) for box in ordered]
        self._rows = Ranges(starts, map(add, starts, (sum(box.shape[:1]) for box in ordered)))
        self._cuts: dict[Box, CutWindow] = {}

    def cut(self, window: Box) -> CutWindow:
        """The boxes of the slots that hold some of a window, in the order of the slots."""
        found = self._cuts.get(window)
        if found is None:
            found = self._cut(window)
            if len(self._cuts) < MOST_CUTS:
                self._cuts[window] = found
        return found

    def _cut(self, window: Box) -> CutWindow:
        numbers = self._order
        if window.offsets:
            start, stop = window.offsets[0], window.offsets[0] + window.shape[0]
            numbers = sorted(self._order[self._rows.near(start, stop)])
        found: list[BoxInWindow] = []
        for number in numbers:
            slot = self.boxes[number]
            box = slot.meet(window)
            if box is None:
                continue
            start, first = flat_start(box, window), flat_start(box, slot)
            whole = box.size == slot.size
            found.append(BoxInWindow(number, box, start, first, _index(box, window), whole))
        return CutWindow(tuple(found), all(each.whole for each in found))


def _index(box: Box, window: Box) -> tuple[slice, ...] | None:
    if is_stretch(box, window):
        return None
    return tuple(
        slice(o - w, o - w + n)
        for o, w, n in zip(box.offsets, window.offsets, box.shape, strict=True)
    )


class Slots:
    """The slots of targets by their names, and the pattern that each target has."""

    def __init__(self, slots: Mapping[str, Sequence[Slot]]) -> None:
        self._slots = dict(zip(slots, in_columns([*slots.values()]), strict=True))
        self._patterns: dict[int, Pattern] = {}
        self._known: dict[tuple[int | Box, ...], list[Pattern]] = {}

    def __getitem__(self, name: str) -> SlotColumns:
        return self._slots[name]

    def files(self, name: str, window: Box) -> list[str]:
        """The files of the slots that hold some of a window."""
        slots, boxes = self._slots[name], self.pattern(name).cut(window).boxes
        names, numbers = slots.places.names, slots.places.files
        if len(boxes) == len(slots):
            return [names[k] for k in numbers[slots.first : slots.first + len(slots)].tolist()]
        return [names[numbers[slots.first + each.number]] for each in boxes]

    def pattern(self, name: str) -> Pattern:
        """The pattern of a target: the same object for targets that are cut alike."""
        wrapped = self._slots[name].wrapped
        found = self._patterns.get(id(wrapped))
        if found is None:
            found = self._patterns[id(wrapped)] = self._pattern(wrapped)
        return found

    def _pattern(self, wrapped: Wrapped) -> Pattern:
        near = self._known.setdefault((len(wrapped.boxes), *wrapped.boxes[-1:]), [])
        for known in near:
            if known.wrapped == wrapped:
                return known
        near.append(Pattern(wrapped))
        return near[-1]
