"""A real HybridModel of Megatron-core, saved as `torch_dist` with the logits of some tokens; run once per rank.

Its specification asks for TransformerEngine, whose place Megatron's own local layers take.

    python -m tests.parity.megatron_hybrid CONFIG OUT LOGITS PATTERN tp pp
"""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing, parallel_state
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.hybrid import hybrid_block
from megatron.core.models.hybrid.hybrid_block import HybridStack, HybridStackSubmodules
from megatron.core.models.hybrid.hybrid_model import HybridModel
from megatron.core.ssm.mlp_layer import MLPLayer
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_layer import (
    MoETransformerLayer,
    TransformerLayer,
    TransformerLayerSubmodules,
)

from tests.parity.megatron_logits import around_layers, described, logits, meet

ATTENTION = ("input_layernorm", "self_attention", "self_attn_bda")
FEED_FORWARD = ("pre_mlp_layernorm", "mlp", "mlp_bda")


def part_of(spec: Any, names: tuple[str, ...]) -> TransformerLayerSubmodules:
    """The modules of a GPTModel's layer that a layer of a HybridModel has, and how their norm is stored."""
    whole = spec.submodules
    stored = {k: v for k, v in whole.sharded_state_dict_keys_map.items() if k.startswith(names)}
    return TransformerLayerSubmodules(
        **{name: getattr(whole, name) for name in names}, sharded_state_dict_keys_map=stored
    )


def hybrid(hf: dict[str, Any], pattern: str, tp: int, pp: int) -> HybridModel:
    """A model of the shape that a hub configuration gives, a pattern's symbol for each layer."""
    config, sparse = described(hf, tp, pp, 1, torch.float32)
    config.num_layers = len(pattern)
    norms = {"qk_layernorm": config.qk_layernorm, "normalization": config.normalization}
    dense = get_gpt_layer_local_spec(**norms)
    layers = HybridStackSubmodules(
        attention_layer=ModuleSpec(TransformerLayer, submodules=part_of(dense, ATTENTION)),
        mlp_layer=ModuleSpec(MLPLayer, submodules=part_of(dense, FEED_FORWARD)),
        moe_layer=ModuleSpec(MoETransformerLayer, submodules=part_of(sparse, FEED_FORWARD)),
    )
    with patch.object(hybrid_block, "TENorm", dense.submodules.input_layernorm):
        return HybridModel(
            config,
            ModuleSpec(HybridStack, submodules=layers),
            hybrid_layer_pattern=pattern,
            pre_process=parallel_state.is_pipeline_first_stage(),
            post_process=parallel_state.is_pipeline_last_stage(),
            vocab_size=hf["vocab_size"],
            **around_layers(hf),
        ).eval()


def main(config: str, out: str, tokens: str, pattern: str, *sizes: str) -> None:
    tp, pp = map(int, sizes)
    meet()
    parallel_state.initialize_model_parallel(tp, pp)
    model_parallel_cuda_manual_seed(1)
    hf = json.loads(Path(config).read_text())
    model = hybrid(hf, pattern, tp, pp)
    torch.manual_seed(dist.get_rank())
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.copy_(1 + torch.linspace(-0.1, 0.1, parameter.numel()))
            else:
                parameter.normal_(std=0.2)
                if not getattr(parameter, "tensor_model_parallel", False):
                    dist.broadcast(
                        parameter,
                        parallel_state.get_tensor_model_parallel_src_rank(),
                        parallel_state.get_tensor_model_parallel_group(),
                    )
    args = Namespace(hybrid_layer_pattern=pattern, num_layers=len(pattern))
    state = {"model": model.sharded_state_dict(), "args": args, "checkpoint_version": 3.0}
    if dist.get_rank() == 0:
        Path(out).mkdir(parents=True)
    dist.barrier()
    dist_checkpointing.save(state, out, content_metadata={})
    ids = torch.arange(24).reshape(2, 12) * 3 % hf["vocab_size"]
    found = logits(model, ids, pp)
    if found is not None and dist.get_rank() == dist.get_world_size() - 1:
        torch.save((ids, found), tokens)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
