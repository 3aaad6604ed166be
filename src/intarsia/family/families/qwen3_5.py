"""Qwen3.5 and 3.6, dense and sparse: the text model, alone or inside the vision-language wrapper.

As Qwen3-Next, but the linear attention keeps its projections apart.  Left out: the vision
tower (`model.visual.*`), which is carried name by name.
"""

from __future__ import annotations

from intarsia.family import decoder
from intarsia.family.families.qwen3_next import layer
from intarsia.family.gated_delta import FULL, layer_kinds
from intarsia.family.multi_token_prediction import separate_prediction_layer
from intarsia.family.table import Table


def fill(t: Table) -> None:
    t.centered = True
    sparse = "moe" in t.family
    if t.wrapped:
        t.wrap("model.language_model.")
    kinds = layer_kinds(t)
    decoder.embeddings(t)
    for at in t.layers():
        layer(at, kinds[at.stage[0]], grouped=False, sparse=sparse)
    layer(separate_prediction_layer(t), FULL, grouped=False, sparse=sparse)
    if not t.wrapped:  # a text configuration beside the wrapper's weights
        t.respell("hf-wrapped", "hf", "model.", "model.language_model.")
        t.respell("hf-fused-wrapped", "hf-fused", "model.", "model.language_model.")
