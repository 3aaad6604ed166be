"""Modules that numbers alone name are of any kind: what one lost is seen by those of its make."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import intarsia


def faults(folder: Path, model: nn.Module) -> list[tuple[str, tuple[str, ...]]]:
    folder.mkdir(parents=True, exist_ok=True)
    save_file(dict(model.state_dict()), folder / "model.safetensors")
    return [(fault.kind, fault.tensors) for fault in intarsia.verify(folder).faults]


def block() -> nn.Module:
    return nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 16))


@pytest.mark.parametrize("parts", [2, 3, 4])
def test_a_new_list_of_unlike_modules_is_sound(tmp_path: Path, parts: int) -> None:
    torch.manual_seed(1)
    assert not faults(tmp_path / "flat", nn.ModuleDict({"net": block()[:parts]}))
    nested = [nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16)), *[block() for _ in range(parts)]]
    assert not faults(tmp_path / "nested", nn.ModuleDict({"net": nn.Sequential(*nested)}))
    assert not faults(tmp_path / "bare", nn.Sequential(*nested))


def test_the_last_of_a_list_may_begin_with_zeros(tmp_path: Path) -> None:
    net = nn.ModuleDict({"net": nn.Sequential(nn.Linear(16, 16), nn.SiLU(), nn.Linear(16, 16))})
    for x in net["net"][-1].parameters():
        nn.init.zeros_(x)
    assert not faults(tmp_path, net)


@pytest.mark.parametrize("k", [2, 5])
@pytest.mark.parametrize("leaf", ["weight", "bias"])
def test_what_one_of_equals_lost_is_a_fault(tmp_path: Path, leaf: str, k: int) -> None:
    heads = nn.ModuleDict({"heads": nn.ModuleList([nn.Linear(16, 16) for _ in range(6)])})
    nn.init.zeros_(getattr(heads["heads"][k], leaf))
    assert faults(tmp_path, heads) == [("zero-tensor", (f"heads.{k}.{leaf}",))]
