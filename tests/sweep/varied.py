"""Random variants of a tiny configuration: what a user may set, whether or not a hub model does.

Which fields go together no name tells, so a variant is tried, and taken where Transformers builds a model of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from random import Random
from typing import Any

TRIES = 12

_FIXED = re.compile(
    r"model_type|use_cache|output_.*|return_dict|is_decoder|is_encoder_decoder|add_cross_attention|torchscript|"
    r".*use_.*kernels?|chunk_size.*|.*gradient_checkpointing|transformers_weights|.*token_id.*|.*_index|.*dropout.*"
)
_SIZES: tuple[tuple[str, tuple[Any, ...]], ...] = (
    (r"(vocab_size)", (128, 131, 150)),
    (r"num_hidden_layers|n_layers?|num_layers", (1, 2, 3, 4)),
    (r"num_key_value_heads|num_kv_heads|multi_query_group_num", (1, 2, 4)),
    (r"num_attention_heads|n_head", (2, 4, 8)),
    (r"head_dim|v_head_dim", (8, 16, 32)),
    (r".*intermediate_size|ffn_dim|ffn_hidden_size", (40, 64, 96, 130)),
    (r"hidden_size|d_model|n_embd", (32, 64, 96)),
    (r"(num|n)_(local_|routed_)?experts", (2, 3, 4, 6)),
    (r"n_shared_experts|num_shared_experts", (0, 1, 2)),
    (r"first_k_dense_replace|num_dense_layers|moe_layer_start_index", (0, 1, 2)),
    (r"decoder_sparse_step|moe_layer_freq|moe_layer_interval|interleave_moe_layer_step", (1, 2)),
    (r"q_lora_rank", (None, 16, 24)),
    (r"kv_lora_rank", (16, 24)),
    (r"num_nextn_predict_layers", (0, 1, 2)),
    (r"partial_rotary_factor|rotary_pct", (0.5, 1.0)),
)  # fmt: skip
_COMPILED = tuple((re.compile(pattern), values) for pattern, values in _SIZES)


def variants(config: Mapping[str, Any], random: Random) -> Iterator[dict[str, Any]]:
    """Variants in the order in which they are to be tried, from many changes to few."""
    for tries in range(TRIES):
        yield _varied(config, random, 0.5 * (1 - tries / TRIES))


def _varied(config: Mapping[str, Any], random: Random, share: float) -> dict[str, Any]:
    """A configuration of which so large a share of the fields has another value."""
    out: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, Mapping) and name.endswith("_config"):
            out[name] = _varied(value, random, share)
        elif _FIXED.fullmatch(name) or random.random() > share:
            out[name] = value
        elif isinstance(value, bool):
            out[name] = not value
        elif isinstance(value, list) and value and all(isinstance(x, str) for x in value):
            out[name] = random.choices(value, k=len(value))
        else:
            sizes = next((each for pattern, each in _COMPILED if pattern.fullmatch(name)), (value,))
            out[name] = random.choice(sizes)
    return out
