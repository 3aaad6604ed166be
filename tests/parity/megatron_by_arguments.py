"""The logits of `torch_dist` checkpoints in real Megatron-core models, built as Megatron-LM's scripts build them from arguments.

RANK=0 WORLD_SIZE=1 ... python -m tests.parity.megatron_by_arguments IDS CHECKPOINT …
"""

from __future__ import annotations

import os
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

os.environ["TORCHDYNAMO_DISABLE"] = "1"  # what Megatron compiles expects a device

import torch
import torch.distributed as dist

from tests.parity.megatron_on_cpu import pretend

pretend()

from megatron.core import dist_checkpointing, parallel_state
from megatron.core.fusions.fused_bias_geglu import quick_gelu
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import (
    get_gpt_decoder_block_spec,
    get_gpt_layer_local_spec,
)
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from megatron.core.transformer.transformer_config import TransformerConfig

from tests.parity.megatron_logits import load, logits, meet

ON_CPU = {
    "use_cpu_initialization": True, "hidden_dropout": 0.0, "attention_dropout": 0.0, "params_dtype": torch.float32,
    "pipeline_dtype": torch.float32, "bf16": False, "fp16": False, "apply_rope_fusion": False,
    **dict.fromkeys(("masked_softmax_fusion", "bias_activation_fusion", "bias_dropout_fusion"), False),
    **dict.fromkeys(("gradient_accumulation_fusion", "persist_layer_norm"), False),
}  # fmt: skip
SPARSE = {
    "moe_token_dispatcher_type": "allgather", "moe_aux_loss_coeff": 0.0, "moe_router_dtype": "fp32",
    "moe_router_load_balancing_type": "none",
}  # fmt: skip


def build(args: dict[str, Any]) -> GPTModel:
    """A model of nothing but its arguments, as `core_transformer_config_from_args` and `gpt_builder` take them."""
    given = {f.name: args[f.name] for f in fields(TransformerConfig) if f.name in args}
    given |= {
        "layernorm_epsilon": args["norm_epsilon"],
        "num_moe_experts": args.get("num_experts"),
        "num_query_groups": args["num_query_groups"] if args["group_query_attention"] else None,
    }
    if args["swiglu"]:
        given |= {"activation_func": torch.nn.functional.silu, "gated_linear_unit": True}
    elif args.get("quick_geglu"):
        given |= {"activation_func": quick_gelu, "gated_linear_unit": True}
    experts = args.get("num_experts")
    config = TransformerConfig(**given | ON_CPU | (SPARSE if experts else {}))
    for name in (name for name in args if name.startswith("yarn_")):
        setattr(config, name, args[name])
    if experts:
        spec = get_gpt_decoder_block_spec(
            config, use_transformer_engine=False, normalization=config.normalization
        )
    else:
        spec = get_gpt_layer_local_spec(
            qk_layernorm=config.qk_layernorm, normalization=config.normalization
        )
    return GPTModel(
        config,
        spec,
        vocab_size=args["padded_vocab_size"],
        max_sequence_length=args["max_position_embeddings"],
        parallel_output=False,
        share_embeddings_and_output_weights=not args["untie_embeddings_and_output_weights"],
        position_embedding_type=args["position_embedding_type"],
        rotary_percent=args["rotary_percent"],
        rotary_base=args["rotary_base"],
        rope_scaling=args.get("use_rope_scaling", False),
    ).eval()


def main(ids: str, *checkpoints: str) -> None:
    meet()
    parallel_state.initialize_model_parallel()
    model_parallel_cuda_manual_seed(1)
    for checkpoint in checkpoints:
        args = vars(dist_checkpointing.load_common_state_dict(checkpoint)["args"])
        model = build(args)
        load(model, checkpoint)
        found = logits(model, torch.load(ids), 1)
        assert found is not None
        torch.save(found[..., : args["vocab_size"]], Path(checkpoint).parent / "logits.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
