"""Megatron-LM's arguments and the fields of a hub configuration that give them: one table, read both ways."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from intarsia.frozen import frozen

Arguments = Mapping[str, Any]


UNSAID = "only_in_config_json"
"""Our word among the arguments for what they cannot say: a configuration made from them is not the model's."""


CENTERED = ("layernorm_zero_centered_gamma", "apply_layernorm_1p")
"""The argument by which norms hold weight − 1, and its name in Megatron-LM up to 0.15; later ones use the first alone."""


STRETCHED = "rotary_seq_len_interpolation_factor"
"""An argument that Megatron-LM up to 0.18 has and builds its model without: whether it holds is in doubt."""


BUILT_WITH = 8.0
"""The factor with which Megatron-LM's scripts build a model for `--use-rope-scaling`, whatever `--rope-scaling-factor` says."""


LATENT_NORMS = "the epsilon of the norms of latents"

ROPE, ACTIVATION, GROUPS, NORMED = "rope_parameters", "hidden_act", "n_group", "norm_topk_prob"


@frozen
class ArgumentRow:
    """An argument of Megatron-LM and the fields that give it; `default` is its parser's."""

    argument: str
    fields: tuple[str, ...]
    default: Any = None
    spellings: tuple[str, ...] = ()


_ROWS = (
    ArgumentRow("num_layers", ("num_hidden_layers",)),
    ArgumentRow("hidden_size", ("hidden_size",)),
    ArgumentRow("num_attention_heads", ("num_attention_heads",)),
    ArgumentRow("num_query_groups", ("num_key_value_heads",)),
    ArgumentRow("kv_channels", ("head_dim",)),
    ArgumentRow("ffn_hidden_size", ("intermediate_size",)),
    ArgumentRow("norm_epsilon", ("rms_norm_eps",), 1e-5, ("layernorm_epsilon",)),
    ArgumentRow("rotary_base", ("rope_parameters.rope_theta",), 10000),
    ArgumentRow("rotary_percent", ("rope_parameters.partial_rotary_factor",), 1.0),
    ArgumentRow("rotary_interleaved", ("model_type",), False),
    ArgumentRow("rope_scaling", ("rope_parameters",), ("default",)),
    ArgumentRow("no_rope_layers", ("no_rope_layers",), ()),
    ArgumentRow("window", ("sliding_window", "layer_types"), None),
    ArgumentRow("activation", ("hidden_act",), "gelu"),
    ArgumentRow("activation_func_clamp_value", ("swiglu_limit",), None),
    ArgumentRow("glu_linear_offset", ("model_type",), 0.0),
    ArgumentRow("softmax_type", ("model_type",), "vanilla"),
    ArgumentRow("softmax_scale", ("query_pre_attn_scalar", "attention_multiplier"), None),
    ArgumentRow("attention_output_gate", ("model_type",), False),
    ArgumentRow("qk_l2_norm", ("model_type",), False),
    ArgumentRow("moe_apply_probs_on_input", ("model_type",), False),
    ArgumentRow("apply_residual_connection_post_layernorm", ("model_type",), False),
    ArgumentRow("use_mup", ("model_type",), False),
    ArgumentRow("moe_mlp_glu_interleave_size", ("model_type",), None),
    ArgumentRow("moe_shared_expert_glu_interleave_size", ("model_type",), None),
    ArgumentRow("moe_router_topk_limited_devices", ("model_type",), None),
    ArgumentRow("moe_router_load_balancing_type", ("model_type",), None),
    ArgumentRow("num_experts", ("num_experts",), None, ("num_moe_experts",)),
    ArgumentRow("moe_ffn_hidden_size", ("moe_intermediate_size",)),
    ArgumentRow("moe_router_topk", ("num_experts_per_tok",), 2),
    ArgumentRow("moe_router_score_function", ("model_type",), "softmax"),
    ArgumentRow("moe_router_pre_softmax", ("norm_topk_prob",), False),
    ArgumentRow(NORMED, (NORMED,)),
    ArgumentRow("moe_router_topk_scaling_factor", ("routed_scaling_factor",), 1.0),
    ArgumentRow("moe_router_num_groups", ("n_group",), 1),
    ArgumentRow("moe_router_group_topk", ("topk_group",), 1),
    ArgumentRow("moe_router_enable_expert_bias", ("model_type",), False),
    ArgumentRow("moe_shared_expert_intermediate_size", ("shared_expert_intermediate_size", "n_shared_experts")),
    ArgumentRow("moe_shared_expert_gate", ("model_type",), False),
    ArgumentRow("q_lora_rank", ("q_lora_rank",)),
    ArgumentRow("kv_lora_rank", ("kv_lora_rank",), 32),
    ArgumentRow("qk_head_dim", ("qk_nope_head_dim",), 128),
    ArgumentRow("qk_pos_emb_head_dim", ("qk_rope_head_dim",), 64),
    ArgumentRow("v_head_dim", ("v_head_dim",), 128),
    ArgumentRow("linear_conv_kernel_dim", ("linear_conv_kernel_dim",), 4),
    ArgumentRow("linear_key_head_dim", ("linear_key_head_dim",), 128),
    ArgumentRow("linear_value_head_dim", ("linear_value_head_dim",), 128),
    ArgumentRow("linear_num_key_heads", ("linear_num_key_heads",), 16),
    ArgumentRow("linear_num_value_heads", ("linear_num_value_heads",), 32),
    ArgumentRow("vocab_size", ("vocab_size",)),
    ArgumentRow(UNSAID, ("other fields",)),
)  # fmt: skip


ROWS = {row.argument: row for row in _ROWS}

YARN = {
    "factor": ("rotary_scaling_factor", None),
    "original_max_position_embeddings": ("original_max_position_embeddings", None),
    "beta_fast": ("beta_fast", 32.0),
    "beta_slow": ("beta_slow", 1.0),
    "mscale": ("mscale", None),
    "mscale_all_dim": ("mscale_all_dim", None),
    "truncate": ("correction_range_round_to_int", True),
}
"""The fields of a yarn rotation, each with its argument, after `yarn_`, and its value where it is not said."""

PARSED_YARN = {
    "rotary_scaling_factor": ("rotary_scaling_factor", 1.0),
    "original_max_position_embeddings": ("yarn_original_max_position_embeddings", 4096),
    "beta_fast": ("yarn_beta_fast", 32.0),
    "beta_slow": ("yarn_beta_slow", 1.0),
    "mscale": ("mscale", 1.0),
    "mscale_all_dim": ("mscale_all_dim", 0.0),
    "correction_range_round_to_int": ("yarn_correction_range_round_to_int", True),
}
"""The same as Megatron-LM's own parser has them, from 0.19 on: each with its argument, some being latent attention's."""

LATENT_YARN = {
    "original_max_position_embeddings": 4096,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 0.0,
}
"""The same for latent attention, whose arguments have the names of the fields: Megatron's defaults."""

UNPARSED_YARN = ("original_max_position_embeddings", "beta_fast", "beta_slow")
"""Those of them that Megatron-LM has no option for."""
