"""Llama 2, 3 and 3.1+, and Mistral.

Left out: `rotary_emb.inv_freq`, which old checkpoints persist; it is recomputed from the
configuration, and is carried name by name where a checkpoint has it.
"""

from __future__ import annotations

from intarsia.family import decoder
from intarsia.family.spec import Table


def fill(t: Table) -> None:
    layers, bias = t.number("num_hidden_layers"), t.flag("attention_bias")
    decoder.embeddings(t, layers)
    for layer in range(layers):
        decoder.attention(t, layer, layers, bias=bias, out_bias=bias)
        decoder.gated_mlp(t, layer, layers, bias=t.flag("mlp_bias"))
        decoder.block_norms(t, layer, layers)
