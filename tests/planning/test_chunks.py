"""Chunks in columns are the chunks that they were made of, and so are their places."""

from __future__ import annotations

from itertools import chain

import numpy as np

from intarsia.mesh import Box
from intarsia.planning.chunks import (
    Chunks,
    FileRanges,
    boxes_of,
    columns_of,
    first_place,
    places_of,
)
from intarsia.planning.manifest import Chunk, Entry

BOXES = (Box((0,), (2,)), Box((2,), (3,)))
TABLE = FileRanges(["a", "unused", "b"], *np.array([[0, 2, 2, 0], [5, 6, 7, 8], [1, 2, 3, 4]]))
ONE, TWO = Chunks(BOXES, TABLE, 0), Chunks(BOXES, TABLE, 2)
PLAIN = (Chunk(BOXES[0], "b", 7, 3), Chunk(BOXES[1], "a", 8, 4))
ENTRY = Entry("o", "c", 9, 1)


def test_chunks_in_columns_are_as_good_as_a_tuple_of_them() -> None:
    assert TWO == PLAIN
    assert PLAIN == TWO
    assert hash(TWO) == hash(PLAIN)
    assert (len(TWO), TWO[1], TWO[:1], [*TWO]) == (2, PLAIN[1], PLAIN[:1], [*PLAIN])
    assert TWO[0] is TWO[0], "each is made once"
    assert ONE != TWO
    assert boxes_of(TWO) is BOXES
    assert boxes_of(PLAIN) == BOXES
    assert columns_of(TWO) == columns_of(PLAIN) == (["b", "a"], [7, 8], [3, 4])
    assert first_place(TWO) == first_place(PLAIN) == ("b", 7)
    assert first_place(()) is first_place(Chunks((), TABLE, 4)) is None


def test_places_are_the_same_whether_they_were_in_columns_or_not() -> None:
    for held in (
        [ONE, TWO],
        [ONE, PLAIN],
        [tuple(ONE), TWO],
        [ONE, TWO, [ENTRY]],
        [TWO, ONE],
        [ONE],
        [],
    ):
        found, wanted = places_of(held), [columns_of(x) for x in held]
        lists = found.lists(0, len(found.starts))
        assert lists == tuple([*chain(*[x[k] for x in wanted])] for k in range(3))
        assert {*found.names} == {*lists[0]}, "a file that holds none of them is not named"
