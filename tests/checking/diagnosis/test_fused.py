"""Parts of a fused tensor in each other's place, in whatever order they were put down."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

import intarsia
from intarsia.checking.pair.comparison import Comparison
from tests.checkpoints import write_hf
from tests.faults.reference import DENSE, Config, weights
from tests.faults.statements import untrue

QKV = ("q_proj", "k_proj", "v_proj")
GATED = ("gate_proj", "up_proj")
CONFIG: Config = {**DENSE, "num_attention_heads": 6, "num_key_value_heads": 3}


def refused(
    path: Path, roles: Sequence[str], put_down: Callable[..., torch.Tensor], dtype: torch.dtype
) -> Comparison:
    """Two models, in one of which the parts of every layer are fused anew and cut as before."""
    tensors = {n: x.to(dtype) for n, x in weights(CONFIG).items()}
    wrong = dict(tensors)
    for name in tensors:
        if f".{roles[0]}." in name:
            names = [name.replace(roles[0], role) for role in roles]
            parts = [tensors[n] for n in names]
            fused = put_down(*parts).clone()
            wrong |= dict(zip(names, fused.split([len(x) for x in parts]), strict=True))
    wrong = {n: x.clone().contiguous() for n, x in wrong.items()}
    a, b = write_hf(path / "a", tensors, CONFIG), write_hf(path / "b", wrong, CONFIG)
    found = intarsia.verify(a, b)
    assert not untrue(tensors, wrong, found, CONFIG)
    return found


def by_rank(tp: int, order: Sequence[int]) -> Callable[..., torch.Tensor]:
    def put_down(*parts: torch.Tensor) -> torch.Tensor:
        shards = [x.chunk(tp) for x in parts]
        return torch.cat([shards[k][t] for t in range(tp) for k in order])

    return put_down


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("roles", "tp", "order", "told"),
    [
        (QKV, 1, (1, 0, 2), "qkv-permuted: .* in the order k_proj, q_proj, v_proj"),
        (QKV, 1, (2, 1, 0), "qkv-permuted: .* in the order v_proj, k_proj, q_proj"),
        (QKV, 1, (1, 2, 0), "qkv-permuted: .* in the order k_proj, v_proj, q_proj"),
        (QKV, 3, (1, 2, 0), "qkv-permuted: .* in the order k_proj, v_proj, q_proj .*tp=3"),
        (GATED, 2, (1, 0), "gate-up-swapped: .* in the order up_proj, gate_proj .*tp=2"),
        (GATED, 3, (1, 0), "gate-up-swapped: .* in the order up_proj, gate_proj .*tp=3"),
    ],
)
@pytest.mark.one_in(3)
def test_parts_put_down_in_another_order_are_one_fault(
    tmp_path: Path, roles: tuple[str, ...], tp: int, order: tuple[int, ...], told: str, dtype
) -> None:
    found = refused(tmp_path, roles, by_rank(tp, order), dtype)
    (fault,) = found.faults
    assert re.match(told, str(fault))
    assert len(fault.tensors) == len(found.different)


def test_parts_in_an_order_without_a_name_are_told_as_such(tmp_path: Path) -> None:
    def shuffled(*parts: torch.Tensor) -> torch.Tensor:
        fused = torch.cat(parts)
        return fused[torch.randperm(len(fused), generator=torch.Generator().manual_seed(1))]

    (fault,) = refused(tmp_path, QKV, shuffled, torch.float32).faults
    assert str(fault).startswith("rows-permuted: rows of query, key and value")


def test_rows_in_each_other_s_place_may_be_wrong_in_part_besides(tmp_path: Path) -> None:
    def shuffled(*parts: torch.Tensor) -> torch.Tensor:
        kept, turned = torch.cat(parts).roll(5, 0).tensor_split([3 * parts[0].shape[1] // 4], 1)
        return torch.cat([kept, turned.flip(1)], 1)

    found = refused(tmp_path, QKV, shuffled, torch.float32)
    assert any("and block 3 of 4 on axis 1 differs" in d.diagnosis for d in found.different)


@pytest.mark.parametrize("part", [None, 0.5], ids=["whole heads", "half of each head"])
def test_norms_of_heads_are_turned_as_the_heads_are(tmp_path: Path, part: float | None) -> None:
    config = {**DENSE, "head_dim": 16} | ({"partial_rotary_factor": part} if part else {})
    tensors = weights(config)
    size = int(16 * (part or 1))
    order = torch.cat([torch.arange(size).reshape(2, -1).T.reshape(-1), torch.arange(size, 16)])
    wrong = {n: x[order] if "q_norm" in n else x for n, x in tensors.items()}
    a, b = write_hf(tmp_path / "a", tensors, config), write_hf(tmp_path / "b", wrong, config)
    (fault,) = intarsia.verify(a, b).faults
    assert fault.kind == "rope-permuted"


def test_a_row_of_zeros_among_mixed_rows_is_not_one_of_them(tmp_path: Path) -> None:
    """Rows of gate and up in an order of nobody's, and one of them zero."""

    def mixed(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        n = len(gate)
        return torch.cat([up[n // 3 :], gate[1:], torch.zeros_like(gate[:1]), up[: n // 3]])

    assert not refused(tmp_path, GATED, mixed, torch.bfloat16)


def test_shards_of_any_number_of_ranks_are_found_in_another_type(tmp_path: Path) -> None:
    config = {**DENSE, "intermediate_size": 56}
    tensors, (gate, up) = weights(config), (f"model.layers.0.mlp.{role}.weight" for role in GATED)
    fused = by_rank(7, (0, 1))(tensors[gate], tensors[up]).bfloat16()
    wrong = {n: x.bfloat16() for n, x in tensors.items()}
    wrong |= {gate: fused[:56].clone(), up: fused[56:].clone()}
    a, b = write_hf(tmp_path / "a", tensors, config), write_hf(tmp_path / "b", wrong, config)
    found = {d.tensor: d for d in intarsia.verify(a, b).different}
    assert "ranks of tp=7" in found[gate].diagnosis
    assert found[up].kind == "gate-up-interleaved"
