"""A model of Megatron-core with the state of its precision-aware optimizer, saved in two ways; run in one process.

Adam is TransformerEngine's own, which keeps of a main weight only what the bf16 weight lacks.  That is a function of
the weight here, so that whoever reads the result knows what the main weight must be.

    python -m tests.journeys.megatron_remainders FOLDER
"""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path

import torch
import torch.distributed as dist

from tests.journeys.megatron_others import HF
from tests.parity.megatron_logits import build
from tests.parity.megatron_training import optimizers

from megatron.core import dist_checkpointing, parallel_state  # isort: skip
from megatron.core import optimizer as of_core
from megatron.core.optimizer import distrib_optimizer, optimizer_config
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed

from tests.format.megatron.optimizer.halves import remainder_of
from tests.live import transformer_engine_on_cpu

SHARDINGS = ("dp_reshardable", "fully_reshardable")


def use_transformer_engines_adam() -> None:
    """Let Megatron-core find it, as where TransformerEngine is installed."""
    adam = transformer_engine_on_cpu.load().optimizers.FusedAdam
    for module in (of_core, distrib_optimizer):
        vars(module).update(Adam=adam, USING_PYTORCH_OPTIMIZER=False)
    vars(distrib_optimizer).update(HAVE_APEX_OR_TE=True, USING_TE_OPTIMIZER=True)
    for module in (of_core, optimizer_config):
        vars(module)["is_te_min_version"] = lambda *args, **kwargs: True


def main(folder: str) -> None:
    dist.init_process_group("gloo", rank=0, world_size=1, init_method=f"file://{folder}/meet")
    parallel_state.initialize_model_parallel()
    model_parallel_cuda_manual_seed(1)
    model = build(HF, 64, 1, 1, 1, torch.bfloat16).bfloat16()
    with torch.no_grad():
        for p in model.parameters():
            p.normal_()
    use_transformer_engines_adam()
    optimizer, (inner,) = optimizers(model, 0, use_precision_aware_optimizer=True)
    adam = inner.optimizer
    for group in adam.param_groups:
        group["step"] = 3
        for p in group["params"]:
            adam.initialize_state(p, store_param_remainders=True)
            adam.state[p]["exp_avg"].fill_(0.25)
            adam.state[p]["master_param"].copy_(remainder_of(p.data))
    args = {key: HF[key] for key in ("hidden_size", "num_attention_heads")}
    args |= {"num_layers": 2, "vocab_size": 64, "position_embedding_type": "rope", "swiglu": True}
    for sharding in SHARDINGS:
        metadata = {"distrib_optim_sharding_type": sharding, "chained_optim_avoid_prefix": True}
        parts = model.sharded_state_dict(metadata=metadata)
        state = {"model": parts, "iteration": 3, "checkpoint_version": 3.0}
        state["optimizer"] = optimizer.sharded_state_dict(parts, metadata=metadata)
        state["args"] = Namespace(**args, use_precision_aware_optimizer=True)
        to = Path(folder, sharding, "iter_0000003")
        to.mkdir(parents=True)
        dist_checkpointing.save(state, str(to), content_metadata=metadata)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
