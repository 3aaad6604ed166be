"""Numbers multiplied by a factor of their own for each row, column or block."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import intarsia
from tests.checkpoints import normal_tensor, write_hf


def factors(*shape: int) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(3)) + 0.5


def by_rows(x: torch.Tensor) -> torch.Tensor:
    return x * factors(x.shape[0])[:, None]


def by_columns(x: torch.Tensor) -> torch.Tensor:
    return x * factors(x.shape[1])


def by_blocks(size: int):
    def scaled(x: torch.Tensor) -> torch.Tensor:
        rows, columns = (-(-n // size) for n in x.shape)
        each = factors(rows, columns).repeat_interleave(size, 0).repeat_interleave(size, 1)
        return x * each[: x.shape[0], : x.shape[1]]

    return scaled


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(70, 90), (300, 260)])
@pytest.mark.parametrize(
    ("change", "told"),
    [
        (by_rows, "every row"),
        (by_columns, "every column"),
        (by_blocks(32), "every block of 32 x 32"),
        (by_blocks(12), "every block of 12 x 12"),
    ],
)
def test_factors_of_rows_columns_and_blocks_are_told(
    tmp_path: Path, change, told: str, shape: tuple[int, int], dtype: torch.dtype
) -> None:
    x = normal_tensor(shape, torch.float32, 1)
    a = write_hf(tmp_path / "a", {"x": x.to(dtype)}, None)
    b = write_hf(tmp_path / "b", {"x": change(x.to(dtype).float()).to(dtype)}, None)
    (fault,) = intarsia.verify(a, b).faults
    assert fault.kind == "scaled"
    assert told in fault.text


def test_noise_is_no_factor_of_each_row(tmp_path: Path) -> None:
    x, y = (normal_tensor((70, 90), torch.float32, seed) for seed in (1, 2))
    a = write_hf(tmp_path / "a", {"x": x}, None)
    b = write_hf(tmp_path / "b", {"x": x * (1 + y / 100)}, None)
    (fault,) = intarsia.verify(a, b).faults
    assert fault.kind == "unexplained"


def test_scales_of_latent_attention_have_fewer_rows_than_it_turns(tmp_path: Path) -> None:
    config = {"model_type": "other", "qk_rope_head_dim": 16, "num_attention_heads": 4}
    name = "layers.0.self_attn.kv_a_proj_with_mqa.weight_scale_inv"
    x = factors(3, 32) / 1000
    a, b = (write_hf(tmp_path / n, {name: y}, config) for n, y in (("a", x), ("b", 1 / x)))
    (fault,) = intarsia.verify(a, b).faults
    assert (fault.kind, "one divided by" in fault.text) == ("scaled", True)
    b = write_hf(tmp_path / "c", {name: factors(3, 40)[:, 8:].clone()}, config)
    (fault,) = intarsia.verify(a, b).faults
    assert fault.kind == "unexplained"


@pytest.mark.parametrize("factor", [2.0, 16.0, 256.0])
def test_numbers_of_one_size_times_a_power_of_two_are_scaled_and_no_flipped_bits(
    tmp_path: Path, factor: float
) -> None:
    a = 2**-13 * (1 + normal_tensor((8, 8), torch.float32).abs() % 0.9)
    (bit,) = (a.view(torch.int32) ^ (factor * a).view(torch.int32)).unique().tolist()
    assert bit.bit_count() == 1
    sides = (write_hf(tmp_path / n, {"a": x}) for n, x in (("a", a), ("b", factor * a)))
    (fault,) = intarsia.verify(*sides).faults
    assert fault.kind == "scaled"
    assert fault.text.startswith(f"B is A times {factor:.4g}:")
