"""Qwen3, dense: Llama's parts, and a norm on every query and key head.

The text model, alone or inside Qwen3-VL, whose vision tower is carried name by name.
"""

from __future__ import annotations

from intarsia.family import decoder
from intarsia.family.table import Table


def fill(t: Table) -> None:
    if t.wrapped:
        t.wrap("model.language_model.")
    bias = t.flag("attention_bias")
    decoder.embeddings(t)
    for at in t.layers():
        decoder.norms(at)
        decoder.attention(at, bias=bias, out_bias=bias, head_norms=True, width=128)
        decoder.mlp(at, t.number("intermediate_size"))
