"""A training with its own data and generators on every rank, mixed precision and offload goes on bit by bit."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torchdata.stateful_dataloader import StatefulDataLoader

import intarsia
from tests.distributed.ranks import on_ranks

Parts = tuple[nn.Module, torch.optim.Optimizer, dict[str, Any]]


def start(seed: int, shape: tuple[int, ...], policy: dict[str, Any]) -> Parts:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.3), nn.Linear(6, 3))
    names = ("replicate", "shard")[-len(shape) :]
    fully_shard(model, mesh=init_device_mesh("cpu", shape, mesh_dim_names=names), **policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02 * seed, foreach=False)
    rank = dist.get_rank()
    data = (torch.arange(48.0).reshape(12, 4) + 100 * rank).sin()  # each rank has its own
    drawn = torch.Generator().manual_seed(10 * seed + rank)
    torch.manual_seed(20 * seed + rank)
    random.seed(30 * seed + rank)
    return model, optimizer, {
        "scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.7),
        "scaler": torch.amp.GradScaler("cpu", init_scale=2.0 * seed, growth_interval=1),
        "loader": StatefulDataLoader(data, batch_size=2, shuffle=True, generator=drawn),
    }  # fmt: skip


def steps(parts: Parts, count: int) -> list[float]:
    model, optimizer, stateful = parts
    scheduler, scaler, loader = (stateful[k] for k in ("scheduler", "scaler", "loader"))
    found: list[float] = []
    for batch in loader:
        loss = model(batch).float().square().mean() * (1 + random.random())
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        scheduler.step()
        found.append(loss.item())
        if len(found) == count:
            break
    return found


def _resumed(folder: Path, shape: tuple[int, ...]) -> None:
    mixed = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for name, policy in {
        "plain": {},
        "offload": {"offload_policy": CPUOffloadPolicy(pin_memory=False)},
        "mixed": {"mp_policy": mixed},
    }.items():
        never_stopped = steps(start(1, shape, policy), 5)
        parts = start(1, shape, policy)
        assert steps(parts, 2) == never_stopped[:2]
        extra = {key: each.state_dict() for key, each in parts[2].items()}
        extra |= {"python": random.getstate(), "torch": torch.get_rng_state()}
        intarsia.save(folder / name / "step-2", *parts[:2], extra, background=True).wait()
        again = start(2, shape, policy)
        report = intarsia.load(folder / name, *again[:2])
        assert report.complete
        for key, each in again[2].items():
            each.load_state_dict(report.extra[key])
        random.setstate(report.extra["python"])
        torch.set_rng_state(report.extra["torch"])
        assert steps(again, 3) == never_stopped[2:], name


def test_a_resumed_training_is_the_one_that_never_stopped(tmp_path: Path) -> None:
    on_ranks(2, _resumed, tmp_path, (2,))


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(4,), (2, 2)])
def test_it_is_so_on_four_ranks(tmp_path: Path, shape: tuple[int, ...]) -> None:
    on_ranks(4, _resumed, tmp_path, shape)
