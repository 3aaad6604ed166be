"""Qwen3, dense: Llama's parts, and a norm on every query and key head."""

from __future__ import annotations

from intarsia.family import decoder
from intarsia.family.spec import Table


def fill(t: Table) -> None:
    layers, bias = t.number("num_hidden_layers"), t.flag("attention_bias")
    decoder.embeddings(t, layers)
    for layer in range(layers):
        decoder.attention(t, layer, layers, bias=bias, out_bias=bias)
        decoder.head_norms(t, layer, layers)
        decoder.gated_mlp(t, layer, layers)
        decoder.block_norms(t, layer, layers)
