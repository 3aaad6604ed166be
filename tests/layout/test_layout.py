"""Layouts against NumPy: the same expression on an id array."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from intarsia.errors import LayoutError
from intarsia.layout import (
    Layout,
    Loop,
    Piece,
    chunk,
    concat,
    copies,
    padding,
    renaming,
    run,
    shard,
    split,
    stack,
)  # fmt: skip
from tests.oracle.layouts import TENSORS, Twin, all_pairs, arange, expressions, ids, joint

W = Layout.of("w", (4, 6))
A = arange("w", (4, 6))


@settings(max_examples=500)
@given(expressions())
def test_every_expression_is_numpys(twin: Twin) -> None:
    x, a = twin
    assert x.shape == a.shape
    assert np.array_equal(ids(x), a)
    assert x.size == a.size
    assert x.mapped == np.count_nonzero(a >= 0)


@settings(max_examples=600)
@given(expressions(), expressions())
def test_copies_pair_every_two_places_of_one_element_once(src: Twin, dst: Twin) -> None:
    assert all_pairs(copies(src[0], dst[0])) == joint(src[1], dst[1])


@given(expressions())
def test_a_layout_is_a_value(twin: Twin) -> None:
    x, _ = twin
    assert {x: 1}[Layout(x.shape, x.pieces)] == 1


@given(expressions(), st.data())
def test_a_box_is_a_slice_on_every_axis(twin: Twin, data: st.DataObject) -> None:
    x, a = twin
    cuts = [sorted(data.draw(st.tuples(*[st.integers(0, n)] * 2))) for n in a.shape]
    box = x.box([lo for lo, _ in cuts], [hi - lo for lo, hi in cuts])
    assert np.array_equal(ids(box), a[tuple(slice(lo, hi) for lo, hi in cuts)])


@given(expressions(), st.integers(1, 6), st.data())
def test_chunks_concatenate_to_the_whole(twin: Twin, n: int, data: st.DataObject) -> None:
    x, a = twin
    if not a.ndim:
        return
    axis = data.draw(st.integers(-a.ndim, a.ndim - 1))
    parts = chunk(x, n, axis)
    assert len(parts) == n
    assert parts == [shard(x, n, i, axis) for i in range(n)]
    assert np.array_equal(ids(concat(parts, axis)), a)


def test_a_box_of_a_whole_tensor_is_one_piece_with_merged_loops() -> None:
    x = Layout.of("w", (4, 8, 6)).box((1, 2, 0), (2, 3, 6))
    assert x.pieces == (Piece("w", 0, 60, (Loop(2, 18, 48), Loop(18, 1, 1))),)
    assert W.box((1, 0), (2, 6)).pieces == (Piece("w", 0, 6, (Loop(12, 1, 1),)),)
    assert W.box((1, 2), (1, 1)).pieces == (Piece("w", 0, 8),)


def test_runs_that_continue_each_other_become_one() -> None:
    assert concat(chunk(W, 4)) == W
    assert concat([W.narrow(0, 2, 4), W.narrow(0, 0, 2)]).pieces != W.pieces


def test_runs_with_padding_between_them_stay_apart() -> None:
    w = Layout.of("w", (4, 3))
    top, bottom = w.narrow(0, 0, 2), w.narrow(0, 2, 4)
    apart = concat([top, padding(1, 3), bottom])
    assert [(p.at, p.to, p.run) for p in apart.pieces] == [(0, 0, 6), (9, 6, 6)]


@pytest.mark.parametrize(
    ("what", "layout", "most"),
    [
        ("an uneven shard", chunk(Layout.of("w", (5, 3)), 2)[1], 1),
        ("a shard past the end", chunk(Layout.of("w", (5, 3)), 4)[3], 0),
        ("columns", chunk(W, 3, 1)[1], 1),
        ("gate and up", concat([chunk(Layout.of(n, (8, 4)), 2)[1] for n in "gu"]), 2),
        ("a strided shard", concat([chunk(c, 2)[1] for c in chunk(W, 2)]), 2),
        ("a flat slice", W.reshape(-1).narrow(0, 5, 17), 1),
        ("interleaved and transposed", W.reshape(2, 2, 3, 2).permute(0, 3, 2, 1), 1),
        ("stacked experts", chunk(stack([Layout.of(f"{i}", (4, 6)) for i in range(8)]), 4)[1], 2),
        ("a padded vocabulary", chunk(concat([W, padding(4, 6)]), 2)[1], 0),
    ],
)
def test_real_shards_are_few_pieces(what: str, layout: Layout, most: int) -> None:
    assert len(layout.pieces) == most, what


def test_grouped_query_attention_under_tensor_parallel_is_three_pieces() -> None:
    g, h = 4, 6
    parts = [Layout.of(n, (rows, h)) for n, rows in (("q", 16), ("k", 4), ("v", 4))]
    qkv = concat([x.reshape(g, -1, h) for x in parts], 1).reshape(-1, h)
    rank = chunk(qkv, 2)[1]
    assert rank.tensors == ("q", "k", "v")
    assert len(rank.pieces) == 3
    first = {"q": 0, "k": 1000, "v": 2000}
    arrays = [first[x.tensors[0]] + np.arange(x.size).reshape(g, -1, h) for x in parts]
    assert np.array_equal(ids(rank, first), np.concatenate(arrays, 1).reshape(-1, h)[12:])


def test_a_run_is_consecutive_elements_of_one_tensor_and_nothing_else() -> None:
    x = Layout.of("x", (4, 3))
    for run_ in (x, x.narrow(0, 1, 3), x.reshape(-1).narrow(0, 5, 6), Layout.of("x", ())):
        assert run_.is_run
    empty, again = Layout.of("x", (0, 3)), concat([x, Layout.of("y", (4, 3))])
    for other in (
        concat([x, padding(1, 3)]),
        concat([padding(1, 3), x]),
        x.narrow(1, 0, 2),
        x.permute(1, 0),
        empty,
        again,
    ):
        assert not other.is_run


def test_tensors_are_named_once_in_the_order_of_the_pieces() -> None:
    v = Layout.of("v", (1, 6))
    assert concat([v, W, v]).tensors == ("v", "w")
    assert padding(3).tensors == ()


def test_rename_fills_the_same_places_from_other_tensors() -> None:
    x = chunk(W, 3, 1)[1]
    assert x.rename({"w": "v"}) == chunk(Layout.of("v", (4, 6)), 3, 1)[1]
    assert x.rename(lambda name: f"layers.3.{name}").tensors == ("layers.3.w",)
    with pytest.raises(LayoutError, match="'w'"):
        x.rename({"v": "w"})


def test_a_scalar_is_a_layout_of_one_element() -> None:
    x = Layout.of("w", ())
    assert (x.shape, x.size, x.mapped) == ((), 1, 1)
    assert x.reshape(1, 1).narrow(0, 0, 1).reshape() == x
    assert x.box((), ()) == x
    assert x.permute() == x
    assert stack([x, x]).shape == (2,)
    assert [c.size for c in copies(x, x)] == [1]


def test_an_axis_of_zero_holds_nothing_and_breaks_nothing() -> None:
    x = Layout.of("w", (0, 3))
    assert (x.size, x.mapped, x.pieces) == (0, 0, ())
    assert x.permute(1, 0).shape == (3, 0)
    assert x.reshape(3, 0).shape == (3, 0)
    assert x.reshape(-1, 3).shape == (0, 3)
    assert [c.shape for c in chunk(x, 2)] == [(0, 3), (0, 3)]
    assert concat([x, Layout.of("w", (2, 3))]).mapped == 6
    assert x.box((0, 1), (0, 2)).shape == (0, 2)
    assert copies(x, x) == []


def test_split_takes_parts_of_the_given_sizes() -> None:
    parts = split(W, [1, 0, 5], axis=1)
    assert [p.shape for p in parts] == [(4, 1), (4, 0), (4, 5)]
    assert np.array_equal(ids(parts[2]), A[:, 1:])


@pytest.mark.parametrize(
    ("attempt", "said"),
    [
        (lambda: W.reshape(5, 5), r"\(4, 6\) \(24 elements\) to \(5, 5\) \(25 elements\)"),
        (lambda: W.reshape(5, -1), r"-1 .* \(4, 6\) \(24 elements\)"),
        (lambda: W.reshape(-1, -1), r"-1 .* \(-1, -1\)"),
        (lambda: W.reshape(-2, -12), "negative size, -12"),
        (lambda: Layout.of("w", (0, 3)).reshape(-1, 0), r"-1 .* \(0, 3\) \(0 elements\)"),
        (lambda: W.narrow(0, 2, 5), r"\[2:5\) leaves axis 0 of \(4, 6\), size 4"),
        (lambda: W.narrow(0, 3, 2), r"\[3:2\)"),
        (lambda: W.narrow(2, 0, 1), r"axis 2 of \(4, 6\), which has 2 axes"),
        (lambda: W.box((0,), (1,)), r"needs 2 offsets and sizes, found 1 and 1"),
        (lambda: W.box((0, 4), (4, 3)), r"\[4:7\) leaves axis 1 of \(4, 6\), size 6"),
        (lambda: W.permute(0, 0), r"permute\(0, 0\) .* \(4, 6\)"),
        (lambda: W.expand(0, 3), r"axis 0 of \(4, 6\) has length 4"),
        (lambda: concat([]), "found 0"),
        (lambda: concat([W, Layout.of("v", (4, 5))]), r"\(4, 6\) and \(4, 5\)"),
        (lambda: stack([]), "found 0"),
        (lambda: stack([W, Layout.of("v", (4, 5))]), r"\(4, 6\) and \(4, 5\)"),
        (lambda: stack([W], axis=3), "axis 3 .* 3 axes"),
        (lambda: split(W, [1, 2]), r"adds up to 3, axis 0 of \(4, 6\) has 4"),
        (lambda: chunk(W, 0), "into 0 parts"),
        (lambda: shard(W, 2, 2), r"part 2 of 2 of axis 0 of \(4, 6\)"),
        (lambda: Layout.of("w", (2, -1)), "negative size, -1"),
        (lambda: Layout.of("w", ()).narrow(0, 0, 1), r"axis 0 of \(\), which has 0 axes"),
    ],
)
def test_what_no_array_allows_is_a_layout_error_with_both_numbers(attempt, said) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(LayoutError, match=said):
        attempt()


def test_the_twins_keep_their_tensors_apart() -> None:
    assert TENSORS["v"] > A.size


def test_a_renaming_is_found_where_layouts_differ_by_name_alone_and_nowhere_else() -> None:
    def two(*names: str, to: int = 0, at: int = 6, n: int = 6, size: int = 12) -> Layout:
        return Layout((size,), (run(names[0], 0, 0, 6), run(names[1], at, to, n)))

    assert renaming(two("a", "b"), two("b", "c")) == {"a": "b", "b": "c"}
    assert renaming(two("a", "a", to=6), two("b", "b", to=6)) == {"a": "b"}
    old = two("a", "b")
    others = [two("c", "d", to=1), two("c", "d", at=5), two("c", "d", n=5), two("c", "d", size=13)]
    assert [renaming(old, x) for x in others] == [None] * 4
    assert renaming(old, two("c", "c")) is None, "two tensors are not one"
    assert renaming(two("a", "a", to=6), two("b", "c", to=6)) is None, "nor is one two"
    assert renaming(old, Layout((12,), old.pieces[:1])) is None
