"""Every container that a model may be in when it is loaded and saved, with the same model in another one."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel

from tests.distributed.small_model import build

Build = Callable[[int], Any]


@dataclass(frozen=True)
class Container:
    """How a model of some seed is built in it, how elsewhere, and what is said of it in the page."""

    title: str
    ranks: int
    build: Build
    elsewhere: str
    other: Build
    options: dict[str, Any]
    quick: bool = False


def plain(seed: int) -> Any:
    return build(seed, "")


def fsdp2(seed: int) -> Any:
    return build(seed, "fsdp=2")


def ddp(seed: int) -> Any:
    return DistributedDataParallel(build(seed, ""), find_unused_parameters=True)


def fsdp1(seed: int) -> Any:
    warnings.simplefilter("ignore")
    model: Any = build(seed, "")
    cpu = torch.device("cpu")
    model.blocks[0] = FullyShardedDataParallel(model.blocks[0], use_orig_params=True, device_id=cpu)
    return FullyShardedDataParallel(model, use_orig_params=True, device_id=cpu)


def hsdp(seed: int) -> Any:
    return build(seed, "replicate=2,fsdp=2")


def tensor_parallel(seed: int) -> Any:
    return build(seed, "tp=2")


def compiled(seed: int) -> Any:
    return torch.compile(build(seed, ""), backend="eager")


def checkpointed(seed: int) -> Any:
    model: Any = build(seed, "")
    for k, block in enumerate(model.blocks):
        model.blocks[k] = checkpoint_wrapper(block)
    return model


def adapted(seed: int) -> Any:
    from peft import LoraConfig, get_peft_model

    model = get_peft_model(build(seed, ""), LoraConfig(r=2, target_modules=["up", "head"]))
    with torch.no_grad():
        for name, x in model.named_parameters():
            if "lora_B" in name:
                x.normal_()
    return model


def adapted_and_sharded(seed: int) -> Any:
    model = adapted(seed)
    for block in model.base_model.model.blocks:
        fully_shard(block)
    fully_shard(model)
    return model


PLAIN = "a plain model"
FSDP2 = "FSDP2 on 2 ranks"
LOOSE = {"strict": False}
CONTAINERS = (
    Container("plain module", 2, plain, FSDP2, fsdp2, {}),
    Container("DDP", 2, ddp, FSDP2, fsdp2, {}),
    Container("FSDP1", 2, fsdp1, FSDP2, fsdp2, {}),
    Container("FSDP2", 2, fsdp2, PLAIN, plain, {}),
    Container("HSDP, 2 x 2", 4, hsdp, PLAIN, plain, {}),
    Container("tensor parallel", 2, tensor_parallel, FSDP2, fsdp2, {}, quick=True),
    Container("torch.compile", 2, compiled, FSDP2, fsdp2, {}),
    Container("activation checkpointing", 2, checkpointed, FSDP2, fsdp2, {}),
    Container("PEFT (LoRA)", 2, adapted, f"PEFT in {FSDP2}", adapted_and_sharded, {}, quick=True),
    Container(
        "PEFT, with strict=False", 2, adapted, f"PEFT in {FSDP2}", adapted_and_sharded, LOOSE
    ),
)
