"""Qwen1.5-MoE and Qwen2-MoE: routed experts, and a shared one behind a gate of its own."""

from __future__ import annotations

from intarsia.family import decoder
from intarsia.family.table import Layer, Table


def fill(t: Table) -> None:
    decoder.embeddings(t)
    for at in t.layers():
        sparse = decoder.is_sparse(t, at.stage[0])
        decoder.norms(at, experts=sparse)
        decoder.attention(at, bias=t.flag("qkv_bias", True))
        if sparse:
            sparse_mlp(at)
        else:
            decoder.mlp(at, t.number("intermediate_size"))


def sparse_mlp(at: Layer) -> None:
    """Routed experts, a shared expert, and the gate that scales the latter."""
    t, count = at.table, decoder.count_experts(at.table)
    decoder.router(at, count)
    decoder.experts(at, count, t.number("moe_intermediate_size"))
    decoder.shared_expert(at, t.number("shared_expert_intermediate_size"), hf="mlp.shared_expert.")
    hidden, gate = t.number("hidden_size"), "mlp.shared_experts.gate_weight"
    at.tensor("mlp.shared_expert_gate.weight", 1, hidden, megatron=gate)
