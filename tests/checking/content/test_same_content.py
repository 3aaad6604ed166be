"""Equality is said of what was compared, and of what means something."""

from __future__ import annotations

from math import log
from pathlib import Path

import torch
from safetensors.torch import save_file

import intarsia
from tests.checkpoints import normal_tensor


def kinds(tmp_path: Path, tensors: dict[str, torch.Tensor]) -> list[str]:
    tmp_path.mkdir(parents=True, exist_ok=True)
    save_file({n: x.contiguous() for n, x in tensors.items()}, tmp_path / "model.safetensors")
    return [fault.kind for fault in intarsia.verify(tmp_path).faults]


def sin_cos(positions: int, width: int) -> torch.Tensor:
    """The table of positions that transformers and diffusion models save."""
    rates = torch.exp(torch.arange(width // 2) * (-log(10_000) / (width // 2)))
    angles = torch.arange(positions)[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()], 1)


def test_tables_of_sines_are_no_repeated_shards(tmp_path: Path) -> None:
    for k, (positions, width) in enumerate(((64, 32), (1024, 512), (256, 256))):
        table = sin_cos(positions, width)
        assert not kinds(tmp_path / f"{k}", {"embed_positions.weight": table})
        both = torch.cat([table, table.roll(1, 0)], 1)
        assert not kinds(tmp_path / f"{k}b", {"embed_positions.weight": both})


def test_blocks_with_equal_sums_are_no_repeated_shards(tmp_path: Path) -> None:
    w = normal_tensor((32, 64), torch.float32)
    w[:, 32:] = w[torch.randperm(32, generator=torch.Generator().manual_seed(1)), :32]
    assert not kinds(tmp_path / "sums", {"w.weight": w})
    w[:, 32:] = w[:, :32]
    assert kinds(tmp_path / "equal", {"w.weight": w}) == ["shards-repeated"]


def test_experts_with_the_same_few_scales_are_not_the_same(tmp_path: Path) -> None:
    random = torch.Generator().manual_seed(3)
    at = "model.layers.{}.mlp.experts.{}.{}"
    tensors = {}
    for layer in range(2):
        for e in range(8):
            powers = torch.randint(0, 2, (2, 4), generator=random)
            tensors[at.format(layer, e, "scales.weight")] = torch.pow(2.0, powers - 4.0)
            w = normal_tensor((16, 16), torch.bfloat16, 10 * layer + e)
            tensors[at.format(layer, e, "up_proj.weight")] = w
    assert not kinds(tmp_path / "sound", tensors)
    source = tensors[at.format(1, 2, "up_proj.weight")]
    tensors[at.format(1, 5, "up_proj.weight")] = source.clone()
    assert kinds(tmp_path / "copied", tensors) == ["experts-repeated"]


def test_layers_whose_rows_and_columns_sum_alike_are_not_the_same(tmp_path: Path) -> None:
    a = normal_tensor((16, 16), torch.float32)
    b = a.clone().view(torch.int32)
    b[0, 0], b[1, 1] = b[0, 0] + 8, b[1, 1] + 8
    b[0, 1], b[1, 0] = b[0, 1] - 8, b[1, 0] - 8
    tensors = {"layers.0.w.weight": a, "layers.1.w.weight": b.view(torch.float32)}
    assert not kinds(tmp_path / "sums", tensors)
    tensors["layers.1.w.weight"] = a.clone()
    assert kinds(tmp_path / "equal", tensors | {"layers.2.w.weight": a + 1}) == ["tensor-repeated"]
