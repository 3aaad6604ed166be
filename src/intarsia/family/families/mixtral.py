"""Mixtral: Mistral's attention over routed experts, whose parts the hub calls w1, w3 and w2."""

from __future__ import annotations

from intarsia.family import decoder
from intarsia.family.table import Table


def fill(t: Table) -> None:
    count, inner = decoder.count_experts(t), t.number("intermediate_size")
    decoder.embeddings(t)
    for at in t.layers():
        decoder.norms(at, experts=True)
        decoder.attention(at)
        decoder.router(at, count, hf="block_sparse_moe.gate", module="mlp.gate")
        decoder.experts(at, count, inner, hf="block_sparse_moe.experts", parts=("w1", "w3", "w2"))
