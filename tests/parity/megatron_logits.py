"""The logits of a `torch_dist` checkpoint in a real Megatron-core model; run once per rank.

RANK=0 WORLD_SIZE=2 ... python -m tests.parity.megatron_logits CHECKPOINT CONFIG IDS OUT tp pp ep
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.parity.megatron_on_cpu import pretend

pretend()

from megatron.core import dist_checkpointing, parallel_state
from megatron.core.dist_checkpointing.validation import StrictHandling
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from megatron.core.transformer.moe import moe_utils
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_config import TransformerConfig

# Megatron-core 0.16 leaves the name undefined where TransformerEngine is not installed.
vars(moe_utils).setdefault("te_general_gemm", None)


def build(
    hf: dict[str, Any],
    vocab: int,
    tp: int,
    pp: int,
    ep: int,
    dtype: torch.dtype = torch.float32,
    stage: int | None = None,
    attention: ModuleSpec | None = None,
    **changes: Any,
) -> GPTModel:
    """A model of the shape that a hub configuration gives, with Megatron's own layers.

    `stage` is its number in a virtual pipeline, `attention` its layers' own, where it is not the usual
    one; `changes` are settings of `TransformerConfig`.
    """
    config, spec = described(hf, tp, pp, ep, dtype, **changes)
    if attention is not None:
        spec.submodules.self_attention = attention
    return GPTModel(
        config,
        spec,
        vocab_size=vocab,
        pre_process=parallel_state.is_pipeline_first_stage(ignore_virtual=False, vp_stage=stage),
        post_process=parallel_state.is_pipeline_last_stage(ignore_virtual=False, vp_stage=stage),
        vp_stage=stage,
        **around_layers(hf),
    ).eval()


def around_layers(hf: dict[str, Any]) -> dict[str, Any]:
    """The settings of a model that its layers do not have."""
    return {
        "max_sequence_length": 64,
        "position_embedding_type": "rope",
        "rotary_base": int(hf["rope_parameters"]["rope_theta"]),
        "share_embeddings_and_output_weights": hf["tie_word_embeddings"],
        "parallel_output": False,
    }


def described(
    hf: dict[str, Any], tp: int, pp: int, ep: int, dtype: torch.dtype, **changes: Any
) -> tuple[TransformerConfig, ModuleSpec]:
    """Megatron's configuration, and its own layers, of the shape that a hub configuration gives."""
    experts = hf.get("num_experts") or hf.get("num_local_experts")
    sparse = {
        "num_moe_experts": experts,
        "moe_ffn_hidden_size": hf.get("moe_intermediate_size"),
        "moe_router_topk": hf.get("num_experts_per_tok"),
        "moe_token_dispatcher_type": "allgather",
        "moe_aux_loss_coeff": 0.0,
        "moe_router_load_balancing_type": "none",
        "expert_model_parallel_size": ep,
        "expert_tensor_parallel_size": 1,
    }
    usual = {
        "num_layers": hf["num_hidden_layers"],
        "hidden_size": hf["hidden_size"],
        "num_attention_heads": hf["num_attention_heads"],
        "num_query_groups": hf["num_key_value_heads"],
        "kv_channels": hf["head_dim"],
        "ffn_hidden_size": hf["intermediate_size"],
        "normalization": "RMSNorm",
        "layernorm_epsilon": hf["rms_norm_eps"],
        "qk_layernorm": hf["model_type"].startswith("qwen3"),
        "gated_linear_unit": True,
        "activation_func": torch.nn.functional.silu,
        "add_bias_linear": False,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
        "tensor_model_parallel_size": tp,
        "pipeline_model_parallel_size": pp,
        "pipeline_dtype": dtype,
        "params_dtype": dtype,
        "bf16": dtype == torch.bfloat16,
        "use_cpu_initialization": True,
        "masked_softmax_fusion": False,
        "bias_activation_fusion": False,
        "bias_dropout_fusion": False,
        "apply_rope_fusion": False,
        "gradient_accumulation_fusion": False,
        "persist_layer_norm": False,
    }
    config = TransformerConfig(**usual | (sparse if experts else {}) | changes)
    spec = get_gpt_layer_local_spec(
        num_experts=experts, qk_layernorm=config.qk_layernorm, normalization=config.normalization
    )
    return config, spec


def load(model: GPTModel, checkpoint: str) -> None:
    """Fill the model, and insist that both have the same tensors."""
    wanted = {"model": model.sharded_state_dict()}
    loaded, unasked, absent = dist_checkpointing.load(
        wanted, checkpoint, strict=StrictHandling.RETURN_ALL
    )
    unasked = {key for key in unasked if not key.endswith(("_extra_state", "common_state"))}
    assert not absent, f"the checkpoint lacks {sorted(absent)[:5]}"
    assert not unasked, f"the model has no {sorted(unasked)[:5]}"
    assert loaded["checkpoint_version"] == 3.0
    assert loaded["args"].num_layers == model.config.num_layers
    model.load_state_dict(loaded["model"])


def logits(model: GPTModel, ids: torch.Tensor, pp: int) -> torch.Tensor | None:
    """The logits, on the last pipeline stage."""
    positions = torch.arange(ids.shape[1]).expand_as(ids)
    mask = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).triu(1)[None, None]
    rank = parallel_state.get_pipeline_model_parallel_rank()
    if rank:
        received = torch.empty(ids.shape[1], ids.shape[0], model.config.hidden_size)
        dist.recv(received, parallel_state.get_pipeline_model_parallel_prev_rank())
        model.set_input_tensor(received)
    with torch.no_grad():
        out = model(ids, positions, mask)
    if rank < pp - 1:
        dist.send(out.contiguous(), parallel_state.get_pipeline_model_parallel_next_rank())
        return None
    return out


def meet() -> None:
    """Join the other ranks at the file that all were told: a port that was free may be taken meanwhile."""
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    where = f"file://{os.environ['MEETING_FILE']}"
    dist.init_process_group("gloo", init_method=where, rank=rank, world_size=ranks)


def main(checkpoint: str, config: str, ids: str, out: str, *sizes: str) -> None:
    tp, pp, ep = map(int, sizes)
    meet()
    parallel_state.initialize_model_parallel(
        tp, pp, expert_model_parallel_size=ep, expert_tensor_parallel_size=1
    )
    model_parallel_cuda_manual_seed(1)
    hf = json.loads(Path(config).read_text())
    vocab = dist_checkpointing.load_common_state_dict(checkpoint)["args"].padded_vocab_size
    model = build(hf, vocab, tp, pp, ep)
    load(model, checkpoint)
    found = logits(model, torch.load(ids), pp)
    if found is not None and dist.get_rank() == dist.get_world_size() - 1:
        torch.save(found[..., : hf["vocab_size"]], out)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
