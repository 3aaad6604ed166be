"""Gemma 1, 2 and 3: centred norms, a tied head, and from 2 on norms after each part too.

The text model, alone or inside Gemma 3's vision-language wrapper, whose vision tower and
projector are carried name by name.
"""

from __future__ import annotations

from intarsia.family import decoder
from intarsia.family.table import Table

BEFORE_AND_AFTER = (
    ("input_layernorm", "self_attention.linear_qkv.layer_norm_weight"),
    ("post_attention_layernorm", "self_attention.linear_proj.post_layernorm.weight"),
    ("pre_feedforward_layernorm", "mlp.linear_fc1.layer_norm_weight"),
    ("post_feedforward_layernorm", "mlp.linear_fc2.post_layernorm.weight"),
)


def fill(t: Table) -> None:
    t.centered, head = True, "lm_head.weight"
    if t.wrapped:
        t.wrap("language_model.model.")
        head = "language_model.lm_head.weight"
    hidden, bias = t.number("hidden_size"), t.flag("attention_bias")
    third = t.family.startswith("gemma3")
    decoder.embeddings(t, tied=True, head=head)
    for at in t.layers():
        if t.family == "gemma":
            decoder.norms(at)
        else:
            for name, megatron in BEFORE_AND_AFTER:
                at.norm(f"{name}.weight", hidden, megatron)
        decoder.attention(at, bias=bias, out_bias=bias, head_norms=third, width=256)
        decoder.mlp(at, t.number("intermediate_size"))
