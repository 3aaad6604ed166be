"""The fields of a configuration that Transformers heeds, by the `model_type` of the text model.

A configuration may hold any field, of another family or of older code, and Transformers passes over what a
model's own files do not read.  A test holds the table against those files.
"""

from __future__ import annotations

from intarsia.family.config.fields import Config, text_config

ALWAYS = frozenset(
    (
        "head_dim", "hidden_act", "hidden_size", "intermediate_size", "is_causal", "max_position_embeddings",
        "num_attention_heads", "num_hidden_layers", "num_key_value_heads", "rms_norm_eps", "rope_parameters",
        "tie_word_embeddings", "vocab_size",
    )
)  # fmt: skip
"""What the files of nearly every family read, or the code that they share."""

_BIAS = ("attention_bias",)
_BIASES = (*_BIAS, "mlp_bias")
_WINDOW = ("layer_types", "sliding_window")
_CHOSEN_WINDOW = ("max_window_layers", "use_sliding_window", *_WINDOW)
_SPARSE = ("num_experts", "num_experts_per_tok")
_EXPERTS = ("moe_intermediate_size", "norm_topk_prob", *_SPARSE)
_SOME_LAYERS = ("decoder_sparse_step", "mlp_only_layers")
_GATED_DELTA = (
    *_BIAS, "full_attention_interval", "layer_types", "linear_conv_kernel_dim", "linear_key_head_dim",
    "linear_num_key_heads", "linear_num_value_heads", "linear_value_head_dim",
)  # fmt: skip
_LATENT = ("kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
_ROUTED = (
    *_BIAS, *_SPARSE, "moe_intermediate_size", "n_group", "n_shared_experts", "routed_scaling_factor", "topk_group",
)  # fmt: skip
_DEEPSEEK = (*_LATENT, *_ROUTED, "first_k_dense_replace", "norm_topk_prob", "rope_interleave")
_CAPPED = (
    *_BIAS, *_WINDOW, "attn_logit_softcapping", "final_logit_softcapping", "query_pre_attn_scalar",
    "use_bidirectional_attention",
)  # fmt: skip
_SHARED = "shared_expert_intermediate_size"

_BY_TYPE: dict[str, tuple[str, ...]] = {
    "cwm": ("mlp_bias", *_WINDOW),
    "deepseek_v2": (*_LATENT, *_ROUTED, "first_k_dense_replace", "mlp_bias", "topk_method"),
    "deepseek_v3": _DEEPSEEK,
    "ernie4_5": ("use_bias",),
    "gemma": (*_BIAS, "use_bidirectional_attention"),
    "gemma2": _CAPPED,
    "gemma3_text": (*_CAPPED, "sliding_window_pattern"),
    "glm4_moe": (*_ROUTED, "first_k_dense_replace", "norm_topk_prob", "use_qk_norm"),
    "glm4_moe_lite": (*_LATENT, *_ROUTED, "mlp_layer_types", "norm_topk_prob", "rope_interleave"),
    "gpt_oss": (*_BIAS, *_SPARSE, *_WINDOW, "swiglu_alpha", "swiglu_limit"),
    "granite": (
        *_BIASES, "attention_multiplier", "embedding_multiplier", "logits_scaling", "residual_multiplier",
    ),
    "kimi_k2": _DEEPSEEK,
    "llama": _BIASES,
    "ministral": _WINDOW,
    "ministral3": ("sliding_window",),
    "mistral": ("sliding_window",),
    "mixtral": (*_SPARSE, "sliding_window"),
    "olmoe": (*_BIAS, *_SPARSE, "clip_qkv", "norm_topk_prob", "sliding_window"),
    "phi3": ("original_max_position_embeddings", "sliding_window"),
    "qwen2": _CHOSEN_WINDOW,
    "qwen2_5_vl_text": _CHOSEN_WINDOW,
    "qwen2_moe": (*_CHOSEN_WINDOW, *_EXPERTS, *_SOME_LAYERS, "qkv_bias", _SHARED),
    "qwen2_vl_text": _CHOSEN_WINDOW,
    "qwen3": (*_BIAS, *_CHOSEN_WINDOW),
    "qwen3_5_moe_text": (*_GATED_DELTA, *_SPARSE, "moe_intermediate_size", _SHARED),
    "qwen3_5_text": _GATED_DELTA,
    "qwen3_moe": (*_BIAS, *_EXPERTS, *_SOME_LAYERS, "sliding_window", "use_sliding_window"),
    "qwen3_next": (*_GATED_DELTA, *_EXPERTS, *_SOME_LAYERS, _SHARED),
    "qwen3_vl_text": _BIAS,
    "seed_oss": (*_BIASES, "attention_out_bias"),
    "smollm3": (
        *_BIASES, *_WINDOW, "no_rope_layer_interval", "no_rope_layers", "use_sliding_window",
    ),
}  # fmt: skip


PASSED_OVER = dict.fromkeys(("gemma2", "gemma3_text"), "hidden_act")
"""The one of two names of the activation that a type does not read; the others do not read `hidden_activation`."""


def text_type(config: Config) -> str:
    """The `model_type` of the text model, as `AutoConfig` makes it.

    A wrapper's own, where its text has none, is that of its usual text; a Mistral with `layer_types` is a Ministral.
    """
    own = text_config(config).get("model_type", config.get("model_type"))
    if own == "mistral" and "layer_types" in config:
        return "ministral"
    if own in _BY_TYPE or not isinstance(own, str):
        return str(own)
    return {"mistral3": "mistral"}.get(own, f"{own}_text")


def heeded_fields(model_type: str) -> frozenset[str] | None:
    """The fields that Transformers heeds in a text model of this type; None where that is not known."""
    known = _BY_TYPE.get(model_type)
    return None if known is None else ALWAYS.union(known)
