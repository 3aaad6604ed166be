"""Copies between boxes, and into any layout, move the elements that NumPy's indexing moves."""

from __future__ import annotations

from math import prod

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from intarsia.dtypes import BY_NAME
from intarsia.layout import Layout, Loop, Piece
from intarsia.mesh import Box, Mesh, Rule
from intarsia.planning.copy import box_copy, copies_into, sources_of
from intarsia.planning.manifest import Chunk, Logical, Manifest, Stored
from intarsia.planning.proof.template import InOrder
from tests.oracle.layouts import PADDING, TENSORS, expressions, pairs

F32 = BY_NAME["F32"]
some = settings(max_examples=100, deadline=None)


@st.composite
def boxes_in(draw: st.DrawFn, shape: tuple[int, ...]) -> Box:
    ends = [sorted((draw(st.integers(0, n)), draw(st.integers(0, n)))) for n in shape]
    return Box(tuple(lo for lo, _ in ends), tuple(hi - lo for lo, hi in ends))


@st.composite
def two_boxes(draw: st.DrawFn) -> tuple[tuple[int, ...], Box, Box]:
    shape = tuple(draw(st.lists(st.integers(1, 6), max_size=4)))
    return shape, draw(boxes_in(shape)), draw(boxes_in(shape))


def slices(box: Box) -> tuple[slice, ...]:
    return tuple(slice(o, o + n) for o, n in zip(box.offsets, box.shape, strict=True))


@some
@given(two_boxes())
def test_a_copy_between_two_boxes_moves_what_they_share(case) -> None:
    shape, src, dst = case
    whole = np.arange(prod(shape)).reshape(shape)
    wanted = np.full(shape, PADDING)
    wanted[slices(src)] = whole[slices(src)]
    wanted = wanted[slices(dst)].reshape(-1)

    found = np.full(dst.size, PADDING)
    held = whole[slices(src)].reshape(-1)
    piece = box_copy(src, dst)
    if piece is None:
        assert (wanted == PADDING).all()
        return
    moved = pairs(piece)
    assert len({to for _, to in moved}) == len(moved) == piece.size
    for at, to in moved:
        found[to] = held[at]
    assert np.array_equal(found, wanted)


def stored(name: str, shape: tuple[int, ...], mesh: Mesh) -> Stored:
    """A tensor in the boxes of a mesh, each in a file of its own."""
    boxes = mesh.boxes(shape, Rule(tp=len(shape) - 1))
    chunks = tuple(Chunk(box, f"{name}{k}", 0, box.size * 4) for k, box in enumerate(boxes))
    return Stored(name, F32, Layout.of(name, shape), chunks)


def sharded(layout: Layout, mesh: Mesh) -> tuple[Stored, ...]:
    """Tensors that are large enough for all elements of a layout."""
    ends = {"w": 1, "v": 1}
    for p in layout.pieces:
        last = p.to + sum((loop.n - 1) * loop.to for loop in p.loops)
        ends[p.tensor] = max(ends[p.tensor], last + 1)
    return tuple(stored(name, (-(-n // 5), 5), mesh) for name, n in ends.items())


@some
@given(expressions(depth=4, largest=400), st.integers(1, 3), st.integers(1, 3))
def test_copies_into_any_layout_fill_it_from_sharded_sources(twin, tp: int, fsdp: int) -> None:
    layout, wanted = twin
    sources = sharded(layout, Mesh(tp=tp, fsdp=fsdp))
    found = np.full(layout.size, PADDING)
    for copy in copies_into(layout, Box.whole(layout.shape), sources):
        whole = np.arange(prod(copy.stored.shape)).reshape(copy.stored.shape)
        held = whole[slices(copy.chunk.box)].reshape(-1)
        for at, to in pairs(copy.piece):
            assert found[to] == PADDING, "a place is filled twice"
            found[to] = TENSORS[copy.stored.name] + held[at]
    assert np.array_equal(found.reshape(layout.shape), wanted)


@some
@given(expressions(depth=4, largest=400), st.integers(1, 3), st.data())
def test_the_copies_into_a_range_are_those_of_the_whole_that_lie_in_it(twin, tp: int, data) -> None:
    layout, _ = twin
    whole = list(copies_into(layout, Box.whole(layout.shape), sharded(layout, Mesh(tp=tp))))
    start, stop = sorted(data.draw(st.tuples(*[st.integers(0, layout.size)] * 2)))
    found = [
        (whole[k].stored.name, whole[k].chunk, at, start + to)
        for k, _, piece in InOrder([(k, 0, c.piece) for k, c in enumerate(whole)]).into(start, stop)
        for at, to in pairs(piece)
    ]
    assert sorted(found, key=repr) == sorted(
        (
            (copy.stored.name, copy.chunk, at, to)
            for copy in whole
            for at, to in pairs(copy.piece)
            if start <= to < stop
        ),
        key=repr,
    )


def test_a_copy_that_reaches_around_others_is_found_at_its_end() -> None:
    around, between = Piece("", 0, 0, (Loop(2, 1, 9),)), Piece("", 2, 1, (Loop(8, 1, 1),))
    copies = InOrder([(0, 0, around), (1, 0, between)])
    assert [(k, pairs(piece)) for k, _, piece in copies.into(9, 10)] == [(0, [(1, 0)])]


def test_the_sources_of_a_layout_are_each_named_once() -> None:
    gate, up = Layout.of("gate", (4, 2)), Layout.of("up", (4, 2))
    from intarsia.layout import concat

    fused = Stored("fused", F32, concat([gate, up]), ())
    manifest = Manifest(
        "hf", "here", {"fused": fused},
        {n: Logical(n, (4, 2), F32) for n in ("gate", "up")}, {},
    )  # fmt: skip
    assert sources_of(concat([up, gate]), manifest) == (fused,)
    assert sources_of(gate, manifest) == (fused,)
    assert sources_of(Layout.of("down", (3,)), manifest) == ()
