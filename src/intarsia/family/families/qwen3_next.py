"""Qwen3-Next: linear attention in most layers, gated attention in the rest, sparse throughout.

Its norms hold weight − 1, but for the gated norm of the linear attention.  Left out: a second
and further layers of multi-token prediction, which no published model has.
"""

from __future__ import annotations

from intarsia.family import decoder
from intarsia.family.families.qwen2_moe import sparse_mlp
from intarsia.family.gated_delta import LINEAR, layer_kinds, linear_attention
from intarsia.family.multi_token_prediction import separate_prediction_layer
from intarsia.family.table import Layer, Table


def fill(t: Table) -> None:
    t.centered = True
    kinds = layer_kinds(t)
    decoder.embeddings(t)
    for at in t.layers():
        layer(at, kinds[at.stage[0]], grouped=True, sparse=decoder.is_sparse(t, at.stage[0]))
    sparse = decoder.count_experts(t) > 0
    layer(separate_prediction_layer(t), "full_attention", grouped=True, sparse=sparse)


def layer(at: Layer, kind: str, *, grouped: bool, sparse: bool) -> None:
    """One block; its norm before the mixer belongs to the mixer's first projection."""
    t, bias = at.table, at.table.flag("attention_bias")
    if kind == LINEAR:
        decoder.norms(at, experts=sparse, mixer="self_attention.in_proj")
        linear_attention(at, grouped=grouped)
    else:
        decoder.norms(at, experts=sparse)
        decoder.attention(
            at, bias=bias, out_bias=bias, head_norms=True, output_gate=True, width=256
        )
    if sparse:
        sparse_mlp(at)
    else:
        decoder.mlp(at, t.number("intermediate_size"))
