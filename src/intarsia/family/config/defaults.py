"""What a hub configuration means where it says nothing: Transformers' defaults, by `model_type`.

Only fields that change what a model computes are kept; tests hold them against the installed
Transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def _rope(theta: float, **more: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": "default", "rope_theta": theta} | more}


_ALL = {"hidden_act": "silu", "rms_norm_eps": 1e-6, **_rope(10000.0)}
_FIFTH = {"rms_norm_eps": 1e-5}
_GELU = {"hidden_act": "gelu_pytorch_tanh"}
_QUARTER = _rope(10000.0, partial_rotary_factor=0.25)
_GEMMA3 = _GELU | {
    "sliding_window": 4096,
    "query_pre_attn_scalar": 256,
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        "full_attention": {"rope_type": "default", "rope_theta": 1000000.0},
    },
}
_ROUTED = {
    "norm_topk_prob": True, "routed_scaling_factor": 1.0, "n_group": 1, "topk_group": 1,
    "num_experts_per_tok": 8,
}  # fmt: skip
_LATENT = _ROUTED | {
    "routed_scaling_factor": 2.5, "n_group": 8, "topk_group": 4, "rope_interleave": True,
}  # fmt: skip
_WINDOW_BY_CHOICE = {"use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 28}
_YARN = {"rope_type": "yarn", "beta_fast": 32.0, "beta_slow": 1.0}

_BY_TYPE: dict[str, dict[str, Any]] = {
    **{each: {} for each in ("granite", "llama", "seed_oss")},
    **dict.fromkeys(("qwen2", "qwen3"), _WINDOW_BY_CHOICE),
    "cwm": _FIFTH | {"sliding_window": 8192} | _rope(
        1000000.0, rope_type="llama3", factor=16.0, high_freq_factor=4.0, low_freq_factor=1.0,
        original_max_position_embeddings=8192,
    ),
    "deepseek_v2": {"norm_topk_prob": False, "routed_scaling_factor": 1.0},
    "deepseek_v3": _LATENT,
    "ernie4_5": _FIFTH | _rope(500000.0),
    "gemma": _GELU,
    "gemma2": _GELU | {
        "sliding_window": 4096, "query_pre_attn_scalar": 256,
        "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0,
    },
    "gemma3": _GEMMA3,
    "gemma3_text": _GEMMA3,
    "glm4_moe": _FIFTH | _ROUTED | _rope(10000.0, partial_rotary_factor=0.5),
    "glm4_moe_lite": _FIFTH | _ROUTED | {
        "routed_scaling_factor": 1.8, "num_experts_per_tok": 4, "rope_interleave": True,
    },
    "gpt_oss": _FIFTH | {
        "sliding_window": 128, "swiglu_limit": 7.0, "num_experts_per_tok": 4,
    } | _rope(
        150000.0, **_YARN, factor=32.0, truncate=False, original_max_position_embeddings=4096
    ),
    "kimi_k2": _LATENT,
    "ministral": {"sliding_window": 4096},
    "ministral3": _FIFTH | _rope(
        1000000.0, **_YARN, factor=16.0, original_max_position_embeddings=16384,
        max_position_embeddings=262144, mscale=1.0, mscale_all_dim=1.0, llama_4_scaling_beta=0.1,
    ),
    "mistral": {"sliding_window": 4096},
    "mistral3": _FIFTH | _rope(1000000000.0),
    "mixtral": _FIFTH | _rope(1000000.0) | {"num_experts_per_tok": 2},
    "olmoe": _FIFTH | {"norm_topk_prob": False, "num_experts_per_tok": 8},
    "phi3": _FIFTH | _rope(10000.0, partial_rotary_factor=1.0),
    "qwen2_5_vl": _FIFTH | _WINDOW_BY_CHOICE | {"max_window_layers": 80} | _rope(1000000.0),
    "qwen2_moe": _WINDOW_BY_CHOICE | {"norm_topk_prob": False, "num_experts_per_tok": 4},
    "qwen2_vl": _FIFTH | _WINDOW_BY_CHOICE | {"max_window_layers": 80} | _rope(1000000.0),
    "qwen3_5": _QUARTER,
    "qwen3_5_moe": _QUARTER | {"num_experts_per_tok": 8},
    "qwen3_5_moe_text": _QUARTER | {"num_experts_per_tok": 8},
    "qwen3_5_text": _QUARTER,
    "qwen3_moe": {
        "norm_topk_prob": False, "num_experts_per_tok": 8, "use_sliding_window": False, "sliding_window": 4096,
    },
    "qwen3_next": _QUARTER | {"norm_topk_prob": True, "num_experts_per_tok": 10},
    "qwen3_vl": _rope(500000.0),
    "smollm3": _rope(2000000.0) | {"use_sliding_window": False},
}  # fmt: skip


BASES = {"ministral3": 10000.0}
"""The base of a rotation that is given without one, where it is not that of the rotation that nothing gives."""


def defaults_of(model_type: object) -> Mapping[str, Any]:
    """The fields that a configuration of this `model_type` need not give; none where it is unknown."""
    known = isinstance(model_type, str) and model_type in _BY_TYPE
    return _ALL | _BY_TYPE[str(model_type)] if known else {}
