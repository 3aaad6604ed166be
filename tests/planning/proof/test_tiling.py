"""Boxes tile a tensor exactly where counting says so, and what is wrong is named."""

from __future__ import annotations

import re
from math import prod

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from intarsia.mesh import Box, Mesh, Rule
from intarsia.planning.proof.tiling import first_missing, tiling_fault

some = settings(max_examples=150, deadline=None)


@st.composite
def cut(draw: st.DrawFn) -> tuple[tuple[int, ...], list[Box]]:
    """A tensor and boxes that often tile it: a mesh's, with some dropped, doubled or moved."""
    shape = tuple(draw(st.lists(st.integers(0, 6), max_size=3)))
    tp = draw(st.integers(0, len(shape) - 1)) if shape else None
    mesh = Mesh(tp=draw(st.integers(1, 3)), fsdp=draw(st.integers(1, 3)))
    boxes = [*mesh.boxes(shape, Rule(tp=tp))]
    for _ in range(draw(st.integers(0, 2))):
        k = draw(st.integers(0, len(boxes) - 1)) if boxes else None
        if k is None:
            break
        what = draw(st.sampled_from(["drop", "double", "shrink", "move"]))
        box = boxes[k]
        if what == "drop":
            boxes.pop(k)
        elif what == "double":
            boxes.append(box)
        elif shape:
            axis = draw(st.integers(0, len(shape) - 1))
            step = [int(a == axis) for a in range(len(shape))]
            if what == "shrink" and box.shape[axis]:
                smaller = tuple(n - s for n, s in zip(box.shape, step, strict=True))
                boxes[k] = Box(box.offsets, smaller)
            elif what == "move":
                moved = tuple(o + s for o, s in zip(box.offsets, step, strict=True))
                boxes[k] = Box(moved, box.shape)
    return shape, draw(st.permutations(boxes))


def count(shape: tuple[int, ...], boxes: list[Box]) -> np.ndarray | None:
    """How many boxes hold each element; None where one leaves the tensor."""
    times = np.zeros(shape, int)
    for box in boxes:
        for o, n, size in zip(box.offsets, box.shape, shape, strict=True):
            if o + n > size:
                return None
        times[tuple(slice(o, o + n) for o, n in zip(box.offsets, box.shape, strict=True))] += 1
    return times


@some
@given(cut())
def test_boxes_tile_a_tensor_where_each_element_is_in_one(case) -> None:
    shape, boxes = case
    times, fault = count(shape, boxes), tiling_fault(shape, boxes)
    if times is None:
        assert fault is not None
        assert "leaves the tensor" in fault.text
    elif (times == 1).all():
        assert fault is None
    elif (times > 1).any():
        assert fault is not None
        assert "overlap" in fault.text
    else:
        assert fault is not None
        missing = int((times == 0).sum())
        assert fault.missing == missing
        assert fault.text.startswith(f"{missing} of {prod(shape)} elements are in none")
        first = [int(x) for x in np.argwhere(times == 0)[0]]
        told = re.search(r"first missing \[(.*)\]", fault.text)
        assert told is not None
        assert [int(x) for x in told[1].split(",") if x] == first


def test_a_part_of_another_rank_is_refused() -> None:
    fault = tiling_fault((4, 2), [Box((0,), (4,))])
    assert fault is not None
    assert "has 1 axes, the tensor has 2" in fault.text


def test_a_scalar_is_tiled_by_one_part() -> None:
    scalar = Box((), ())
    assert tiling_fault((), [scalar]) is None
    assert "overlap" in str(tiling_fault((), [scalar, scalar]))


def test_a_fault_holds_the_boxes_that_it_is_about() -> None:
    left, right, far = Box((0, 0), (3, 2)), Box((2, 0), (2, 2)), Box((3, 0), (2, 2))
    both = tiling_fault((4, 2), [left, right])
    assert both is not None
    assert both.overlap == (left, right)
    outside = tiling_fault((4, 2), [far])
    assert outside is not None
    assert (outside.boxes, outside.overlap) == ((far,), None)
    hole = tiling_fault((4, 2), [left])
    assert hole is not None
    assert (hole.boxes, hole.missing, hole.first) == ((), 2, (3, 0))
    assert str(tiling_fault((), [])) == "1 of 1 elements are in none of 0 parts; first missing []"


def test_a_thousand_parts_are_checked_quickly() -> None:
    boxes = [*Mesh(tp=32, fsdp=32).boxes((4096, 4096), Rule(tp=1))]
    assert tiling_fault((4096, 4096), boxes) is None
    lost = boxes.pop(500)
    assert first_missing((4096, 4096), boxes) == lost.offsets


def test_parts_that_begin_before_the_tensor_or_are_less_than_nothing_leave_it() -> None:
    for box in (Box((-1, 0), (3, 2)), Box((0, 0), (-1, 2)), Box((2, 0), (3, 2))):
        fault = tiling_fault((4, 2), [box])
        assert fault is not None
        assert (fault.boxes, fault.missing) == ((box,), 0)
        assert "leaves the tensor" in fault.text


def test_parts_that_overlap_are_both_named_and_miss_nothing() -> None:
    one, two = Box((0,), (3,)), Box((2,), (2,))
    fault = tiling_fault((4,), [one, two])
    assert fault is not None
    assert (fault.overlap, fault.missing) == ((one, two), 0)
