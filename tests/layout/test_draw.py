"""Pictures, word by word."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from intarsia.layout import (
    Layout,
    Piece,
    chunk,
    concat,
    describe_piece,
    draw,
    padding,
    stack,
)
from tests.oracle.layouts import Twin, expressions

GATE, UP = (f"model.layers.0.mlp.{name}_proj.weight" for name in ("gate", "up"))
SHAPES = {"q_proj": (4, 4), "k_proj": (2, 4), "v_proj": (2, 4), GATE: (256, 64), UP: (256, 64)}
Q, K, V, G, U = (Layout.of(name, shape) for name, shape in SHAPES.items())
QKV = concat([x.reshape(2, -1, 4) for x in (Q, K, V)], 1).reshape(-1, 4)


def test_grouped_heads_are_rows_that_come_back() -> None:
    assert (
        draw(QKV, SHAPES)
        == """\
┌ 8 x 4 ──────────────────────┐
│ rows 0:2, 4:6  q_proj[:, :] │
│ rows 2, 6      k_proj[:, :] │
│ rows 3, 7      v_proj[:, :] │
└─────────────────────────────┘"""
    )


def test_a_fused_shard_with_padding_is_one_line_each() -> None:
    fc1 = concat([chunk(G, 2)[1], chunk(U, 2)[1], padding(16, 64)])
    assert (
        draw(fc1, SHAPES)
        == """\
┌ 272 x 64 ──────────────────────────────────────────────────┐
│ [0:128)    model.layers.0.mlp.gate_proj.weight[128:256, :] │
│ [128:256)  model.layers.0.mlp.up_proj.weight[128:256, :]   │
│ [256:272)  padding                                         │
└────────────────────────────────────────────────────────────┘"""
    )


def test_a_flat_slice_is_a_range_of_elements() -> None:
    flat = concat([G, U]).reshape(-1).narrow(0, 100, 20_000)
    assert (
        draw(flat, SHAPES, names={GATE: "gate", UP: "up"})
        == """\
┌ 19,900 ──────────────────────────────────┐
│ [0:16284)      gate elements [100:16384) │
│ [16284:19900)  up elements [0:3616)      │
└──────────────────────────────────────────┘"""
    )


def test_without_shapes_a_tensor_is_a_range_of_elements() -> None:
    assert (
        draw(chunk(QKV, 2)[1])
        == """\
┌ 4 x 4 ────────────────────────┐
│ [0:2)  q_proj elements [8:16) │
│ [2:3)  k_proj elements [4:8)  │
│ [3:4)  v_proj elements [4:8)  │
└───────────────────────────────┘"""
    )


def test_order_and_repetition_are_said() -> None:
    assert (
        draw(Q.permute(1, 0), SHAPES)
        == """\
┌ 4 x 4 ─────────────────────────┐
│ [0:4)  q_proj[:, :] transposed │
└────────────────────────────────┘"""
    )
    assert (
        draw(Q.reshape(1, 4, 4).expand(0, 3).reshape(12, 4), SHAPES)
        == """\
┌ 12 x 4 ─────────────────┐
│ [0:12)  q_proj[:, :] x3 │
└─────────────────────────┘"""
    )


def test_long_names_keep_their_end() -> None:
    assert (
        draw(chunk(G, 4, 1)[1], SHAPES, width=40)
        == """\
┌ 256 x 16 ────────────────────────────┐
│ [0:256)  …gate_proj.weight[:, 16:32] │
└──────────────────────────────────────┘"""
    )


def test_many_pieces_are_counted_not_listed() -> None:
    names = [f"experts.{i}" for i in range(60)]
    experts = stack([Layout.of(name, (4, 6)) for name in names])
    padded = concat([experts, padding(60, 1, 6)], 1)
    assert (
        draw(padded, dict.fromkeys(names, (4, 6)), lines=4)
        == """\
┌ 60 x 5 x 6 ──────────────────┐
│ [0, 0:4, :]  experts.0[:, :] │
│ [1, 0:4, :]  experts.1[:, :] │
│ [2, 0:4, :]  experts.2[:, :] │
│ … 58 more                    │
└──────────────────────────────┘"""
    )


@pytest.mark.parametrize(
    ("layout", "line"),
    [
        (padding(3, 3), "[0:3)  padding"),
        (padding(0, 3), "empty"),
        (Layout.of("scale", ()), "[]  scale element 0"),
        (concat([Q.narrow(1, 0, 2), padding(4, 1)], 1), "[:, 0:2]  q_proj[:, 0:2]"),
        (concat([Q.narrow(1, 0, 2), padding(4, 1)], 1), "4 places  padding"),
        (Q.reshape(-1).narrow(0, 1, 15).reshape(2, 7), "[0:2)  q_proj elements [1:15)"),
    ],
)
def test_corners(layout: Layout, line: str) -> None:
    assert line in draw(layout, SHAPES)


@pytest.mark.parametrize(
    ("layout", "shape", "words"),
    [
        (G.narrow(0, 128, 256), (256, 64), "rows [128:256)"),
        (G.narrow(0, 7, 8), (256, 64), "rows [7:8)"),
        (G.narrow(1, 16, 32), (256, 64), "columns [16:32)"),
        (G.box((1, 3), (4, 4)), (256, 64), "[1:5, 3:7]"),
        (G, (256, 64), "all"),
        (G, None, "elements [0:16384)"),
        (G.reshape(-1).narrow(0, 5, 200), (256, 64), "elements [5:200)"),
        (G.reshape(-1).narrow(0, 5, 6), None, "element 5"),
        (G.reshape(-1).narrow(0, 5, 9), (16384,), "elements [5:9)"),
        (G.reshape(64, 4, 64).narrow(1, 1, 2), (256, 64), "rows 1, 5, 9, …, 253"),
        (G.narrow(1, 0, 16), None, "elements 0:16, 64:80, 128:144, …, 16320:16336"),
    ],
)
def test_a_piece_in_words(layout: Layout, shape: tuple[int, ...] | None, words: str) -> None:
    (piece,) = layout.pieces
    assert describe_piece(piece, shape) == f"{words} of {GATE}"


def test_a_shape_longer_than_the_picture_loses_its_beginning() -> None:
    rows = draw(Layout.of("v", (1, 1, 3, 3, 3, 3)), width=24).split("\n")
    assert {len(row) for row in rows} == {24}
    assert rows[0] == "┌ …x 1 x 3 x 3 x 3 x 3 ┐"


@given(expressions(), st.integers(24, 80), st.integers(2, 6))
def test_a_picture_is_bounded_and_always_the_same(twin: Twin, width: int, lines: int) -> None:
    x, _ = twin
    picture = draw(x, width=width, lines=lines)
    assert picture == draw(x, width=width, lines=lines)
    rows = picture.split("\n")
    assert len(rows) <= lines + 2
    assert len({len(row) for row in rows}) == 1


@given(expressions())
def test_words_for_any_piece_fit_on_a_line(twin: Twin) -> None:
    for piece in twin[0].pieces[:4]:
        assert isinstance(piece, Piece)
        assert len(describe_piece(piece)) < 100
