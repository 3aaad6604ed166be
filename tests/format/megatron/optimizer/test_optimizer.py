"""Optimizer state by parameter: names, shifts, and the flattened shards of older checkpoints."""

from __future__ import annotations

import numpy as np
import pytest

from intarsia.errors import FormatError
from intarsia.family import Param
from intarsia.format.megatron.optimizer.state_tensors import (
    flatten_shards,
    flattened_shape,
    state_of,
    state_row,
    stored_key,
)
from intarsia.layout import Layout
from intarsia.mesh import Rule
from intarsia.value import Shift
from tests.family.arrays import carried


def test_names() -> None:
    assert state_of("optimizer.state.exp_avg.output_layer.weight") == (
        "exp_avg", "output_layer.weight",
    )  # fmt: skip
    assert state_of("chained_1.optimizer.state.fp32_param.x.y") == ("master", "x.y")
    assert state_of("optimizer.state.param.x") == ("master", "x")
    assert state_of("decoder.layers.mlp.linear_fc2.weight") is None
    assert stored_key("optimizer.master.x.y") == "optimizer.state.param.x.y"
    assert stored_key("optimizer.exp_avg_sq.x") == "optimizer.state.exp_avg_sq.x"
    assert stored_key("decoder.x") == "decoder.x"


def test_moments_are_not_shifted_with_their_weight() -> None:
    norm = Param(
        "decoder.final_layernorm.weight", Layout.of("model.norm.weight", (4,)), Rule(), Shift(1.0)
    )
    assert state_row(norm, "master").value == Shift(1.0)
    assert state_row(norm, "exp_avg").value.is_plain
    assert state_row(norm, "exp_avg").layout.tensors == ("optimizer.exp_avg.model.norm.weight",)


@pytest.mark.parametrize(
    ("shape", "grid"), [((6, 4), (3, 2)), ((6, 4), (1, 4)), ((5,), (5,)), ((4, 6, 2), (2, 3, 1))]
)
def test_flattened_shards(shape: tuple[int, ...], grid: tuple[int, ...]) -> None:
    whole = np.arange(np.prod(shape)).reshape(shape)
    sizes = [n // g for n, g in zip(shape, grid, strict=True)]
    stored = np.empty((*grid, int(np.prod(sizes))), int)
    for place in np.ndindex(*grid):
        box = tuple(slice(i * n, (i + 1) * n) for i, n in zip(place, sizes, strict=True))
        stored[place] = whole[box].reshape(-1)
    row = flatten_shards(Param("x", Layout.of("t", shape)), stored.shape, "x")
    np.testing.assert_array_equal(carried(row.layout, {"t": whole}), stored)


def test_shards_that_do_not_divide_are_refused() -> None:
    with pytest.raises(FormatError, match="equal shards"):
        flatten_shards(Param("x", Layout.of("t", (6, 4))), (4, 2, 3), "x")


def test_the_shape_beside_the_metadata() -> None:
    extra = {"mcore_data": {"x": {"nd_reformulated_orig_global_shape": (4, 6, 2)}}}
    assert flattened_shape(extra, "x", 1) == (6, 2)
    assert flattened_shape(extra, "y", 0) is None
    assert flattened_shape({}, "x", 0) is None
    assert (
        flattened_shape({"mcore_data": {"x": {"nd_reformulated_orig_global_shape": "?"}}}, "x", 0)
        is None
    )
