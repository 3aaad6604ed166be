"""Llama 2, 3 and 3.1+, and the families that differ from it in numbers and biases only.

Left out: `rotary_emb.inv_freq`, which old checkpoints persist; it is recomputed from the
configuration, and is carried name by name where a checkpoint has it.  So is the vision tower of
Mistral 3.
"""

from __future__ import annotations

from intarsia.family import decoder
from intarsia.family.table import Table

TIED = ("ernie4_5", "smollm3")
"""Whose heads are tied where the configuration does not say."""


def fill(t: Table) -> None:
    head = "lm_head.weight"
    if t.wrapped:
        t.wrap("language_model.model.")
        head = "language_model.lm_head.weight"
    every = t.flag("use_bias")  # Ernie's one word for all of them
    bias = t.flag("attention_bias", every or t.family == "seed_oss")
    out_bias = t.flag("attention_out_bias", bias and t.family != "seed_oss")
    decoder.embeddings(t, tied=t.family in TIED, head=head)
    for at in t.layers():
        decoder.norms(at)
        decoder.attention(at, bias=bias, out_bias=out_bias)
        decoder.mlp(at, t.number("intermediate_size"), bias=t.flag("mlp_bias", every))
