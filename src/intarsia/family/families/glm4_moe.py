"""GLM-4.5, 4.6 and 4.7: grouped-query attention over DeepSeek's experts and prediction layers."""

from __future__ import annotations

from intarsia.family import decoder
from intarsia.family.families.deepseek_v3 import sparse_mlp
from intarsia.family.multi_token_prediction import layers_and_predictions
from intarsia.family.table import Table


def fill(t: Table) -> None:
    decoder.embeddings(t)
    for at, sparse in layers_and_predictions(t):
        decoder.norms(at, experts=sparse)
        decoder.attention(at, bias=t.flag("attention_bias"), head_norms=t.flag("use_qk_norm"))
        if sparse:
            sparse_mlp(at)
        else:
            decoder.mlp(at, t.number("intermediate_size"))
