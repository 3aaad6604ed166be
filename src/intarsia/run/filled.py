"""Windows of targets in memory, on their way to the slots of files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from intarsia.format.base import Slot
from intarsia.mesh import Box
from intarsia.planning.manifest import Target
from intarsia.planning.window import flat_start, is_stretch
from intarsia.run.room import Bytes
from intarsia.run.sums.neighbours import Run
from intarsia.value import Window
from intarsia.value.bits import bits_dtype


@dataclass(frozen=True, slots=True)
class Part:
    """A stretch of a slot that one step writes; its checksum joins those of the slot's other parts."""

    target: str
    slot: int
    start_bytes: int
    length_bytes: int
    crc: int


@dataclass(frozen=True, slots=True)
class Held:
    """A box of a slot of a target, in memory on its way to a file."""

    target: Target
    number: int
    slot: Slot
    box: Box
    buffer: Bytes

    @property
    def is_partial(self) -> bool:
        """Whether this is a part only of a slot whose wrapping needs all of it."""
        return self.slot.wrapping is not None and self.box.size != self.slot.box.size

    def part(self, crc: int) -> Part:
        start = flat_start(self.box, self.slot.box) * self.target.dtype.itemsize
        return Part(self.target.name, self.number, start, len(self.buffer), crc)


@dataclass(frozen=True, slots=True)
class Filled:
    """A window of a target in memory, row-major, and the boxes of slots that lie in it.

    `in_order` says whether the boxes follow each other in the window's own memory; where they do not,
    those that are no stretch of it lie in memory of their own.  `run` is what it is summed as, with others;
    `parts` are what those of the target's value hold for each of its elements.
    """

    target: Target
    window: Box
    whole: Bytes
    held: tuple[Held, ...]
    in_order: bool
    run: Run | None
    parts: Mapping[str, Window] = field(default_factory=dict)


def cut_boxes(
    target: Target,
    window: Box,
    whole: Bytes,
    run: Run | None,
    slots: Iterable[tuple[int, Slot, Box]],
    room: Bytes,
) -> Filled:
    """A window that is filled, cut into the boxes of slots; `room` has as many bytes."""
    size, bits = target.dtype.itemsize, bits_dtype(target.dtype)
    held: list[Held] = []
    in_order, at, used = True, 0, 0
    for number, slot, box in slots:
        length = box.size * size
        if is_stretch(box, window):
            start = flat_start(box, window) * size
            in_order, at = in_order and start == at, start + length
            buffer = whole[start : start + length]
        else:
            in_order = False
            buffer, used = room[used : used + length], used + length
            inside: Any = tuple(
                slice(o - w, o - w + n)
                for o, w, n in zip(box.offsets, window.offsets, box.shape, strict=True)
            )
            found = whole.view(bits).reshape(window.shape)[inside]
            buffer.view(bits).reshape(box.shape)[...] = found
        held.append(Held(target, number, slot, box, buffer))
    return Filled(target, window, whole, tuple(held), in_order and at == len(whole), run)
