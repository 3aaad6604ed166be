"""Training with accelerate on gloo: FSDP2 on CPU behind the gate that accelerate keeps shut, and plain."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from accelerate import Accelerator, FullyShardedDataParallelPlugin
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedType

from tests.journeys.models import tiny

WORDS = torch.arange(24).reshape(2, 12)


def step(model: Any, optimizer: Any, backward: Any) -> float:
    """One training step, and its loss."""
    loss = model(input_ids=WORDS, labels=WORDS).loss
    backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    return float(loss.detach())


def optimizer_of(model: torch.nn.Module) -> torch.optim.AdamW:
    return torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)


def _open_the_gate(plugin: FullyShardedDataParallelPlugin) -> None:
    AcceleratorState._shared_state["distributed_type"] = DistributedType.FSDP
    AcceleratorState._shared_state["fsdp_plugin"] = plugin


def fsdp2(folder: Path) -> list[float]:
    """Three steps on these ranks, `save_state`, and the losses of two steps more."""
    os.environ |= {
        "RANK": str(dist.get_rank()),
        "LOCAL_RANK": str(dist.get_rank()),
        "WORLD_SIZE": str(dist.get_world_size()),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29511",
        "ACCELERATE_USE_FSDP": "true",
    }
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2,
        state_dict_type="SHARDED_STATE_DICT",
        auto_wrap_policy="no_wrap",
        reshard_after_forward=True,
        cpu_ram_efficient_loading=False,
    )
    accelerator = Accelerator(cpu=True, fsdp_plugin=plugin)
    _open_the_gate(plugin)
    model = tiny()
    model, optimizer = accelerator.prepare(model, optimizer_of(model))
    scheduler = accelerator.prepare(torch.optim.lr_scheduler.StepLR(optimizer.optimizer, 100))
    for _ in range(3):
        step(model, optimizer, accelerator.backward)
        scheduler.step()
    _open_the_gate(plugin)
    accelerator.save_state(str(folder))
    return [step(model, optimizer, accelerator.backward) for _ in range(2)]
