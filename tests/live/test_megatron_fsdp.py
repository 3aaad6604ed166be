"""The splitters of live states against NumPy, and against the formulas that went wrong."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from intarsia.errors import LayoutError
from intarsia.live.megatron_fsdp import (
    GDN,
    ParameterSlice,
    check_distributed,
    component_slices,
    components,
    gated,
    gated_names,
    is_rounded_to_bf16,
    merge,
    rounded_masters,
    split,
    split_state,
)


class Distributed:
    """What the splitters see of a DTensor: the shape of all ranks, and this rank's elements."""

    placements = ()

    def __init__(self, shape: tuple[int, ...], local: torch.Tensor) -> None:
        self.shape, self._local = torch.Size(shape), local
        self.ndim = len(shape)

    def to_local(self) -> torch.Tensor:
        return self._local


@st.composite
def fused(draw: Any) -> tuple[ParameterSlice, dict[str, int], torch.Tensor]:
    """An item of some tensor-parallel rank, the rows of its components, and its TP-local part."""
    tp, width = draw(st.integers(1, 3)), draw(st.integers(1, 5))
    local = draw(st.lists(st.integers(1, 4), min_size=1, max_size=6))
    shape = (sum(local), width)
    start = draw(st.integers(0, shape[0] * width))
    stop = draw(st.integers(start, shape[0] * width))
    whole = torch.arange(shape[0] * width, dtype=torch.float32).reshape(shape)
    return ParameterSlice(shape, start, stop, tp), dict(zip(GDN, local, strict=False)), whole


@given(fused(), st.booleans())
def test_a_split_is_numpys_split_of_the_whole(case: Any, distributed: bool) -> None:
    item, sizes, whole = case
    local = whole.reshape(-1)[item.start : item.stop]
    state = Distributed(item.whole, local) if distributed else local
    parts = split(state, item, sizes)
    edges = np.cumsum([0, *sizes.values()])
    for part, lo, hi in zip(parts, edges, edges[1:], strict=False):
        own = whole[lo:hi].reshape(-1)
        assert part.tensor is not None
        assert torch.equal(part.tensor.reshape(-1), own[part.start : part.stop]), part.name
    assert sum(part.item.size for part in parts) == item.size
    assert torch.equal(merge(parts, item), local)


@given(fused(), st.lists(st.integers(0, 100), max_size=4))
def test_the_slices_of_all_ranks_tile_every_component(case: Any, cuts: list[int]) -> None:
    item, sizes, whole = case
    edges = sorted({0, whole.numel(), *(c % whole.numel() for c in cuts)})
    held: dict[str, list[int]] = {name: [] for name in sizes}
    for lo, hi in pairwise(edges):
        for part in component_slices(ParameterSlice(item.shape, lo, hi), sizes):
            held[part.name] += range(part.start, part.stop)
    for name, rows in sizes.items():
        assert held[name] == [*range(rows * item.shape[1])], name


@given(st.integers(1, 6), st.integers(1, 4), st.integers(1, 4), st.data())
def test_gate_and_up_are_the_halves(half: int, width: int, tp: int, data: Any) -> None:
    size = 2 * half * width
    start = data.draw(st.integers(0, size))
    item = ParameterSlice((2 * half, width), start, data.draw(st.integers(start, size)), tp)
    w, v = component_slices(item, gated(item))
    assert (w.stop - w.start) + (v.stop - v.start) == item.size
    assert w.stop <= half * width
    assert v.stop <= half * width


def old_split(data: Any, numel: int, taken: slice, tp: int) -> list[torch.Tensor]:
    """The formula of Megatron-core 0.16, re-enacted: the middle is half of `data`'s own count."""
    local = data.to_local() if isinstance(data, Distributed) else data
    size = numel // tp
    found = []
    for part in (slice(0, size // 2), slice(size // 2, size)):
        lo, hi = max(taken.start, part.start), min(taken.stop, part.stop)
        lo, hi = (lo, hi) if lo < hi else (taken.start, taken.start)
        found.append(local.reshape(-1)[lo - taken.start : hi - taken.start])
    return found


def test_plain_moments_split_by_their_local_count_are_wrong_and_ours_are_right() -> None:
    whole = torch.arange(64.0).reshape(16, 4)
    item = ParameterSlice((16, 4), 24, 48, tp=1)  # gate ends at 32
    local = whole.reshape(-1)[24:48]
    wrong = old_split(local, local.numel(), slice(24, 48), 1)
    assert [len(x) for x in wrong] == [0, 0]  # every element lost
    first = old_split(whole.reshape(-1)[:24], 24, slice(0, 24), 1)
    assert [len(x) for x in first] == [12, 12]  # half of the gate taken for up
    right = split(local, item, gated(item))
    assert torch.equal(right[0].tensor, whole[6:8])
    assert torch.equal(right[1].tensor, whole[8:12])
    same = split(Distributed((16, 4), local), item, gated(item))
    assert all(torch.equal(a.tensor, b.tensor) for a, b in zip(right, same, strict=True))


def test_the_old_formula_is_right_for_dtensors_as_ours_is() -> None:
    whole = torch.arange(64.0).reshape(16, 4)
    item, local = ParameterSlice((16, 4), 24, 48, tp=2), whole.reshape(-1)[24:48]
    ours = split(Distributed((32, 4), local), item, gated(item))
    old = old_split(Distributed((32, 4), local), 128, slice(24, 48), 2)
    assert [x.tolist() for x in old] == [p.tensor.reshape(-1).tolist() for p in ours]


def test_component_sizes_that_are_tp_local_already_are_not_divided_again() -> None:
    item = ParameterSlice((12, 3), 0, 36, tp=2)
    sizes = {"query": 4, "key": 4, "value": 8, "z": 4, "beta": 2, "alpha": 2}
    local = {"query": 2, "key": 2, "value": 4, "z": 2, "beta": 1, "alpha": 1}
    assert components(item, sizes) == local
    assert components(item, local) == local
    divided_twice = {name: n // 2 for name, n in local.items()}
    with pytest.raises(LayoutError, match="do not split"):
        components(item, divided_twice)


def test_a_tp_local_dtensor_is_taken_as_it_is() -> None:
    item, local = ParameterSlice((6, 2), 2, 10, tp=2), torch.arange(8.0)
    sizes = components(item, {"query": 4, "key": 8})
    whole = split(Distributed((12, 2), local), item, sizes)
    alone = split(Distributed((6, 2), local), item, sizes)
    assert [p.tensor.tolist() for p in whole] == [p.tensor.tolist() for p in alone]


def test_a_dtensor_whose_shape_was_scaled_by_tp_twice_is_refused() -> None:
    item = ParameterSlice((8, 4), 0, 32, tp=2)
    with pytest.raises(
        LayoutError, match=r"\[32, 4\] is not the state of a parameter of \[16, 4\]"
    ):
        split(Distributed((32, 4), torch.zeros(32)), item, gated(item))


def test_a_plain_state_of_another_size_is_refused() -> None:
    item = ParameterSlice((8, 4), 8, 24)
    with pytest.raises(LayoutError, match="12 elements on this rank, its slice"):
        split(torch.zeros(12), item, gated(item))


def test_an_odd_projection_is_refused() -> None:
    with pytest.raises(LayoutError, match="7 rows on each of 2 tensor-parallel ranks"):
        gated(ParameterSlice((7, 4), 0, 28, tp=2))


def test_components_that_tp_does_not_divide_are_refused() -> None:
    item = ParameterSlice((4, 2), 0, 8, tp=2)
    with pytest.raises(LayoutError, match="component `query` has 3 rows"):
        components(item, {"query": 3, "key": 5})


def test_a_slice_outside_of_its_parameter_is_refused() -> None:
    with pytest.raises(LayoutError, match=r"\[4, 9\) leaves a parameter of 8 elements"):
        ParameterSlice((4, 2), 4, 9)


def test_parts_that_were_exchanged_do_not_merge() -> None:
    item = ParameterSlice((4, 2), 1, 6)
    parts = split(torch.arange(5.0), item, gated(item))
    with pytest.raises(LayoutError, match="elements of"):
        merge([parts[1], parts[0]], item)


def test_states_are_split_with_their_counters() -> None:
    item = ParameterSlice((4, 2), 2, 7)
    moments = torch.arange(5.0)
    found = split_state({"exp_avg": moments, "step": torch.tensor(3.0)}, item, gated(item))
    assert found["_w"]["exp_avg"].tensor.tolist() == [[0.0, 1.0]]
    assert found["_v"]["exp_avg"].tensor.tolist() == [2.0, 3.0, 4.0]
    assert found["_w"]["step"] is found["_v"]["step"]


def test_layers_that_are_not_gated_stay_whole_beside_gated_ones() -> None:
    gelu, swiglu = (SimpleNamespace(gated_linear_unit=flag) for flag in (False, True))

    class Mlp(torch.nn.Module):
        def __init__(self, config: Any) -> None:
            super().__init__()
            self.config, self.linear_fc1 = config, torch.nn.Linear(2, 4)

    model = torch.nn.ModuleDict({"vision": Mlp(gelu), "decoder": Mlp(swiglu)})
    assert gated_names(model) == {"decoder.linear_fc1"}


def test_plain_parts_that_dcp_would_truncate_are_refused() -> None:
    items = {
        "w": ParameterSlice((8, 4), 8, 24, tp=2),
        "norm": ParameterSlice((4,), 0, 4, tp_axis=None),
    }
    fine = {"w": {"exp_avg": Distributed((16, 4), torch.zeros(16)), "step": torch.tensor(1.0)},
            "norm": {"exp_avg": torch.zeros(4)}}  # fmt: skip
    check_distributed(fine, items)
    with pytest.raises(LayoutError, match=r"1 states are plain .*`exp_avg` of `w` has \[4, 4\]"):
        check_distributed({**fine, "w": {"exp_avg": torch.zeros(4, 4)}}, items)


def test_masters_that_are_rounded_to_bf16_are_detected() -> None:
    exact = torch.randn(50)
    assert not is_rounded_to_bf16(exact)
    assert is_rounded_to_bf16(exact.bfloat16().float())
    ones = torch.ones(8)
    tensors = [("a", exact), ("b", exact.bfloat16().float()), ("norm", ones)]
    assert rounded_masters(tensors) == ["b"]
    with pytest.raises(LayoutError, match="main weights are float32"):
        is_rounded_to_bf16(exact.bfloat16())
