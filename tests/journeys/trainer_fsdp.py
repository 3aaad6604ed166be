"""Transformers' Trainer under FSDP2 on gloo ranks, behind the gate that accelerate keeps shut for CPUs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch.distributed as dist
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedType

from tests.journeys.test_trainer import train


def _open_the_gate() -> None:
    made = AcceleratorState.__init__

    def opened(self: Any, *args: Any, **named: Any) -> None:
        made(self, *args, **named)
        state = AcceleratorState._shared_state
        if plugin := named.get("fsdp_plugin") or state.get("fsdp_plugin"):
            state |= {"distributed_type": DistributedType.FSDP, "fsdp_plugin": plugin}

    AcceleratorState.__init__ = opened  # type: ignore[method-assign]


def losses(output: Path, kind: str, resume: Path | None = None) -> list[float]:
    """The losses of four steps on these ranks, of which the second is saved as `kind` says."""
    rank, size = str(dist.get_rank()), str(dist.get_world_size())
    os.environ |= {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29513"}
    _open_the_gate()
    sharding = {"fsdp": True, "fsdp_config": {"state_dict_type": kind}}
    return train(output, 4, resume, weight_decay=0.1, **sharding)
