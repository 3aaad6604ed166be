"""Tensors of a few values that lie close together fit much by chance, and two trainings differ everywhere."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import intarsia
from tests.checkpoints import write_hf

NORM = "model.layers.{}.norm.weight"


def trained(seed: int, values: int = 3) -> torch.Tensor:
    """A norm in bf16 after a few steps: neighbours of one."""
    draw = torch.randint(0, values, (64,), generator=torch.Generator().manual_seed(seed))
    return (torch.tensor(1.0, dtype=torch.bfloat16).view(torch.int16) - 1 + draw).to(torch.int16).view(torch.bfloat16)  # fmt: skip


@pytest.mark.parametrize("values", [2, 3, 8, 90])
@pytest.mark.parametrize("seed", range(4))
def test_norms_of_two_trainings_explain_nothing_of_each_other(
    tmp_path: Path, seed: int, values: int
) -> None:
    a = write_hf(tmp_path / "a", {"norm.weight": trained(2 * seed, values)}, None)
    b = write_hf(tmp_path / "b", {"norm.weight": trained(2 * seed + 1, values)}, None)
    assert {f.kind for f in intarsia.verify(a, b).faults} == {"unexplained"}


def test_a_norm_that_is_shifted_is_recognised(tmp_path: Path) -> None:
    a = write_hf(tmp_path / "a", {"norm.weight": trained(1)}, None)
    b = write_hf(tmp_path / "b", {"norm.weight": trained(1).roll(3)}, None)
    (fault,) = intarsia.verify(a, b).faults
    assert (fault.kind, "shifted by 3 around the end" in fault.text) == ("shifted", True)


def test_rows_of_single_numbers_are_recognised_in_any_order(tmp_path: Path) -> None:
    x = torch.randn(64, generator=torch.Generator().manual_seed(1))
    order = torch.randperm(64, generator=torch.Generator().manual_seed(2))
    a, b = (write_hf(tmp_path / n, {"x": y}, None) for n, y in (("a", x), ("b", x[order])))
    (fault,) = intarsia.verify(a, b).faults
    assert fault.kind == "rows-permuted"


@pytest.mark.parametrize("size", [4, 64])
def test_scales_that_are_inverted_are_recognised(tmp_path: Path, size: int) -> None:
    x = torch.rand(size, generator=torch.Generator().manual_seed(1)) + 0.5
    a, b = (write_hf(tmp_path / n, {"x": y}, None) for n, y in (("a", x), ("b", 1 / x)))
    (fault,) = intarsia.verify(a, b).faults
    assert (fault.kind, "one divided by" in fault.text) == ("scaled", True)


@pytest.mark.parametrize("values", [2, 3])
def test_the_norm_of_a_copied_layer_is_part_of_it(tmp_path: Path, values: int) -> None:
    sound = {NORM.format(k): trained(k, values) for k in range(4)}
    sound |= {n.replace("norm", "up_proj"): torch.randn(8, 8).bfloat16() for n in [*sound]}
    copied = {n: sound[n.replace("layers.3", "layers.1")].clone() for n in sound}
    a, b = (write_hf(tmp_path / n, x, None) for n, x in (("a", sound), ("b", copied)))
    (fault,) = intarsia.verify(a, b).faults
    assert (fault.kind, len(fault.tensors)) == ("layers-duplicated", 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_files_that_differ_altogether_are_two_trainings_and_no_stale_ranks(
    tmp_path: Path, dtype: torch.dtype
) -> None:
    folders = []
    for seed in (1, 2):
        draw = torch.Generator().manual_seed(seed)
        x = {f"model.layers.{k}.up_proj.weight": torch.randn(16, 16, generator=draw) for k in range(6)}  # fmt: skip
        cast = {n: v.to(dtype) for n, v in x.items()}
        folders.append(write_hf(tmp_path / f"{seed}", cast, None, files=3))
    found = intarsia.verify(*folders)
    assert {f.kind for f in found.faults} == {"unexplained"}
    assert "intarsia diff" in found.faults[0].next


def layers(seed: int, norm: torch.Tensor) -> dict[str, torch.Tensor]:
    """Four layers of a matrix and a norm in fp32."""
    draw = torch.Generator().manual_seed(seed)
    matrix = {NORM.format(k).replace("norm", x): torch.randn(16, 16, generator=draw) for k in range(4) for x in ("up_proj", "down_proj")}  # fmt: skip
    return matrix | {NORM.format(k): norm.roll(5 * k) for k in range(4)}


def near_one(scale: float) -> torch.Tensor:
    return 1 + scale * torch.rand(64, generator=torch.Generator().manual_seed(9))


def test_norms_of_one_are_no_rounded_norms(tmp_path: Path) -> None:
    """What lies near one rounds to one, and a model that was never trained has ones."""
    trained, fresh = layers(1, near_one(0.002)), layers(2, torch.ones(64))
    mixed = {n: (fresh if ".2." in n else trained)[n] for n in trained}
    a, b = (write_hf(tmp_path / n, x, None) for n, x in (("a", trained), ("b", mixed)))
    found = {f.kind: f for f in intarsia.verify(a, b).faults}
    assert found.keys() == {"constant", "rank-stale"}
    assert found["constant"].tensors == (NORM.format(2),)
    assert "every element of B is 1" in found["constant"].text
    assert "every matrix of layer 2 differs" in found["rank-stale"].text


@pytest.mark.parametrize("few", [False, True])
def test_norms_that_were_rounded_to_one_beside_rounded_matrices_are_rounded(
    tmp_path: Path, few: bool
) -> None:
    norm = near_one(0.002)
    if few:
        norm[torch.randperm(64, generator=torch.Generator().manual_seed(3))[:40]] = 1
    fine = layers(1, norm)
    rough = {n: x.bfloat16().float() for n, x in fine.items()}
    for left, right in ((fine, rough), (rough, fine)):
        a, b = (write_hf(tmp_path / f"{len(left)}{x is fine}", x, None) for x in (left, right))
        (fault,) = intarsia.verify(a, b).faults
        assert (fault.kind, len(fault.tensors)) == ("rounded", 12)
