"""Zeros that begin or end inside a row are a hole of a file; whole rows, blocks and chance are none."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import intarsia
from tests.checkpoints import normal_tensor

NAME = "model.layers.0.mlp.up_proj.weight"


def matrix(dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return normal_tensor((160, 96), dtype)


def faults(folder: Path, x: torch.Tensor) -> list[tuple[str, str]]:
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {NAME: x, "model.layers.1.mlp.up_proj.weight": normal_tensor((160, 96), x.dtype, 1)}
    save_file(tensors, folder / "model.safetensors")
    return faults_in(folder)


def faults_in(folder: Path) -> list[tuple[str, str]]:
    return [(fault.kind, fault.where) for fault in intarsia.verify(folder).faults]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(
    ("start", "end"),
    [(31 * 96 + 50, 74 * 96 + 7), (31 * 96, 74 * 96 + 20), (31 * 96 + 60, 160 * 96), (0, 96 + 30)],
)
def test_zeros_that_end_inside_a_row_are_a_hole(
    start: int, end: int, dtype: torch.dtype, tmp_path: Path
) -> None:
    x = matrix(dtype)
    x.view(-1)[start:end] = 0
    shown = start if 96 - start % 96 >= 16 else -(-start // 96) * 96
    till = end if end % 96 >= 16 or end % 96 == 0 else end // 96 * 96
    assert faults(tmp_path, x) == [("zero-block", f"elements [{shown}:{till})")]


def test_the_bytes_of_a_file_that_were_never_fetched_are_found(tmp_path: Path) -> None:
    assert not faults(tmp_path, matrix())
    with (tmp_path / "model.safetensors").open("r+b") as file:
        file.seek(4096)
        file.write(bytes(8192))
    assert [kind for kind, _ in faults_in(tmp_path)] == ["zero-block"]


def test_whole_rows_blocks_and_chance_are_no_hole(tmp_path: Path) -> None:
    rows = matrix()
    rows[31:33] = 0
    assert not faults(tmp_path / "rows", rows)
    few = matrix()
    few[31:33] = 0
    few[33, :8] = 0
    assert not faults(tmp_path / "few", few)
    table = matrix()
    table[0], table[1, :48], table[1, 48:] = 0, 0, 1
    assert not faults(tmp_path / "table", table)
    blocks = matrix().view(10, 16, 6, 16)
    kept = torch.rand((10, 1, 6, 1), generator=torch.Generator().manual_seed(3)) > 0.5
    kept[4] = False
    kept[3, 0, 5] = False
    found = faults(tmp_path / "blocks", (blocks * kept).reshape(160, 96))
    assert not [where for _, where in found if where.startswith("elements")]


def test_the_rows_of_a_sparse_matrix_may_end_in_a_few_numbers(tmp_path: Path) -> None:
    x = normal_tensor((160, 24), torch.bfloat16)
    x *= torch.rand(x.shape, generator=torch.Generator().manual_seed(3)) < 0.1
    x[26], x[27] = 0, 0
    x[26, :3] = torch.tensor([0.3, 0.1, -0.2])
    x[25, -1], x[28, 0] = 0.5, 0.25
    assert not faults(tmp_path, x)
