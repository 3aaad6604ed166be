"""A real Megatron-core training state, saved as `torch_dist`; run once per rank.

The weights come from a checkpoint, and everything else is a function of them, so that whoever
reads the result knows what it must be: the fp32 main weight is the weight times (1 + 2**-12),
the first moment a quarter of that, the second its square.

    python -m tests.parity.megatron_training CHECKPOINT CONFIG OUT SHARDING BUCKET tp pp ep
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing, parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.models.gpt import GPTModel
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
from megatron.core.optimizer.optimizer import ChainedOptimizer
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed

from tests.parity.megatron_logits import build, load, meet


def fill(optimizer: DistributedOptimizer) -> None:
    """Give every parameter of the rank its state."""
    for group in optimizer.optimizer.param_groups:
        for p in group["params"]:
            p.data.mul_(1 + 2**-12)
            optimizer.optimizer.state[p] = {
                "step": torch.tensor(3.0),
                "exp_avg": p.data * 0.25,
                "exp_avg_sq": p.data * p.data,
            }


def begin(config: str, tp: int, pp: int, ep: int) -> GPTModel:
    """This rank's part of a model in bfloat16, on a mesh of real processes."""
    meet()
    parallel_state.initialize_model_parallel(
        tp, pp, expert_model_parallel_size=ep, expert_tensor_parallel_size=1
    )
    model_parallel_cuda_manual_seed(1)
    hf = json.loads(Path(config).read_text())
    return build(hf, hf["vocab_size"], tp, pp, ep, torch.bfloat16).bfloat16()


def optimizers(
    model: GPTModel, bucket: int, **settings: Any
) -> tuple[Any, list[DistributedOptimizer]]:
    """Megatron's optimizer of a model, and each one of the chain that it may be."""
    chosen = {"optimizer": "adam", "lr": 1e-3, "bf16": True, "use_distributed_optimizer": True}
    wrapped = DistributedDataParallel(
        model.config,
        DistributedDataParallelConfig(
            use_distributed_optimizer=True,
            overlap_grad_reduce=bucket > 0,
            bucket_size=bucket or None,
        ),
        model,
    )
    optimizer = get_megatron_optimizer(OptimizerConfig(**chosen | settings), [wrapped])
    chained = isinstance(optimizer, ChainedOptimizer)
    return optimizer, optimizer.chained_optimizers if chained else [optimizer]


def main(checkpoint: str, config: str, out: str, sharding: str, bucket: str, *sizes: str) -> None:
    tp, pp, ep = map(int, sizes)
    model = begin(config, tp, pp, ep)
    load(model, checkpoint)
    optimizer, each = optimizers(model, int(bucket))
    for one in each:
        fill(one)
    metadata = {"distrib_optim_sharding_type": sharding, "chained_optim_avoid_prefix": True}
    state = {"model": model.sharded_state_dict(metadata=metadata), "iteration": 7}
    state["optimizer"] = optimizer.sharded_state_dict(state["model"], metadata=metadata)
    if dist.get_rank() == 0:
        Path(out).mkdir(parents=True)
    dist.barrier()
    dist_checkpointing.save(state, out, content_metadata=metadata)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
