"""A `torch_dist` checkpoint loaded by Megatron-core's distributed optimizer; run once per rank.

Its state is a function of the weights, that of `megatron_training`, so that every rank knows what its
shards must be, wherever they begin and end.  The model, the distributed optimizer and all that loads are
Megatron's.  A stand-in plays the Adam of TransformerEngine inside it, which keeps the step in its groups:
with torch's, Megatron-core 0.16 looks for a step by parameter and loads no checkpoint of this kind, its
own neither.

    python -m tests.parity.megatron_resuming CHECKPOINT CONFIG OUT BUCKET tp pp ep
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing
from megatron.core.optimizer import distrib_optimizer
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer

from tests.parity.megatron_training import begin, optimizers

vars(distrib_optimizer).update(HAVE_APEX_OR_TE=True, USING_TE_OPTIMIZER=True)

SETTINGS = (
    "lr",
    "betas",
    "eps",
    "weight_decay",
    "wd_mult",
    "is_expert_parallel",
    "max_lr",
    "min_lr",
)


class StandInForFusedAdam(torch.optim.AdamW):
    """Adam whose step is its groups', not its parameters'."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        torch.optim.Optimizer.__setstate__(self, state)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            (b1, b2), step = group["betas"], group.get("step", 0) + 1
            group["step"] = step
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state |= {"exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}
                state["exp_avg"].lerp_(p.grad, 1 - b1)
                state["exp_avg_sq"].mul_(b2).addcmul_(p.grad, p.grad, value=1 - b2)
                root = (state["exp_avg_sq"] / (1 - b2**step)).sqrt_().add_(group["eps"])
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.addcdiv_(state["exp_avg"], root, value=-group["lr"] / (1 - b1**step))


def blank(optimizer: DistributedOptimizer) -> None:
    """Make the state that an Adam has only after a step, wrong in every element."""
    optimizer.optimizer.__class__ = StandInForFusedAdam
    for group in optimizer.optimizer.param_groups:
        group["step"] = 0
        for p in group["params"]:
            p.data.fill_(7.0)
            optimizer.optimizer.state[p] = {
                "exp_avg": torch.full_like(p.data, 7.0),
                "exp_avg_sq": torch.full_like(p.data, 7.0),
            }


def check(optimizer: DistributedOptimizer) -> int:
    """The elements of this rank, each compared with the function of its weight."""
    count = 0
    for weights, mains in zip(
        optimizer.shard_float16_groups, optimizer.shard_fp32_from_float16_groups, strict=True
    ):
        for weight, main in zip(weights, mains, strict=True):
            state = optimizer.optimizer.state[main]
            assert torch.equal(main.data, weight.float() * (1 + 2**-12))
            assert torch.equal(state["exp_avg"], main.data * 0.25)
            assert torch.equal(state["exp_avg_sq"], main.data * main.data)
            count += main.numel()
    assert {group["step"] for group in optimizer.optimizer.param_groups} == {3}
    return count


def main(checkpoint: str, config: str, out: str, bucket: str, *sizes: str) -> None:
    model = begin(config, *map(int, sizes))
    optimizer, each = optimizers(model, int(bucket))
    for one in each:
        blank(one)
    metadata = dist_checkpointing.load_content_metadata(checkpoint)
    state = {"model": model.sharded_state_dict(metadata=metadata)}
    state["optimizer"] = optimizer.sharded_state_dict(
        state["model"], is_loading=True, metadata=metadata
    )
    loaded = dist_checkpointing.load(state, checkpoint)
    model.load_state_dict(loaded["model"])
    optimizer.load_state_dict(loaded["optimizer"])
    count = torch.tensor(sum(map(check, each)))
    dist.all_reduce(count)
    if dist.get_rank() == 0:
        groups = [g for one in each for g in one.optimizer.param_groups]
        settings = [{key: group.get(key) for key in SETTINGS} for group in groups]
        Path(out).write_text(json.dumps({"elements": count.item(), "groups": settings}))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
