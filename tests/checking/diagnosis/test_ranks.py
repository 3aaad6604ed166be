"""What a rank lost is told by its rank: a flat range, a block of NaN, a pipeline stage."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import intarsia
from intarsia.checking.pair.comparison import Comparison
from tests.checkpoints import normal_tensor, write_hf
from tests.faults.reference import DENSE, MOE, Config, Tensors, weights


def held(path: Path, a: Tensors, b: Tensors, config: Config | None) -> Comparison:
    return intarsia.verify(write_hf(path / "a", a, config), write_hf(path / "b", b, config))


@pytest.mark.parametrize("turned", [False, True], ids=["in B", "in A"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("parts", "rank"), [(5, 2), (7, 6), (16, 3)])
@pytest.mark.parametrize("content", ["stale", "zero", "nan"])
def test_a_flat_range_that_cuts_rows_is_named_by_its_rank(
    tmp_path: Path, content: str, parts: int, rank: int, dtype: torch.dtype, turned: bool
) -> None:
    x = normal_tensor((33, 46), dtype, 1)
    y = x.clone().reshape(-1)
    size = -(-y.numel() // parts)
    numbers = {"stale": normal_tensor(y.shape, dtype, 2), "zero": 0 * y, "nan": float("nan") * y}
    y[rank * size : (rank + 1) * size] = numbers[content][rank * size : (rank + 1) * size]
    both = [{"x": x}, {"x": y.reshape(x.shape)}]
    (fault,) = held(tmp_path, *(both[::-1] if turned else both), None).faults
    assert fault.kind == ("nan" if content == "nan" else f"rank-{content}")
    assert f"flat block {rank} of {parts}" in fault.text


def test_a_flat_range_of_no_equal_cut_is_told_by_its_elements(tmp_path: Path) -> None:
    x, y = (normal_tensor((33, 46), torch.float32, seed) for seed in (1, 2))
    b = x.clone()
    b.view(-1)[501:1313] = y.view(-1)[501:1313]
    (fault,) = held(tmp_path, {"x": x}, {"x": b}, None).faults
    assert fault.kind == "rank-stale"
    assert "elements 501 to 1,312" in fault.text


def test_rows_that_no_mesh_cuts_stay_unexplained(tmp_path: Path) -> None:
    x, y = (normal_tensor((331, 46), torch.float32, seed) for seed in (1, 2))
    b = x.clone()
    b[100:103] = y[100:103]
    (fault,) = held(tmp_path, {"x": x}, {"x": b}, None).faults
    assert fault.kind == "unexplained"


@pytest.mark.parametrize(("parts", "rank"), [(2, 1), (4, 0)])
def test_a_ranks_block_of_nan_is_named(tmp_path: Path, parts: int, rank: int) -> None:
    a = weights(DENSE)
    b = {n: x.clone() for n, x in a.items()}
    for name, x in b.items():
        if "up_proj" in name:
            x.chunk(parts)[rank].fill_(float("nan"))
    (fault,) = held(tmp_path, a, b, DENSE).faults
    assert fault.kind == "nan"
    assert f"block {rank} of {parts} on axis 0 of B is NaN" in fault.text
    assert "tp" not in fault.text  # the files tell of no ranks


def test_two_tensors_of_one_layer_are_no_pipeline_stage(tmp_path: Path) -> None:
    a, other = weights(DENSE), weights(DENSE, seed=1)
    names = [n for n in a if re.search(r"layers\.2\.mlp\.(up|down)_proj", n)]
    (fault,) = held(tmp_path, a, a | {n: other[n] for n in names}, DENSE).faults
    assert fault.kind == "unexplained"


def test_one_matrix_of_an_expert_is_no_expert_parallel_rank(tmp_path: Path) -> None:
    a, other = weights(MOE), weights(MOE, seed=1)
    name = "model.layers.1.mlp.experts.2.down_proj.weight"
    (fault,) = held(tmp_path, a, a | {name: other[name]}, MOE).faults
    assert fault.kind == "unexplained"


@pytest.mark.parametrize("layers", [(1,), (0, 1, 2)], ids=["one layer", "every layer"])
def test_an_expert_is_said_to_be_lost_in_the_layers_that_lost_it(
    tmp_path: Path, layers: tuple[int, ...]
) -> None:
    a = weights(MOE)
    b = a | {n: 0 * x for n, x in a.items() if any(f".{k}.mlp.experts.2." in n for k in layers)}
    elsewhere = "model.layers.2.mlp.experts.1.down_proj.weight"
    if layers == (1,):
        b[elsewhere] = weights(MOE, seed=1)[elsewhere]
    (fault, *_) = held(tmp_path, a, b, MOE).faults
    inside, there = (" in layer 1", " there") if layers == (1,) else ("", "")
    said = f"every matrix of expert 2{inside} is zero on one side, and of the other experts{there} none"
    assert (fault.kind, fault.text) == ("rank-zero", said)


@pytest.mark.parametrize("norms", [True, False], ids=["with norms", "without norms"])
def test_a_pipeline_stage_is_named_whether_or_not_its_norms_differ(
    tmp_path: Path, norms: bool
) -> None:
    a, other = weights(DENSE), weights(DENSE, seed=1)
    names = [n for n in a if "layers.3." in n and (norms or "norm" not in n)]
    (fault,) = held(tmp_path, a, a | {n: other[n] for n in names}, DENSE).faults
    assert fault.kind == "rank-stale"
    assert "every matrix of layer 3 differs, and of the other layers none" in fault.text


@pytest.mark.parametrize(("parts", "rank"), [(2, 1), (4, 2)])
@pytest.mark.one_in(2)
def test_a_few_elements_of_a_rank_are_told_as_many_others_are(
    tmp_path: Path, parts: int, rank: int
) -> None:
    a, other = weights(DENSE), weights(DENSE, seed=1)
    b = {n: x.clone() for n, x in a.items()}
    for name, x in b.items():
        x.chunk(parts)[rank].copy_(other[name].chunk(parts)[rank] + 1)
    (fault,) = held(tmp_path, a, b, DENSE).faults
    assert fault.kind == "rank-stale"
    assert f"block {rank} of {parts}" in fault.text
    assert len(fault.tensors) == len(a)
