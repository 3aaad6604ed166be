"""The slots of a window are those that a look at every slot finds, in the same order."""

from __future__ import annotations

from random import Random

import pytest

from intarsia.format.base import Slot
from intarsia.mesh import Box
from intarsia.run.slots import TargetSlots


def boxes(random: Random, rank: int) -> list[Box]:
    """Boxes that overlap, are empty, and come in no order."""
    sides = [(random.randrange(9), random.randrange(5)) for _ in range(12 * max(rank, 1))]
    return [
        Box(tuple(o for o, _ in some), tuple(n for _, n in some))
        for some in (random.sample(sides, rank) for _ in range(random.randrange(30)))
    ]


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_every_slot_of_a_window_is_found_once_in_the_order_of_the_target(rank: int) -> None:
    random = Random(rank)
    for _ in range(200):
        slots = [Slot(box, "file", 0) for box in boxes(random, rank)]
        found = TargetSlots(slots)
        for window in boxes(random, rank):
            met = [(k, slot, slot.box.meet(window)) for k, slot in enumerate(slots)]
            assert list(found.in_window(window)) == [each for each in met if each[2] is not None]
