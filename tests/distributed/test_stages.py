"""Pipeline stages: each saves and loads with the ranks of its own process group, or all of them together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import intarsia
from tests.distributed.ranks import on_ranks


def stage_of(number: int, seed: int) -> nn.ModuleDict:
    """A stage, with names and rows of its own."""
    torch.manual_seed(10 * number + seed)
    return nn.ModuleDict({f"layer{number}": nn.Linear(3, 5 + number), "norm": nn.LayerNorm(3)})


def adam(stage: nn.Module, lr: float) -> torch.optim.Adam:
    return torch.optim.Adam(stage.parameters(), lr=lr, foreach=False)


def step(stage: nn.Module, optimizer: Any) -> None:
    for k, param in enumerate(stage.parameters()):
        param.grad = torch.full_like(param, 0.5 + k)
    optimizer.step()


def whole(stage: nn.Module, optimizer: Any) -> dict[str, torch.Tensor]:
    """Weights and states of a stage by name; collective."""
    found: dict[str, torch.Tensor] = {}
    for name, param in stage.named_parameters():
        held = {"": param, **optimizer.state[param]}
        found |= {
            f"{name} {kind}": (x.full_tensor() if hasattr(x, "full_tensor") else x).detach().clone()
            for kind, x in held.items()
        }
    return found


def by_stages(folder: Path) -> tuple[int, dict[str, torch.Tensor], list[float], str]:
    """Save each stage by its own group, at once and in the background, and load it as plain tensors there."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "dp"))
    number, group = mesh["pp"].get_local_rank(), mesh["dp"].get_group()
    lr = 0.1 * (1 + number)
    stage = stage_of(number, 0)
    for module in stage.values():
        fully_shard(module, mesh=mesh["dp"])
    optimizer = adam(stage, lr)
    step(stage, optimizer)
    held = whole(stage, optimizer)
    path = folder / f"stage-of-{number}"
    intarsia.save(path / "now", stage, optimizer, group=group)
    saving = intarsia.save(path / "aside", stage, optimizer, background=True, group=group)
    step(stage, optimizer)
    saving.wait()
    rates = []
    for name in ("now", "aside"):
        again = stage_of(number, 7)
        other = adam(again, 9.0)
        intarsia.load(path / name, into=again, optimizer=other, group=group)
        found = whole(again, other)
        assert found.keys() == held.keys()
        assert all(x.equal(held[n]) for n, x in found.items())
        rates.append(other.param_groups[0]["lr"])
    try:
        others = dist.new_group([2, 3] if number == 0 else [0, 1])
        intarsia.save(folder / "others", stage, group=others)
        outside = "saved"
    except intarsia.IntarsiaError as error:
        outside = str(error)
    return number, held, rates, outside


def test_a_stage_is_saved_and_loaded_by_its_own_ranks(tmp_path: Path) -> None:
    for number, held, rates, outside in on_ranks(4, by_stages, tmp_path):
        assert "is not in the process group that was given" in outside
        assert rates == [0.1 * (1 + number)] * 2
        stage = stage_of(number, 8)
        optimizer = adam(stage, 9.0)
        intarsia.load(tmp_path / f"stage-of-{number}" / "aside", into=stage, optimizer=optimizer)
        assert all(x.equal(held[n]) for n, x in whole(stage, optimizer).items())
