"""Whatever the bytes of a destination follow from changes the facts of a job."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from intarsia.conversion.identity import _digest, _layouts, _tensors
from intarsia.dtypes import BY_NAME
from intarsia.layout import Layout, Loop, Piece
from intarsia.mesh import Box
from intarsia.planning.chunks import Chunks, FileRanges
from intarsia.planning.manifest import Chunk, Manifest, Stored, Target
from intarsia.value.shift import shifted

BF16, F16 = BY_NAME["BF16"], BY_NAME["F16"]
BOXES = (Box((0, 0), (2, 3)), Box((2, 0), (2, 3)))
PLACES = FileRanges(["f", "g"], *np.array([[0, 1, 1, 0], [0, 0, 12, 12], [12, 12, 12, 12]]))
LISTED = tuple([Chunk(BOXES[k], "fg"[k], 0, 12) for k in (0, 1)])


def stored(chunks: object = LISTED) -> Stored:
    return Stored("bc", BF16, Layout.of("bc", (4, 3)), chunks, key="a")  # type: ignore[arg-type]


def of_source(*held: Stored) -> str:
    src = Manifest("hf", "", {str(k): s for k, s in enumerate(held)}, {}, {})
    return _digest(_tensors(src))


@pytest.mark.parametrize(
    "change",
    [
        lambda s: replace(s, key="ab", name="c"),
        lambda s: replace(s, name="bd"),
        lambda s: replace(s, dtype=F16),
        lambda s: replace(s, layout=Layout.of("bc", (3, 4))),
        lambda s: replace(s, value=shifted(1.0)),
        lambda s: replace(s, chunks=s.chunks[::-1]),
        lambda s: replace(s, chunks=s.chunks[:1]),
        lambda s: replace(s, chunks=(replace(s.chunks[0], file="g"), s.chunks[1])),
        lambda s: replace(s, chunks=(replace(s.chunks[0], start_bytes=1), s.chunks[1])),
        lambda s: replace(s, chunks=(replace(s.chunks[0], length_bytes=13), s.chunks[1])),
        lambda s: replace(s, chunks=(replace(s.chunks[0], box=BOXES[1]), s.chunks[1])),
    ],
)
def test_a_source_is_another_one_where_anything_of_a_tensor_is(
    change: Callable[[Stored], Stored],
) -> None:
    for one in (stored(), stored(Chunks(BOXES, PLACES, 0))):
        other = stored(Chunks(BOXES, PLACES, 2))
        assert of_source(one, other) == of_source(one, other)
        assert of_source(one, other) != of_source(change(one), other)
        assert of_source(other, one) != of_source(other, change(one))
        assert of_source(one, other) != of_source(other, one)


def of_targets(*targets: Target) -> str:
    return _digest(_layouts(targets))


@pytest.mark.parametrize(
    "change",
    [
        lambda t: replace(t, name="u"),
        lambda t: replace(t, dtype=F16),
        lambda t: replace(t, value=shifted(1.0)),
        lambda t: replace(t, layout=Layout((2, 6), t.layout.pieces)),
        lambda t: replace(t, layout=Layout((4, 3), t.layout.pieces[:1])),
        lambda t: replace(t, layout=Layout((4, 3), t.layout.pieces[::-1])),
        *[
            lambda t, p=piece: replace(t, layout=Layout((4, 3), (p, t.layout.pieces[1])))
            for piece in (
                Piece("x", 0, 0, (Loop(6, 1, 1),)),
                Piece("a", 6, 0, (Loop(6, 1, 1),)),
                Piece("a", 0, 6, (Loop(6, 1, 1),)),
                Piece("a", 0, 0, (Loop(5, 1, 1),)),
                Piece("a", 0, 0, (Loop(6, 2, 1),)),
                Piece("a", 0, 0, (Loop(6, 1, 2),)),
                Piece("a", 0, 0, (Loop(3, 1, 2), Loop(2, 3, 1))),
            )
        ],
    ],
)
def test_a_destination_is_another_one_where_anything_of_a_tensor_is(
    change: Callable[[Target], Target],
) -> None:
    run = (Loop(6, 1, 1),)
    layout = Layout((4, 3), (Piece("a", 0, 0, run), Piece("b", 6, 0, run)))
    target, other = Target("t", BF16, layout, ()), Target("o", BF16, layout, ())
    assert of_targets(target, other) == of_targets(target, other)
    assert of_targets(target, other) != of_targets(change(target), other)
    assert of_targets(other, target) != of_targets(other, change(target))


def test_pieces_of_one_target_are_not_those_of_its_neighbour() -> None:
    run = (Loop(6, 1, 1),)
    a, b, c = (Piece(name, 0, 0, run) for name in "abc")
    both = [Target(n, BF16, Layout((18,), ()), ()) for n in "tu"]
    first = [replace(t, layout=Layout((18,), p)) for t, p in zip(both, ((a, b), (c,)), strict=True)]
    second = [
        replace(t, layout=Layout((18,), p)) for t, p in zip(both, ((a,), (b, c)), strict=True)
    ]
    assert of_targets(*first) != of_targets(*second)


def test_names_are_not_taken_for_one_another() -> None:
    a, b = (replace(stored(), name=name) for name in ("ab", "c"))
    c, d = (replace(stored(), name=name) for name in ("a", "bc"))
    assert of_source(a, b) != of_source(c, d)
