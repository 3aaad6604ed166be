"""Real Megatron models of a hub folder on CPUs with gloo; import it before megatron."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.live.megatron_fsdp_on_cpu import parallel_state, sharded  # isort: skip

from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed

from tests.parity.megatron_logits import build

__all__ = ["megatron", "model_of", "parallel_state", "sharded"]

Config = dict[str, Any]


@contextmanager
def megatron(
    folder: Path, tp: int, cp: int, ep: int, pp: int = 1, vpp: int = 0
) -> Iterator[Config]:
    """Megatron's groups on the ranks of this job, for the model of a folder, whose configuration it gives."""
    hf = json.loads((folder / "config.json").read_text())
    parallel_state.initialize_model_parallel(
        tp,
        pp,
        virtual_pipeline_model_parallel_size=vpp or None,
        context_parallel_size=cp,
        expert_model_parallel_size=ep if hf.get("num_experts") else 1,
        expert_tensor_parallel_size=1,
    )
    model_parallel_cuda_manual_seed(1)
    try:
        yield hf
    finally:
        dist.barrier()
        parallel_state.destroy_model_parallel()


def model_of(hf: Config, stage: int | None = None, **changes: Any) -> Any:
    """A model in the folder's element type, every number of it not a number."""
    tp = parallel_state.get_tensor_model_parallel_world_size()
    pp = parallel_state.get_pipeline_model_parallel_world_size()
    ep = parallel_state.get_expert_model_parallel_world_size()
    dtype = getattr(torch, hf["dtype"])
    vocab = -(-hf["vocab_size"] // (8 * tp)) * 8 * tp
    if "linear_attention" in hf.get("layer_types", ()):
        from tests.distributed.megatron_linear_attention import build_linear

        model = build_linear(hf, vocab, tp, dtype).to(dtype)
    else:
        model = build(hf, vocab, tp, pp, ep, dtype, stage, **changes).to(dtype)
    # Megatron's own attention refuses context parallelism when it is made; weights do not care.
    model.config.context_parallel_size = parallel_state.get_context_parallel_world_size()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(float("nan"))
    return model
