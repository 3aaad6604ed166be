"""DeepSeek-V2, V3, R1 and what is built alike: latent attention over routed and shared experts.

The hub repeats embedding and head inside the prediction layers; Megatron shares them, so there
they are tied.  Left out: the block scales of fp8 checkpoints (`*_scale_inv`), which belong to
the element type and not to the layout.
"""

from __future__ import annotations

from intarsia.errors import FamilyError
from intarsia.family import decoder
from intarsia.family.multi_token_prediction import layers_and_predictions
from intarsia.family.table import Layer, Table


def fill(t: Table) -> None:
    if (every := t.number("moe_layer_freq", default=1)) != 1:
        raise FamilyError(f"config.json: moe_layer_freq is {every}, every published model has 1")
    decoder.embeddings(t)
    for at, sparse in layers_and_predictions(t):
        layer(at, sparse=sparse)


def layer(at: Layer, *, sparse: bool) -> None:
    hidden = at.table.number("hidden_size")
    at.norm("input_layernorm.weight", hidden, "input_layernorm.weight")
    latent_attention(at)
    alone, fused = "pre_mlp_layernorm.weight", "mlp.linear_fc1.layer_norm_weight"
    at.norm("post_attention_layernorm.weight", hidden, alone if sparse else fused, local=alone)
    if sparse:
        sparse_mlp(at)
    else:
        decoder.mlp(at, at.table.number("intermediate_size"))


def latent_attention(at: Layer) -> None:
    """Queries (where the rank is given), keys and values through low-rank projections."""
    t, hidden = at.table, at.table.number("hidden_size")
    heads, rank = t.number("num_attention_heads"), t.number("kv_lora_rank")
    rope, nope = t.number("qk_rope_head_dim"), t.number("qk_nope_head_dim")
    value, bias = t.number("v_head_dim"), t.flag("attention_bias")
    to = "self_attention."
    if t.value("q_lora_rank") is None:
        query = f"{to}linear_q_proj.weight"
        at.tensor("self_attn.q_proj.weight", heads * (nope + rope), hidden, tp=0, megatron=query)
    else:
        inner = t.number("q_lora_rank")
        _down(at, "q_a_proj", inner, f"{to}linear_q_down_proj", bias)
        _up(at, "q", heads * (nope + rope), inner)
    _down(at, "kv_a_proj_with_mqa", rank + rope, f"{to}linear_kv_down_proj", bias)
    _up(at, "kv", heads * (nope + value), rank)
    proj = f"{to}linear_proj"
    at.tensor("self_attn.o_proj.weight", hidden, heads * value, tp=1, megatron=f"{proj}.weight")
    if bias:
        at.tensor("self_attn.o_proj.bias", hidden, megatron=f"{proj}.bias")


def _down(at: Layer, name: str, rows: int, to: str, bias: bool) -> None:
    hidden = at.table.number("hidden_size")
    at.tensor(f"self_attn.{name}.weight", rows, hidden, megatron=f"{to}.weight")
    if bias:
        at.tensor(f"self_attn.{name}.bias", rows, megatron=f"{to}.bias")


def _up(at: Layer, x: str, rows: int, rank: int) -> None:
    to = f"self_attention.linear_{x}_up_proj"
    local = f"self_attention.{x}_layernorm.weight"
    at.norm(f"self_attn.{x}_a_layernorm.weight", rank, f"{to}.layer_norm_weight", local=local)
    at.tensor(f"self_attn.{x}_b_proj.weight", rows, rank, tp=0, megatron=f"{to}.weight")


def sparse_mlp(at: Layer) -> None:
    """Routed experts, the router's correction term, and the shared experts as one."""
    t, count = at.table, decoder.count_experts(at.table)
    inner, shared = t.number("moe_intermediate_size"), t.number("n_shared_experts", default=0)
    decoder.router(at, count)
    if t.family != "deepseek_v2":
        at.tensor("mlp.gate.e_score_correction_bias", count, megatron="mlp.router.expert_bias")
    decoder.experts(at, count, inner)
    if shared:
        decoder.shared_expert(at, inner * shared)
