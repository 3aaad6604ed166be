"""What a step has written: windows of targets, and with them parts of slots."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import field

from intarsia.frozen import frozen
from intarsia.mesh import Box
from intarsia.planning.manifest import Target
from intarsia.run.losses import Losses
from intarsia.run.sums.hashing import Sum
from intarsia.run.windows.slots import Slots


@frozen
class Written:
    """What a step wrote: windows, the CRC-32 of each box of a slot in each, what numbers lost, and sums."""

    windows: tuple[tuple[Target, Box], ...]
    crcs: tuple[tuple[int, ...], ...]
    losses: Losses
    sums: Mapping[tuple[str, str], Sum] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        return sum(box.size * target.dtype.itemsize for target, box in self.windows)


NOTHING = Written((), (), Counter())


@frozen
class SlotPart:
    """A stretch of a slot that one step writes; its checksum joins those of the slot's other parts."""

    target: str
    slot: int
    start_bytes: int
    length_bytes: int
    crc: int
    whole: bool


def has_crcs(written: Written, slots: Slots) -> bool:
    """Whether there is a checksum for each box that slots have in the windows of a step."""
    return len(written.windows) == len(written.crcs) and all(
        len(slots.pattern(target.name).cut(window).boxes) == len(crcs)
        for (target, window), crcs in zip(written.windows, written.crcs, strict=True)
    )


def parts_of_slots(written: Written, slots: Slots) -> Iterator[SlotPart]:
    """The parts of slots that a step wrote."""
    for (target, window), crcs in zip(written.windows, written.crcs, strict=True):
        size = target.dtype.itemsize
        for each, crc in zip(slots.pattern(target.name).cut(window).boxes, crcs, strict=True):
            yield SlotPart(
                target.name, each.number, each.first * size, each.box.size * size, crc, each.whole
            )


def unfinished_parts(written: Written, slots: Slots) -> list[SlotPart]:
    """The parts that are not all of a slot whose wrapping needs the checksums of all of it."""
    if all(slots.pattern(t.name).cut(window).finishes for t, window in written.windows):
        return []
    return [
        part
        for part in parts_of_slots(written, slots)
        if not part.whole and slots[part.target][part.slot].wrapping is not None
    ]
