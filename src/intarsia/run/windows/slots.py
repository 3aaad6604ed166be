"""Windows of targets cut into the boxes of slots, worked out once for all targets that are cut alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import add

from intarsia.format.base import Slot, Wrapping
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
class Cut:
    """A window, cut into the boxes of slots; `finishes` says whether each is all of its slot."""

    boxes: tuple[BoxInWindow, ...]
    finishes: bool


class Pattern:
    """What targets have in common that are cut alike: the boxes of their slots, and what is wrapped around them."""

    def __init__(self, boxes: Sequence[Box], wrappings: Sequence[Wrapping | None]) -> None:
        self.boxes = boxes
        self.wrappings = wrappings
        # In the order of their first rows: a target of 4,096 ranks has as many.
        self._order = sorted(range(len(boxes)), key=lambda k: boxes[k].offsets[:1])
        ordered = [boxes[k] for k in self._order]
        starts = [sum(box.offsets[:1]) for box in ordered]
        self._rows = Ranges(starts, map(add, starts, (sum(box.shape[:1]) for box in ordered)))
        self._cuts: dict[Box, Cut] = {}

    def cut(self, window: Box) -> Cut:
        """The boxes of the slots that hold some of a window, in the order of the slots."""
        found = self._cuts.get(window)
        if found is None:
            found = self._cut(window)
            if len(self._cuts) < MOST_CUTS:
                self._cuts[window] = found
        return found

    def _cut(self, window: Box) -> Cut:
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
        return Cut(tuple(found), all(each.whole for each in found))


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
        self._slots = slots
        self._patterns: dict[str, Pattern] = {}
        self._known: dict[tuple[int, Box | None], list[Pattern]] = {}

    def __getitem__(self, name: str) -> Sequence[Slot]:
        return self._slots[name]

    def pattern(self, name: str) -> Pattern:
        """The pattern of a target: the same object for targets that are cut alike."""
        found = self._patterns.get(name)
        if found is None:
            found = self._patterns[name] = self._pattern(self._slots[name])
        return found

    def _pattern(self, slots: Sequence[Slot]) -> Pattern:
        boxes, wrappings = [slot.box for slot in slots], [slot.wrapping for slot in slots]
        near = self._known.setdefault((len(boxes), boxes[-1] if boxes else None), [])
        for known in near:
            if known.boxes == boxes and known.wrappings == wrappings:
                return known
        near.append(Pattern(boxes, wrappings))
        return near[-1]
