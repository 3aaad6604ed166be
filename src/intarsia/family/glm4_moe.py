"""GLM-4.5, 4.6 and 4.7: grouped-query attention over DeepSeek's experts and prediction layers."""

from __future__ import annotations

from intarsia.family import decoder
from intarsia.family.deepseek_v3 import sparse_mlp
from intarsia.family.multi_token_prediction import hub_prediction_layers
from intarsia.family.spec import Layer, Table


def fill(t: Table) -> None:
    decoder.embeddings(t)
    sparse = decoder.sparse_after_dense(t)
    for at in t.layers():
        layer(at, sparse=sparse[at.stage[0]])
    for at in hub_prediction_layers(t):
        layer(at, sparse=True)


def layer(at: Layer, *, sparse: bool) -> None:
    t = at.table
    decoder.norms(at, experts=sparse)
    decoder.attention(at, bias=t.flag("attention_bias"), head_norms=t.flag("use_qk_norm"))
    if sparse:
        sparse_mlp(at)
    else:
        decoder.mlp(at, t.number("intermediate_size"))
