"""Pieces against their definition: a list of `(at, to)` pairs."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from intarsia.layout import Loop, Piece, align, clip, meet, run
from tests.oracle.layouts import all_pairs, expressions, pairs, pieces


def crossed(p: Piece, q: Piece) -> Counter[tuple[int, int]]:
    """What `meet` means: `p.to` with `q.to`, wherever both name the same `at`."""
    return Counter((x, y) for a, x in pairs(p) for b, y in pairs(q) if a == b)


def test_a_run_is_a_piece_of_consecutive_elements() -> None:
    assert pairs(run("w", at=3, to=7, n=3)) == [(3, 7), (4, 8), (5, 9)]
    assert run("w", 3, 7, 1).loops == ()
    assert run("w", 3, 7, 5).run == 5
    assert Piece("w", 0, 0, (Loop(5, 1, 2),)).run == 0


@given(pieces())
def test_size_and_span_are_those_of_the_pairs(p: Piece) -> None:
    ats = [at for at, _ in pairs(p)]
    assert p.size == len(ats)
    assert p.at == min(ats)
    assert p.span == max(ats) - min(ats)


@given(pieces())
def test_flip_swaps_the_sides(p: Piece) -> None:
    assert Counter(pairs(p.flip())) == Counter((to, at) for at, to in pairs(p))
    assert p.flip().flip() == p


@given(pieces())
def test_canonical_keeps_the_pairs_and_sorts_and_merges_the_loops(p: Piece) -> None:
    q = p.canonical()
    assert all_pairs([q]) == all_pairs([p])
    assert all(loop.n > 1 for loop in q.loops)
    assert [loop.at for loop in q.loops] == sorted((loop.at for loop in q.loops), reverse=True)
    assert q.canonical() == q


def test_canonical_merges_rows_that_follow_each_other() -> None:
    p = Piece("w", 0, 0, (Loop(4, 1, 1), Loop(3, 4, 4)))
    assert p.canonical() == run("w", 0, 0, 12)


@given(pieces(), st.data())
def test_step_keeps_a_range_of_steps(p: Piece, data: st.DataObject) -> None:
    if not p.loops:
        return
    loop = data.draw(st.sampled_from(p.loops))
    first = data.draw(st.integers(0, loop.n - 1))
    n = data.draw(st.integers(1, loop.n - first))
    cuts = [(0, first), (first, n), (first + n, loop.n - first - n)]
    assert all_pairs(p.step(loop, lo, k) for lo, k in cuts if k) == all_pairs([p])


@settings(max_examples=400)
@given(pieces(), st.integers(1, 30))
def test_align_keeps_the_pairs_and_leaves_no_carry(p: Piece, m: int) -> None:
    cut = align(p, m)
    assert all_pairs(cut) == all_pairs([p])
    for q in cut:
        inside = [loop for loop in q.loops if loop.at % m]
        assert q.at % m + sum((loop.n - 1) * loop.at for loop in inside) < m


@given(st.integers(0, 50), st.integers(1, 90), st.integers(1, 20))
def test_aligning_a_run_costs_at_most_head_body_and_tail(at: int, n: int, m: int) -> None:
    assert len(align(run("w", at, 0, n), m)) <= 3


def test_aligning_a_long_stride_that_does_not_divide_costs_one_period() -> None:
    long = Piece("w", 0, 0, (Loop(1_000_000, 3, 1),))
    assert len(align(long, 7)) <= 2 * 7


@settings(max_examples=400)
@given(pieces(), st.integers(-5, 60), st.integers(-5, 60))
def test_clip_keeps_what_lies_in_the_range(p: Piece, lo: int, hi: int) -> None:
    wanted = Counter(pair for pair in pairs(p) if lo <= pair[0] < hi)
    assert all_pairs(clip(p, lo, hi)) == wanted


@settings(max_examples=600)
@given(pieces(), pieces())
def test_meet_pairs_what_names_the_same_index(p: Piece, q: Piece) -> None:
    assert all_pairs(meet(p, q)) == crossed(p, q)


def rectangles() -> st.SearchStrategy[Piece]:
    """Rows by columns in rows of 10: the pieces that take the short way through `meet`."""
    return st.builds(
        lambda row, column, n, m, to: Piece(
            "w", 10 * row + column, to, (Loop(n, 10, 7), Loop(m, 1, 1))
        ),
        *(st.integers(0, 4), st.integers(0, 9), st.integers(2, 4), st.integers(2, 10)),
        st.integers(0, 20),
    )


@settings(max_examples=300)
@given(rectangles(), rectangles() | st.builds(run, st.just("w"), *[st.integers(1, 60)] * 3))
def test_meet_of_rectangles_and_runs_is_their_intersection(p: Piece, q: Piece) -> None:
    assert all_pairs(meet(p, q)) == crossed(p, q)
    assert all_pairs(meet(q, p)) == crossed(q, p)


def test_two_rectangles_in_the_same_rows_meet_in_one_piece() -> None:
    p = Piece("w", 0, 0, (Loop(100, 64, 16), Loop(16, 1, 1)))
    q = Piece("w", 640 + 8, 0, (Loop(50, 64, 32), Loop(32, 1, 1)))
    assert meet(p, q) == [Piece("w", 168, 0, (Loop(50, 16, 32), Loop(8, 1, 1)))]


@given(expressions(), expressions())
def test_meet_holds_for_the_pieces_of_real_layouts(x, y) -> None:  # type: ignore[no-untyped-def]
    for p in x[0].pieces[:3]:
        for q in y[0].pieces[:3]:
            if p.size * q.size < 20_000:
                assert all_pairs(meet(p.flip(), q.flip())) == crossed(p.flip(), q.flip())


def test_pieces_are_values() -> None:
    p = run("w", 0, 0, 4)
    assert {p: 1}[run("w", 0, 0, 4)] == 1
    with pytest.raises(AttributeError):
        p.at = 1  # type: ignore[misc]
