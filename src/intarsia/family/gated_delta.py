"""Gated delta networks (linear attention) as Qwen3-Next and Qwen3.5 store them.

Megatron keeps every component of the projections under a key of its own, so that tensor
parallelism cuts each by itself.  The hub either groups the components by key head
(Qwen3-Next) or keeps them one after the other (Qwen3.5).
"""

from __future__ import annotations

from intarsia.family.table import Layer, Table
from intarsia.family.verbs import of_every_group, rows

LINEAR, FULL = "linear_attention", "full_attention"


def layer_kinds(t: Table) -> tuple[str, ...]:
    """Which layers have linear attention: the list, or all but every n-th layer."""
    count, every = t.number("num_hidden_layers"), t.number("full_attention_interval", default=4)
    default = [FULL if every and (i + 1) % every == 0 else LINEAR for i in range(count)]
    return t.kinds("layer_types", (LINEAR, FULL), default)


def linear_attention(at: Layer, *, grouped: bool) -> None:
    """One layer's mixer; `grouped` where the hub orders its projections by key head."""
    t, hidden = at.table, at.table.number("hidden_size")
    keys, values = t.number("linear_num_key_heads"), t.number("linear_num_value_heads")
    dk, dv = t.number("linear_key_head_dim"), t.number("linear_value_head_dim")
    per = t.divide("linear_num_value_heads", values, "linear_num_key_heads", keys)
    q, v, to = keys * dk, values * dv, "self_attention.in_proj.weight"
    if grouped:
        qkvz = at.tensor("linear_attn.in_proj_qkvz.weight", 2 * q + 2 * v, hidden, tp=0)
        ba = at.tensor("linear_attn.in_proj_ba.weight", 2 * values, hidden, tp=0)
        edges = (0, dk, 2 * dk, 2 * dk + per * dv, 2 * dk + 2 * per * dv)
        for i, part in enumerate(("query", "key", "value", "z")):
            at.fused(f"{to}.{part}", of_every_group(keys, edges[i], edges[i + 1]), qkvz, tp=0)
        for i, part in enumerate(("beta", "alpha")):
            at.fused(f"{to}.{part}", of_every_group(keys, i * per, (i + 1) * per), ba, tp=0)
    else:
        qkv = at.tensor("linear_attn.in_proj_qkv.weight", 2 * q + v, hidden, tp=0)
        _query_key_value(at, to, qkv, q, v)
        for name, size, part in (("z", v, "z"), ("b", values, "beta"), ("a", values, "alpha")):
            name = f"linear_attn.in_proj_{name}.weight"
            at.tensor(name, size, hidden, tp=0, megatron=f"{to}.{part}")
    width = t.number("linear_conv_kernel_dim", default=4)
    conv = at.tensor("linear_attn.conv1d.weight", 2 * q + v, 1, width, tp=0)
    _query_key_value(at, "self_attention.conv1d.weight", conv, q, v)
    for name in ("A_log", "dt_bias"):
        at.tensor(f"linear_attn.{name}", values, tp=0, megatron=f"self_attention.{name}")
    # The gated norm is a plain one on the hub, whatever the family's other norms are.
    at.norm("linear_attn.norm.weight", dv, "self_attention.out_norm.weight", centered=False)
    out = "self_attention.out_proj.weight"
    at.tensor("linear_attn.out_proj.weight", hidden, v, tp=1, megatron=out)


def _query_key_value(at: Layer, to: str, tensor: str, q: int, v: int) -> None:
    for part, lo, hi in (("query", 0, q), ("key", q, 2 * q), ("value", 2 * q, 2 * q + v)):
        at.fused(f"{to}.{part}", rows(lo, hi), tensor, tp=0)
