"""OLMoE: routed experts, and one norm over all query heads, one over all key heads."""

from __future__ import annotations

from intarsia.family import decoder
from intarsia.family.table import Table


def fill(t: Table) -> None:
    bias, count = t.flag("attention_bias"), decoder.count_experts(t)
    heads, groups, width = decoder.heads_of(t)
    decoder.embeddings(t)
    for at in t.layers():
        decoder.norms(at, experts=True)
        decoder.attention(at, bias=bias, out_bias=bias)
        for x, size in (("q", heads * width), ("k", groups * width)):
            at.norm(f"self_attn.{x}_norm.weight", size, f"self_attention.{x}_layernorm.weight")
        decoder.router(at, count)
        decoder.experts(at, count, t.number("intermediate_size"))
