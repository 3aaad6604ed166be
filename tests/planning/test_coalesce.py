"""The byte ranges that are read hold every needed byte, and few others."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from intarsia.layout import Loop, Piece
from intarsia.planning.coalesce import GAP_RATIO, MOST_OVER_READ, merge_runs, runs_of
from tests.oracle.layouts import pairs, pieces

some = settings(max_examples=200, deadline=None)


def needed(piece: Piece, itemsize: int, base: int) -> set[int]:
    """Every byte that the copy reads."""
    return {base + at * itemsize + k for at, _ in pairs(piece) for k in range(itemsize)}


wide = st.builds(
    Piece,
    st.just("w"),
    st.integers(0, 9),
    st.just(0),
    st.lists(
        st.builds(Loop, n=st.integers(1, 4), at=st.sampled_from([1, 2, 7, 16, 40, 272, 900]),
                  to=st.just(1)),
        max_size=3,
    ).map(tuple),
)  # fmt: skip


@some
@given(pieces() | wide, st.sampled_from([1, 2, 4, 8]), st.integers(0, 50))
def test_runs_hold_every_byte_that_a_copy_needs(piece, itemsize, base) -> None:
    runs = runs_of(piece, itemsize, base)
    read = {b for start in runs.starts.tolist() for b in range(start, start + runs.length)}
    assert needed(piece, itemsize, base) <= read


@some
@given(pieces() | wide, st.sampled_from([1, 2, 4, 8]))
def test_a_run_reads_at_most_so_many_times_what_it_needs(piece, itemsize) -> None:
    assume(len({at for at, _ in pairs(piece)}) == piece.size)
    runs = runs_of(piece, itemsize)
    read = {b for start in runs.starts.tolist() for b in range(start, start + runs.length)}
    assert len(read) <= MOST_OVER_READ * len(needed(piece, itemsize, 0))


@some
@given(pieces() | wide, st.sampled_from([1, 2, 4, 8]))
def test_the_loops_over_runs_and_within_them_are_the_copys(piece, itemsize) -> None:
    runs = runs_of(piece, itemsize)
    assert Counter(runs.outer + runs.inner) == Counter(piece.loops)
    inside = Piece("w", 0, 0, runs.inner)
    assert max(at for at, _ in pairs(inside)) * itemsize + itemsize == runs.length
    assert runs.starts.min() == runs.starts[0]
    assert runs.starts.max() == runs.starts[-1]


def test_contiguous_rows_are_one_run_and_distant_rows_are_many() -> None:
    rows = Piece("w", 0, 0, (Loop(8, 4096, 1024), Loop(1024, 1, 1)))
    assert runs_of(rows, 2).starts.tolist() == [k * 8192 for k in range(8)]
    whole = Piece("w", 3, 0, (Loop(8, 1024, 1024), Loop(1024, 1, 1)))
    assert runs_of(whole, 2).starts.tolist() == [6]
    assert runs_of(whole, 2).length == 8 * 1024 * 2


def test_a_narrow_column_is_read_with_what_lies_between() -> None:
    column = Piece("w", 0, 0, (Loop(100, 8, 1),))
    runs = runs_of(column, 4)
    assert len(runs.starts) == 1
    assert runs.length == (99 * 8 + 1) * 4


ranges = st.lists(st.tuples(st.integers(0, 3000), st.integers(1, 300)), min_size=1, max_size=30)


@some
@given(ranges)
def test_merged_ranges_hold_every_run_in_order_and_apart(found) -> None:
    starts, lengths = (np.array(column, np.int64) for column in zip(*found, strict=True))
    lo, hi = merge_runs(starts, lengths)
    read = {b for a, z in zip(lo.tolist(), hi.tolist(), strict=True) for b in range(a, z)}
    wanted = {b for start, n in found for b in range(start, start + n)}
    assert wanted <= read
    assert (lo < hi).all()
    assert (hi[:-1] < lo[1:]).all()
    gaps = len(read) - len(wanted)
    assert gaps <= GAP_RATIO * sum(n for _, n in found)


@pytest.mark.parametrize(("gap", "ranges"), [(0, 1), (30, 1), (31, 2)])
def test_a_gap_is_read_over_where_it_is_small_beside_the_run(gap: int, ranges: int) -> None:
    starts, lengths = np.array([0, 1000 + gap]), np.array([1000, 5])
    assert len(merge_runs(starts, lengths)[0]) == ranges
