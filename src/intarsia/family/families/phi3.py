"""Phi-3 and Phi-4: Llama's parts, where the hub joins q, k, v and gate, up.

The logical tensors are the parts.
"""

from __future__ import annotations

from intarsia.family import decoder
from intarsia.family.table import HUB, Layer, Table
from intarsia.family.verbs import Verb, by_group, gated, joined
from intarsia.mesh import Rule


def fill(t: Table) -> None:
    hidden, inner = t.number("hidden_size"), t.number("intermediate_size")
    heads, groups, width = decoder.heads_of(t)
    q, k = heads * width, groups * width
    decoder.embeddings(t)
    for at in t.layers():
        decoder.norms(at)
        qkv = {"q_proj": q, "k_proj": k, "v_proj": k}
        _joined(at, "self_attn", "qkv_proj", qkv, "self_attention.linear_qkv", by_group(groups))
        proj = "self_attention.linear_proj.weight"
        at.tensor("self_attn.o_proj.weight", hidden, q, tp=1, megatron=proj)
        both = {"gate_proj": inner, "up_proj": inner}
        _joined(at, "mlp", "gate_up_proj", both, "mlp.linear_fc1", gated)
        at.tensor("mlp.down_proj.weight", hidden, inner, tp=1, megatron="mlp.linear_fc2.weight")


def _joined(
    at: Layer, part: str, name: str, rows: dict[str, int], megatron: str, verb: Verb
) -> None:
    """Parts that the hub stores one after the other, and Megatron by `verb`."""
    t, hidden = at.table, at.table.number("hidden_size")
    parts = [t.tensor(f"{at.hf}{part}.{x}.weight", n, hidden) for x, n in rows.items()]
    rule = Rule(tp=0, layer=at.stage)
    t.store(HUB, f"{at.hf}{part}.{name}.weight", joined, *parts, rule=rule)
    at.fused(f"{megatron}.weight", verb, *parts, tp=0)
