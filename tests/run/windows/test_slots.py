"""The slots of a window are those that a look at every slot finds, in the same order."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from numpy.typing import NDArray

from intarsia.dtypes import BY_NAME
from intarsia.format.base import Slot
from intarsia.format.torch_file.torch_frame import Frame, frame
from intarsia.mesh import Box
from intarsia.run.windows.slots import Slots


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
        pattern = Slots({"x": slots}).pattern("x")
        for window in boxes(random, rank):
            met = [(k, slot.box.meet(window)) for k, slot in enumerate(slots)]
            found = [(each.number, each.box) for each in pattern.cut(window).boxes]
            assert found == [each for each in met if each[1] is not None]


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_a_box_is_where_numpy_finds_it_in_the_window_and_in_the_slot(rank: int) -> None:
    random, shape = Random(rank), (13,) * rank
    elements = np.arange(13**rank).reshape(shape)
    for _ in range(50):
        whole = [box for box in boxes(random, rank) if box.size]
        for window in [box for box in boxes(random, rank) if box.size]:
            cut = Slots({"x": [Slot(box, "file", 0) for box in whole]}).pattern("x").cut(window)
            in_window = part(elements, window)
            for each in cut.boxes:
                wanted, slot = part(elements, each.box), part(elements, whole[each.number])
                flat = in_window.reshape(-1)[each.start : each.start + each.box.size]
                found = flat if each.index is None else in_window[each.index]
                assert np.array_equal(found.reshape(-1), wanted.reshape(-1))
                assert slot.reshape(-1)[each.first] == wanted.reshape(-1)[0]
                assert each.whole == (wanted.size == slot.size)
            assert cut.finishes == all(each.whole for each in cut.boxes)


def part(elements: NDArray[np.int64], box: Box) -> NDArray[np.int64]:
    ranges = zip(box.offsets, box.shape, strict=True)
    return elements[tuple(slice(o, o + n) for o, n in ranges)]


def test_targets_have_one_pattern_where_boxes_and_wrappings_are_equal() -> None:
    rows = [Box((0, 0), (2, 4)), Box((2, 0), (2, 4))]
    columns = [Box((0, 0), (4, 2)), Box((0, 2), (4, 2))]
    wrap = frame(BY_NAME["BF16"], (2, 4))

    def placed(boxes: list[Box], at: int, wrapping: Frame | None) -> list[Slot]:
        return [Slot(box, f"file{k}", at + k, wrapping) for k, box in enumerate(boxes)]

    slots = Slots(
        {
            "a": placed(rows, 0, wrap),
            "b": placed(rows, 99, wrap),
            "bare": placed(rows, 0, None),
            "columns": placed(columns, 0, wrap),
            "turned": placed(rows[::-1], 0, wrap),
            "first": placed(rows[:1], 0, wrap),
        }
    )
    patterns = {
        name: slots.pattern(name) for name in ("a", "b", "bare", "columns", "turned", "first")
    }
    assert patterns["a"] is patterns["b"]
    assert len({id(pattern) for pattern in patterns.values()}) == 5
