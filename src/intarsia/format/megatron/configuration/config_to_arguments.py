"""What a configuration of the hub means in the words of Megatron-LM's arguments, and what those cannot say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isclose
from typing import Any

from intarsia.family.config.meaning import heeded_meaning_of
from intarsia.format.megatron.configuration.argument_facts import normed_by_megatron
from intarsia.format.megatron.configuration.argument_table import (
    ACTIVATION,
    BUILT_WITH,
    GROUPS,
    LATENT_NORMS,
    LATENT_YARN,
    NORMED,
    ROPE,
    ROWS,
    STRETCHED,
    UNPARSED_YARN,
    YARN,
)
from intarsia.format.megatron.configuration.layer_kinds import (
    LATENT,
    linear_layers,
    rotated_layers,
    sparse_layers,
    windowed_layers,
)

_SIGMOID = ("deepseek_v3", "glm4_moe", "glm4_moe_lite", "kimi_k2")
_LINEAR = ("qwen3_next", "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text")
_PARTLY_ROTATED = ("glm4_moe", "glm4_moe_lite", "phi3", *_LINEAR)
"""Families whose modules rotate a part of each head; others take no notice of the field."""

_OF_THREE_POSITIONS = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_5", "qwen3_5_text", "qwen3_5_moe",
                       "qwen3_5_moe_text")  # fmt: skip
"""Families that heed `mrope_section`."""

_INNER_IS_EXPERT = ("mixtral", "gpt_oss", "olmoe")
_SCALED_EMBEDDING = ("gemma", "gemma2", "gemma3", "gemma3_text")
_WIDTHS = {"gemma": 256, "gemma2": 256, "gemma3": 256, "gemma3_text": 256, "gpt_oss": 64,
           "qwen3": 128, "qwen3_next": 256, "qwen3_vl": 128} | dict.fromkeys(_LINEAR, 256)  # fmt: skip

_GROUP_SCORES = 2
"""Transformers ranks a group of experts by so many of its scores, Megatron by topk // group_topk."""

EPSILON_OF_LATENTS = 1e-6
"""What Transformers computes the norms inside latent attention with; Megatron has one epsilon for all norms."""

LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
"""What Megatron's `--use-rope-scaling` has built in, beside the factor."""


_SILU = ("silu", "swish")
"""Two names of one activation."""

_UNSAYABLE = {
    "attn_logit_softcapping": None, "clip_qkv": None,
    "embedding_multiplier": 1.0, "final_logit_softcapping": None, "logits_scaling": 1.0,
    "residual_multiplier": 1.0, "swiglu_alpha": 1.702, "use_bidirectional_attention": False, "is_causal": True,
}  # fmt: skip
"""Fields that no argument of Megatron-LM says, and the value at which they change nothing."""


@dataclass
class Said:
    """The arguments that say what a configuration means, and the fields that they cannot say."""

    args: dict[str, Any] = field(default_factory=dict)
    unsaid: dict[str, Any] = field(default_factory=dict)


def arguments_of_config(config: Mapping[str, Any]) -> Said:
    """What a configuration says, in the words of Megatron-LM's arguments."""
    said, text = Said(), heeded_meaning_of(config)
    family = str(config.get("model_type"))
    _sizes(said, text, family)
    _rotation(said, text, family)
    _attention(said, text, family)
    _activation(said, text, family)
    if text.get("num_experts"):
        _experts(said, text, family)
    for name, neutral in _UNSAYABLE.items():
        if text.get(name, neutral) != neutral:
            said.unsaid[name] = text[name]
    if family in _SCALED_EMBEDDING:
        said.unsaid["the embedding's scale"] = "sqrt(hidden_size)"
    if family in LATENT and text.get("rms_norm_eps") != EPSILON_OF_LATENTS:
        said.unsaid[LATENT_NORMS] = EPSILON_OF_LATENTS
    scalar, width = text.get("query_pre_attn_scalar"), said.args.get("kv_channels")
    if scalar is not None and scalar != width:
        said.unsaid["query_pre_attn_scalar"] = scalar
    scale = text.get("attention_multiplier", 1.0 if family == "granite" else None)
    as_usual = isinstance(scale, int | float) and width and isclose(scale, width**-0.5)
    if scale is not None and not as_usual:
        said.unsaid["attention_multiplier"] = scale
    return said


def _sizes(said: Said, text: Mapping[str, Any], family: str) -> None:
    args = said.args
    latent = family in LATENT
    for name in ("num_layers", "hidden_size", "num_attention_heads", "norm_epsilon"):
        _take(args, name, text, *ROWS[name].fields)
    _take(args, "layernorm_epsilon", text, "rms_norm_eps")
    _take(args, "max_position_embeddings", text, "max_position_embeddings")
    _take(args, "vocab_size", text, "vocab_size")
    _take(args, "num_query_groups", text, "num_key_value_heads")
    heads, hidden = args.get("num_attention_heads"), args.get("hidden_size")
    if latent:
        args["num_query_groups"] = heads
        args["multi_latent_attention"] = True
        args["q_lora_rank"] = text.get("q_lora_rank")
        for name in ("kv_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim"):
            _take(args, name, text, *ROWS[name].fields)
    elif heads and hidden:
        args["kv_channels"] = text.get("head_dim") or _WIDTHS.get(family) or hidden // heads
    args["group_query_attention"] = args.get("num_query_groups", heads) != heads
    if family not in _INNER_IS_EXPERT:
        _take(args, "ffn_hidden_size", text, "intermediate_size")
    if family in _LINEAR:
        args["experimental_attention_variant"] = "gated_delta_net"
        for name in ROWS:
            if name.startswith("linear_"):
                _take(args, name, text, name)
        args.setdefault("linear_conv_kernel_dim", 4)
        args["linear_attention_freq"] = linear_layers(text)
        args["attention_output_gate"] = True


def _take(args: dict[str, Any], name: str, text: Mapping[str, Any], *fields: str) -> None:
    value = next((text[f] for f in fields if text.get(f) is not None), None)
    if value is not None:
        args[name] = value


def _rotation(said: Said, text: Mapping[str, Any], family: str) -> None:
    args, rope = said.args, text["rope_parameters"]
    args["position_embedding_type"] = "rope"
    args["add_position_embedding"] = True
    if "full_attention" in rope:
        said.unsaid["rope_parameters.sliding_attention"] = rope.get("sliding_attention")
        rope = rope["full_attention"]
    _take(args, "rotary_base", rope, "rope_theta")
    partly = rope if family in _PARTLY_ROTATED else {}
    args["rotary_percent"] = percent = partly.get("partial_rotary_factor", 1.0)
    args["rotary_interleaved"] = family == "ernie4_5"
    if family in LATENT and text.get("rope_interleave", True) is False:
        said.unsaid["rope_interleave"] = False
    (_latent_scaling if family in LATENT else _scaling)(said, rope)
    yarn = args["position_embedding_type"] == "yarn"
    if (percent != 1.0 and (yarn or family in LATENT)) or (yarn and args["rotary_interleaved"]):
        # Megatron rotates whole heads there, none in pairs.
        said.unsaid[ROPE] = _rope_but_base(rope)
    if rope.get("llama_4_scaling_beta") and text["model_type"] == "ministral3":
        said.unsaid["llama_4_scaling_beta"] = rope["llama_4_scaling_beta"]
    if rope.get("mrope_section") and family in _OF_THREE_POSITIONS:
        args |= {"position_embedding_type": "mrope", "mrope_section": list(rope["mrope_section"])}
        if rope.get("mrope_interleaved"):
            said.unsaid["mrope_interleaved"] = True
    kept = rotated_layers(text, family)
    args["no_rope_freq"] = None if all(kept) else [int(not rotated) for rotated in kept]


def _scaling(said: Said, rope: Mapping[str, Any]) -> None:
    args, kind = said.args, rope.get("rope_type", "default")
    factor = rope.get("factor")
    if kind == "llama3" and all(rope.get(k, v) == v for k, v in LLAMA3.items()):
        args |= {"use_rope_scaling": True, "rope_scaling_factor": factor}
        if factor != BUILT_WITH:
            said.unsaid[ROPE] = _rope_but_base(rope)
    elif kind == "linear" and (
        isinstance(factor, int) or (isinstance(factor, float) and factor.is_integer())
    ):
        args[STRETCHED] = int(factor)
        said.unsaid[ROPE] = _rope_but_base(rope)
    elif kind == "yarn" and rope.get("attention_factor") is None:
        args["position_embedding_type"] = "yarn"
        # Transformers uses both mscales or neither of them.
        both = rope.get("mscale") and rope.get("mscale_all_dim")
        used = rope if both else {k: v for k, v in rope.items() if not k.startswith("mscale")}
        args |= {f"yarn_{name}": used.get(f, unsaid) for f, (name, unsaid) in YARN.items()}
    elif kind != "default":
        said.unsaid[ROPE] = _rope_but_base(rope)


def _rope_but_base(rope: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in sorted(rope.items()) if k != "rope_theta"}


def _latent_scaling(said: Said, rope: Mapping[str, Any]) -> None:
    args, kind = said.args, rope.get("rope_type", "default")
    if kind == "default":
        args["rope_type"] = "rope"
    elif kind == "yarn" and _latent_yarn_is_said(rope):
        args |= {"rope_type": "yarn", "rotary_scaling_factor": rope.get("factor")}
        args |= {name: rope.get(name, unsaid) for name, unsaid in LATENT_YARN.items()}
        args["original_max_position_embeddings"] = rope.get("original_max_position_embeddings")
        if any(args[name] != LATENT_YARN[name] for name in UNPARSED_YARN):
            said.unsaid[ROPE] = _rope_but_base(rope)
    else:
        said.unsaid[ROPE] = dict(sorted(rope.items()))


def _latent_yarn_is_said(rope: Mapping[str, Any]) -> bool:
    """Whether Megatron scales as Transformers does, which uses both mscales or neither of them."""
    one, all_dim = rope.get("mscale"), rope.get("mscale_all_dim")
    plain = rope.get("attention_factor") is None and rope.get("truncate", True) is True
    return plain and bool((one and all_dim) or (one in (None, 1) and not all_dim))


def _attention(said: Said, text: Mapping[str, Any], family: str) -> None:
    args = said.args
    args["softmax_type"] = "learnable" if family == "gpt_oss" else "vanilla"
    window, layers = text.get("sliding_window"), windowed_layers(text, family)
    args["window_size"] = None
    if window and any(layers):
        args["window_size"] = (window - 1, 0)
        args["window_attn_skip_freq"] = None if all(layers) else [int(x) for x in layers]


def _activation(said: Said, text: Mapping[str, Any], family: str) -> None:
    args, kind = said.args, text.get("hidden_act")
    args |= {"normalization": "RMSNorm", "swiglu": kind in _SILU and family != "gpt_oss"}
    if family == "gpt_oss":
        args |= {"quick_geglu": True, "glu_linear_offset": 1.0}
        args["activation_func_clamp_value"] = text.get("swiglu_limit")
    elif kind not in _SILU:
        said.unsaid[ACTIVATION] = kind


def _experts(said: Said, text: Mapping[str, Any], family: str) -> None:
    args, sigmoid = said.args, family in _SIGMOID
    inner = "intermediate_size" if family in _INNER_IS_EXPERT else "moe_intermediate_size"
    _take(args, "num_experts", text, "num_experts")
    _take(args, "moe_ffn_hidden_size", text, inner)
    _take(args, "moe_router_topk", text, "num_experts_per_tok")
    if family in _INNER_IS_EXPERT:
        _take(args, "ffn_hidden_size", text, inner)
    args["moe_router_score_function"] = "sigmoid" if sigmoid else "softmax"
    args["moe_router_enable_expert_bias"] = sigmoid
    normed = text.get(NORMED, True)
    args["moe_router_pre_softmax"] = not normed and not sigmoid
    by_megatron = normed_by_megatron(args.get("moe_router_topk", ROWS["moe_router_topk"].default))
    if normed != by_megatron and (sigmoid or normed):  # it has no softmax over a single expert
        said.unsaid[NORMED] = normed
    scale = text.get("routed_scaling_factor")
    routed = family.startswith(("deepseek", "glm4_moe", "kimi"))
    args["moe_router_topk_scaling_factor"] = scale if routed else None
    groups = (text.get("n_group") or 1) if routed and family != "deepseek_v2" else 1
    args["moe_router_num_groups"] = groups if groups > 1 else None
    args["moe_router_group_topk"] = limit = text.get("topk_group") if groups > 1 else None
    if limit and limit < groups and text.get("num_experts_per_tok", 0) // limit != _GROUP_SCORES:
        said.unsaid[GROUPS] = groups
    if family == "deepseek_v2" and text.get("topk_method", "greedy") != "greedy":
        said.unsaid["topk_method"] = text["topk_method"]
    shared = text.get("shared_expert_intermediate_size")
    if shared is None and text.get("n_shared_experts"):
        shared = text["n_shared_experts"] * args.get("moe_ffn_hidden_size", 0)
    if shared:
        args["moe_shared_expert_intermediate_size"] = shared
        args["moe_shared_expert_gate"] = family.startswith("qwen")
    args["moe_layer_freq"] = sparse_layers(text, family)
