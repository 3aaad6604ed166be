"""Qwen2 and Qwen2.5, dense: Llama's parts, with a bias on queries, keys and values.

The text model, alone or inside Qwen2-VL and Qwen2.5-VL, whose vision tower is carried name by
name.  Older configurations of these give the text model's numbers at the top.
"""

from __future__ import annotations

from intarsia.family import decoder
from intarsia.family.table import Table


def fill(t: Table) -> None:
    if t.family != "qwen2":
        t.wrap("model.")
    decoder.embeddings(t)
    for at in t.layers():
        decoder.norms(at)
        decoder.attention(at, bias=True)
        decoder.mlp(at, t.number("intermediate_size"))
