"""The parts that most decoder-only families share, each a few rows of a table."""

from __future__ import annotations

from intarsia.family.spec import Table
from intarsia.mesh import Rule


def embeddings(t: Table, layers: int) -> None:
    """Token embedding, final norm, and the output head (tied or not)."""
    vocab, hidden = t.number("vocab_size"), t.number("hidden_size")
    last = (layers - 1, layers)
    t.tensor("model.embed_tokens.weight", vocab, hidden, rule=Rule(tp=0, layer=(0, layers)))
    t.tensor("model.norm.weight", hidden, rule=Rule(layer=last))
    t.tensor("lm_head.weight", vocab, hidden, rule=Rule(tp=0, layer=last))
    if t.flag("tie_word_embeddings"):
        t.tie("lm_head.weight", to="model.embed_tokens.weight")


def attention(t: Table, layer: int, layers: int, *, bias: bool, out_bias: bool) -> None:
    """Grouped-query attention with separate q, k, v and o projections."""
    hidden, heads = t.number("hidden_size"), t.number("num_attention_heads")
    groups = t.number("num_key_value_heads", default=heads)
    width = t.number("head_dim", default=hidden // heads)
    at, stage = f"model.layers.{layer}.self_attn", (layer, layers)
    for name, rows in (("q", heads * width), ("k", groups * width), ("v", groups * width)):
        t.tensor(f"{at}.{name}_proj.weight", rows, hidden, rule=Rule(tp=0, layer=stage))
        if bias:
            t.tensor(f"{at}.{name}_proj.bias", rows, rule=Rule(tp=0, layer=stage))
    t.tensor(f"{at}.o_proj.weight", hidden, heads * width, rule=Rule(tp=1, layer=stage))
    if out_bias:
        t.tensor(f"{at}.o_proj.bias", hidden, rule=Rule(layer=stage))


def head_norms(t: Table, layer: int, layers: int) -> None:
    """Norms of every query and key head."""
    hidden, heads = t.number("hidden_size"), t.number("num_attention_heads")
    width = t.number("head_dim", default=hidden // heads)
    for name in ("q_norm", "k_norm"):
        t.tensor(
            f"model.layers.{layer}.self_attn.{name}.weight", width, rule=Rule(layer=(layer, layers))
        )


def gated_mlp(t: Table, layer: int, layers: int, *, bias: bool = False) -> None:
    """A gate, an up and a down projection."""
    hidden, inner = t.number("hidden_size"), t.number("intermediate_size")
    at, stage = f"model.layers.{layer}.mlp", (layer, layers)
    for name in ("gate_proj", "up_proj"):
        t.tensor(f"{at}.{name}.weight", inner, hidden, rule=Rule(tp=0, layer=stage))
        if bias:
            t.tensor(f"{at}.{name}.bias", inner, rule=Rule(tp=0, layer=stage))
    t.tensor(f"{at}.down_proj.weight", hidden, inner, rule=Rule(tp=1, layer=stage))
    if bias:
        t.tensor(f"{at}.down_proj.bias", hidden, rule=Rule(layer=stage))


def block_norms(t: Table, layer: int, layers: int) -> None:
    """The norms before attention and before the feed-forward part."""
    for name in ("input_layernorm", "post_attention_layernorm"):
        t.tensor(
            f"model.layers.{layer}.{name}.weight",
            t.number("hidden_size"),
            rule=Rule(layer=(layer, layers)),
        )
