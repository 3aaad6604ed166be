"""The sizes that a hub configuration may leave out, as Transformers takes them then, by `model_type`.

A configuration that somebody cut down to what differs is as good as the whole one.  Width, depth,
heads, experts and vocabulary are what a configuration is for: those it has to give.  Tests hold each number
against the classes of the installed Transformers.
"""

from __future__ import annotations

from collections.abc import Mapping

_LATENT = {
    "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128,
    "v_head_dim": 128,
}  # fmt: skip
_GATED_DELTA = {
    "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_key_head_dim": 128,
    "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4,
}  # fmt: skip

_BY_TYPE: dict[str, dict[str, int]] = {
    "cwm": {"num_key_value_heads": 8, "head_dim": 128},
    "deepseek_v2": _LATENT | {
        "first_k_dense_replace": 0, "moe_intermediate_size": 1407,
        "n_shared_experts": 2,
    },
    "deepseek_v3": _LATENT | {
        "first_k_dense_replace": 3, "moe_intermediate_size": 2048,
        "n_shared_experts": 1,
    },
    "ernie4_5": {"num_key_value_heads": 2, "head_dim": 128},
    "gemma": {"num_key_value_heads": 16, "head_dim": 256},
    "gemma2": {"num_key_value_heads": 4, "head_dim": 256},
    "gemma3_text": {"num_key_value_heads": 4, "head_dim": 256},
    "glm4_moe": {
        "num_key_value_heads": 8, "first_k_dense_replace": 1, "moe_intermediate_size": 1408,
        "n_shared_experts": 1,
    },
    "glm4_moe_lite": _LATENT | {
        "first_k_dense_replace": 1, "moe_intermediate_size": 1536, "n_shared_experts": 1,
        "q_lora_rank": 768, "qk_nope_head_dim": 192, "v_head_dim": 256,
    },
    "gpt_oss": {"num_key_value_heads": 8, "head_dim": 64},
    "ministral": {"num_key_value_heads": 8},
    "ministral3": {"num_key_value_heads": 8, "head_dim": 128},
    "mistral": {"num_key_value_heads": 8},
    "mixtral": {"num_key_value_heads": 8},
    "qwen2": {"num_key_value_heads": 32},
    "qwen2_moe": {
        "num_key_value_heads": 16, "moe_intermediate_size": 1408,
        "shared_expert_intermediate_size": 5632,
    },
    "qwen2_vl": {"num_key_value_heads": 8},
    "qwen3": {"num_key_value_heads": 32, "head_dim": 128},
    "qwen3_5_moe_text": _GATED_DELTA | {
        "num_key_value_heads": 2, "head_dim": 256, "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
    },
    "qwen3_5_text": _GATED_DELTA | {"num_key_value_heads": 4, "head_dim": 256},
    "qwen3_moe": {"num_key_value_heads": 4, "moe_intermediate_size": 768},
    "qwen3_next": _GATED_DELTA | {
        "num_key_value_heads": 2, "head_dim": 256, "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
    },
    "seed_oss": {"num_key_value_heads": 8, "head_dim": 128},
    "smollm3": {"num_key_value_heads": 4},
}  # fmt: skip
_LIKE = {
    "gemma3": "gemma3_text",
    "mistral3": "mistral",
    "qwen2_5_vl": "qwen2_vl",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
    "qwen3_vl": "qwen3",
}


def layout_defaults_of(*model_types: object) -> Mapping[str, int]:
    """The sizes of the first known of these types, each for a field that a configuration may leave out."""
    for each in model_types:
        name = _LIKE.get(each, each) if isinstance(each, str) else ""
        if name in _BY_TYPE:
            return _BY_TYPE[name]
    return {}
