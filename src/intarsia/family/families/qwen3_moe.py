"""Qwen3-MoE: Qwen3's attention over routed experts."""

from __future__ import annotations

from intarsia.family import decoder
from intarsia.family.table import Table


def fill(t: Table) -> None:
    bias, count = t.flag("attention_bias"), decoder.count_experts(t)
    decoder.embeddings(t)
    for at in t.layers():
        sparse = decoder.is_sparse(t, at.stage[0])
        decoder.norms(at, experts=sparse)
        decoder.attention(at, bias=bias, out_bias=bias, head_norms=True)
        if sparse:
            decoder.router(at, count)
            decoder.experts(at, count, t.number("moe_intermediate_size"))
        else:
            decoder.mlp(at, t.number("intermediate_size"))
