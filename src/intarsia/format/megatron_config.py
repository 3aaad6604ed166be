"""A model's configuration out of a Megatron checkpoint, and Megatron's arguments out of one.

Megatron's arguments do not name a model family, and some of them are defaults that the model
does not use.  So the family and every size are taken from the stored tensors, and only what no
shape tells (how many heads, the base of the rotation) from the arguments.  Where several hub
families would store the same tensors, nothing is guessed: the user gives `--config`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from intarsia.errors import FormatError
from intarsia.family import MAX_LAYERS
from intarsia.format.dcp_metadata import Metadata
from intarsia.format.megatron_common import whole
from intarsia.format.megatron_keys import Key
from intarsia.format.megatron_optimizer import state_of
from intarsia.mesh import Mesh, Shape

Config = dict[str, Any]

_ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "deepseek_v3": "DeepseekV3ForCausalLM",
}


class _Seen:
    """The shapes of a checkpoint's tensors, one layer's each, and the layers that have them."""

    def __init__(self, metadata: Metadata) -> None:
        self.shapes: dict[str, Shape] = {}
        self.layers: dict[str, set[int]] = {}
        for record in metadata.tensors.values():
            if state_of(record.name) is not None:
                continue
            key = Key.parse(record.name)
            if key.layer is not None:
                self.layers.setdefault(key.rest, set()).add(key.layer)
            elif key.stacked:
                if not record.shape or record.shape[0] > MAX_LAYERS:
                    raise FormatError(
                        f"`{record.name}` {list(record.shape)} stacks more layers than the"
                        f" {MAX_LAYERS:,} that any model has, or none"
                    )
                self.layers.setdefault(key.rest, set()).update(range(record.shape[0]))
            self.shapes.setdefault(key.rest, record.shape[1:] if key.stacked else record.shape)

    def has(self, *words: str) -> bool:
        return any(word in rest for rest in self.shapes for word in words)

    def shape(self, ending: str) -> Shape:
        return next((s for rest, s in self.shapes.items() if rest.endswith(ending)), ())

    def layers_with(self, word: str) -> set[int]:
        return {n for rest, layers in self.layers.items() if word in rest for n in layers}


def config_from_arguments(
    args: Mapping[str, Any], metadata: Metadata, notes: list[str]
) -> Config | None:
    """A hub configuration of the stored model, with a note; None where it cannot be told."""
    try:
        return _config(args, metadata, notes)
    except (ArithmeticError, LookupError, StopIteration, ValueError) as error:
        raise FormatError(
            "the shapes of the stored tensors are those of no model that Megatron saves"
            f" ({type(error).__name__}: {error})",
            hint="give the model's config.json with --config",
        ) from error


def _config(args: Mapping[str, Any], metadata: Metadata, notes: list[str]) -> Config | None:
    seen, heads = _Seen(metadata), whole(args, "num_attention_heads")
    family = _family(seen)
    embedding, qkv = seen.shape("word_embeddings.weight"), seen.shape("linear_qkv.weight")
    if family is None or heads is None or not embedding or not seen.layers:
        return None
    vocab, hidden = embedding
    notes.append(
        f"config.json is made from Megatron's arguments: a {family} with {heads} heads; give"
        " --config to have the model's own"
    )
    padded = whole(args, "vocab_size") is None
    if padded:
        notes.append(
            f"the true size of the vocabulary is not stored: all {vocab:,} rows are taken, with"
            " padding if they have any; give --config to leave it out"
        )
    config: Config = {
        "architectures": [_ARCHITECTURES[family]],
        "model_type": family,
        "num_hidden_layers": 1 + max(n for layers in seen.layers.values() for n in layers),
        "hidden_size": hidden,
        "vocab_size": vocab if padded else min(args["vocab_size"], vocab),
        "num_attention_heads": heads,
        "hidden_act": "silu",
        "rms_norm_eps": _number(args, "norm_epsilon", "layernorm_epsilon") or 1e-5,
        "rope_theta": _number(args, "rotary_base") or 10000,
        "max_position_embeddings": whole(args, "max_position_embeddings") or 4096,
        "tie_word_embeddings": not seen.has("output_layer.weight"),
        "attention_bias": False,
        "dtype": next(t.dtype.torch for t in metadata.tensors.values() if t.dtype.floating),
    }
    if family == "deepseek_v3":
        _latent(config, seen, args)
    else:
        width = (seen.shape("q_layernorm.weight") or (whole(args, "kv_channels"),))[0]
        width = width or hidden // heads
        config["head_dim"] = width
        config["num_key_value_heads"] = (qkv[0] // width - heads) // 2
    dense = seen.shapes.get("mlp.linear_fc1.weight")
    if dense:
        config["intermediate_size"] = dense[0] // 2
    if seen.has("mlp.router.weight"):
        _sparse(config, seen, args, family)
    return config


def _number(args: Mapping[str, Any], *names: str) -> int | float | None:
    """The first of these arguments that is a number."""
    return next((args[n] for n in names if type(args.get(n)) in (int, float)), None)


def _family(seen: _Seen) -> str | None:
    """The hub family that stores such tensors, where there is but one."""
    sparse = seen.has("mlp.router.weight")
    if seen.has("in_proj.", "post_layernorm", "softmax_offset", "linear_proj.bias", "mtp."):
        return None
    if seen.has("linear_kv_down_proj"):
        return "deepseek_v3" if sparse else None
    if seen.has("linear_qkv.bias"):
        return None if sparse else "qwen2"
    if seen.has("q_layernorm"):
        if sparse and seen.has("shared_experts", "expert_bias", "mlp.linear_fc1.weight"):
            return None
        return "qwen3_moe" if sparse else "qwen3"
    if sparse:
        return None if seen.has("shared_experts", "expert_bias") else "mixtral"
    return "llama"


def _latent(config: Config, seen: _Seen, args: Mapping[str, Any]) -> None:
    heads, down = config["num_attention_heads"], seen.shape("linear_kv_down_proj.weight")
    up = seen.shape("linear_kv_up_proj.weight")
    query = seen.shape("linear_q_up_proj.weight") or seen.shape("linear_q_proj.weight")
    rope = down[0] - up[1]
    nope = query[0] // heads - rope
    config |= {
        "num_key_value_heads": heads,
        "kv_lora_rank": up[1],
        "q_lora_rank": query[1] if seen.has("linear_q_up_proj") else None,
        "qk_rope_head_dim": rope,
        "qk_nope_head_dim": nope,
        "v_head_dim": up[0] // heads - nope,
        "num_nextn_predict_layers": 0,
    }


def _sparse(config: Config, seen: _Seen, args: Mapping[str, Any], family: str) -> None:
    count, inner, _ = seen.shape("experts.experts.linear_fc1.weight") or (0, 0, 0)
    inner //= 2
    config["num_experts_per_tok"] = whole(args, "moe_router_topk") or 2
    if family == "mixtral":
        config |= {"num_local_experts": count, "intermediate_size": inner}
        return
    config["moe_intermediate_size"] = inner
    config.setdefault("intermediate_size", whole(args, "ffn_hidden_size") or inner)
    if family == "qwen3_moe":
        config |= {"num_experts": count, "decoder_sparse_step": 1, "mlp_only_layers": []}
        config["norm_topk_prob"] = not args.get("moe_router_pre_softmax")
        return
    shared = seen.shape("shared_experts.linear_fc1.weight")
    config |= {
        "n_routed_experts": count,
        "n_shared_experts": shared[0] // (2 * inner) if shared else 0,
        "first_k_dense_replace": min(seen.layers_with("mlp.router."), default=0),
        "routed_scaling_factor": _number(args, "moe_router_topk_scaling_factor") or 1.0,
        "n_group": whole(args, "moe_router_num_groups") or 1,
        "topk_group": whole(args, "moe_router_group_topk") or 1,
        "norm_topk_prob": True,
    }


_NAMES = {
    "num_layers": ("num_hidden_layers",),
    "hidden_size": ("hidden_size",),
    "ffn_hidden_size": ("intermediate_size",),
    "num_attention_heads": ("num_attention_heads",),
    "num_query_groups": ("num_key_value_heads", "num_attention_heads"),
    "kv_channels": ("head_dim",),
    "max_position_embeddings": ("max_position_embeddings",),
    "norm_epsilon": ("rms_norm_eps",),
    "vocab_size": ("vocab_size",),
    "num_experts": ("num_experts", "num_local_experts", "n_routed_experts"),
    "moe_ffn_hidden_size": ("moe_intermediate_size",),
    "moe_router_topk": ("num_experts_per_tok",),
    "moe_shared_expert_intermediate_size": ("shared_expert_intermediate_size",),
    "q_lora_rank": ("q_lora_rank",),
    "kv_lora_rank": ("kv_lora_rank",),
    "qk_head_dim": ("qk_nope_head_dim",),
    "qk_pos_emb_head_dim": ("qk_rope_head_dim",),
    "v_head_dim": ("v_head_dim",),
    "linear_conv_kernel_dim": ("linear_conv_kernel_dim",),
    "linear_key_head_dim": ("linear_key_head_dim",),
    "linear_value_head_dim": ("linear_value_head_dim",),
    "linear_num_key_heads": ("linear_num_key_heads",),
    "linear_num_value_heads": ("linear_num_value_heads",),
}
"""Megatron's arguments, and the fields of a hub configuration that give them."""


def arguments_for(
    config: Mapping[str, Any], mesh: Mesh, shapes: Mapping[str, Shape], centered: bool
) -> dict[str, Any]:
    """Megatron's arguments for a model that is written, from its configuration and its tensors."""
    nested = config.get("text_config")
    text: Mapping[str, Any] = nested if isinstance(nested, Mapping) else config
    args: dict[str, Any] = {}
    for name, fields in _NAMES.items():
        value = next((text[f] for f in fields if text.get(f) is not None), None)
        if value is not None:
            args[name] = value
    heads, hidden = args.get("num_attention_heads"), args.get("hidden_size")
    if heads and hidden:
        args.setdefault("kv_channels", hidden // heads)
        args["group_query_attention"] = args.get("num_query_groups", heads) != heads
    rope = text.get("rope_parameters")
    rope = rope if isinstance(rope, Mapping) else {}
    embedding = next((s for n, s in shapes.items() if n.endswith("word_embeddings.weight")), None)
    ends = {name.rpartition("layers.")[2] for name in shapes}
    return args | {
        "rotary_base": text.get("rope_theta") or rope.get("rope_theta") or 10000,
        "rotary_percent": text.get("partial_rotary_factor") or 1.0,
        "padded_vocab_size": embedding[0] if embedding else args.get("vocab_size"),
        "position_embedding_type": "rope",
        "add_position_embedding": True,
        "normalization": "RMSNorm",
        "swiglu": True,
        "layernorm_zero_centered_gamma": centered,
        "add_qkv_bias": any(end.endswith("linear_qkv.bias") for end in ends),
        "add_bias_linear": any(end.endswith("linear_fc2.bias") for end in ends),
        "qk_layernorm": any("q_layernorm" in end for end in ends),
        "multi_latent_attention": "kv_lora_rank" in args,
        "untie_embeddings_and_output_weights": any("output_layer" in end for end in ends),
        "tensor_model_parallel_size": mesh.tp,
        "pipeline_model_parallel_size": mesh.pp,
        "expert_model_parallel_size": mesh.ep,
        "expert_tensor_parallel_size": mesh.etp,
        "context_parallel_size": mesh.cp,
        "world_size": mesh.size,
        "use_dist_ckpt": True,
        "ckpt_format": "torch_dist",
        "consumed_train_samples": 0,
        "consumed_valid_samples": 0,
    }
