"""The parts that most decoder-only families share, each a few rows of a table."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from intarsia.errors import FamilyError
from intarsia.family.table import Layer, Table
from intarsia.family.verbs import by_group, by_group_with_gate, gated, stacked
from intarsia.mesh import Rule

GATED = ("gate_proj", "up_proj", "down_proj")

_PAIRS, _STACK = stacked(gated, per=2), stacked()
"""One verb for all layers, so that their rows are made once and renamed."""


def embeddings(t: Table, *, tied: bool = False, head: str = "lm_head.weight") -> None:
    """Token embedding, final norm, and the output head; `tied` where the configuration is mute.

    Of a wrapper's two configurations the outer one says whether the head is tied.
    """
    vocab, hidden = t.number("vocab_size"), t.number("hidden_size")
    first, last = t.top(last=False), t.top(last=True)
    table, words = f"{t.hf}embed_tokens.weight", "embedding.word_embeddings.weight"
    module = f"{t.module}embed_tokens.weight"
    first.tensor(table, vocab, hidden, tp=0, module=module, megatron=words)
    norm, module = f"{t.hf}norm.weight", f"{t.module}norm.weight"
    to, value = "decoder.final_layernorm.weight", t.norm_value()
    last.tensor(norm, hidden, module=module, megatron=to, value=value)
    last.tensor(head, vocab, hidden, tp=0, module="lm_head.weight", megatron="output_layer.weight")
    t.head = head
    if t.class_without_head:
        t.optional.add(head)
    outer = t.config.get("tie_word_embeddings")
    if outer if isinstance(outer, bool) else t.flag("tie_word_embeddings", tied):
        t.tie(head, to=table)


def heads_of(t: Table, *, width: int | None = None) -> tuple[int, int, int]:
    """Query heads, groups of them that share a key, and the width of a head."""
    hidden, heads = t.number("hidden_size"), t.number("num_attention_heads")
    groups = t.number("num_key_value_heads", default=heads)
    t.divide("num_attention_heads", heads, "num_key_value_heads", groups)
    if t.value("head_dim") is None and width is None:
        width = t.divide("hidden_size", hidden, "num_attention_heads", heads)
    return heads, groups, t.number("head_dim", default=width)


def attention(
    at: Layer,
    *,
    bias: bool = False,
    out_bias: bool = False,
    head_norms: bool = False,
    output_gate: bool = False,
    width: int | None = None,
) -> None:
    """Grouped-query attention; the hub keeps an output gate inside the query projection."""
    t = at.table
    hidden = t.number("hidden_size")
    heads, groups, width = heads_of(t, width=width)
    sizes = {
        "q": heads * width * (2 if output_gate else 1), "k": groups * width, "v": groups * width
    }  # fmt: skip
    fuse = by_group_with_gate(groups, width) if output_gate else by_group(groups)
    for kind, tail in (("weight", (hidden,)), ("bias", ()))[: 1 + bias]:
        qkv = [at.tensor(f"self_attn.{x}_proj.{kind}", n, *tail, tp=0) for x, n in sizes.items()]
        at.fused(f"self_attention.linear_qkv.{kind}", fuse, *qkv, tp=0)
    proj = "self_attention.linear_proj"
    at.tensor("self_attn.o_proj.weight", hidden, heads * width, tp=1, megatron=f"{proj}.weight")
    if out_bias:
        at.tensor("self_attn.o_proj.bias", hidden, megatron=f"{proj}.bias")
    if head_norms:
        for x in "qk":
            at.norm(f"self_attn.{x}_norm.weight", width, f"self_attention.{x}_layernorm.weight")


def mlp(
    at: Layer, inner: int, *, hf: str = "mlp.", megatron: str = "mlp.", bias: bool = False
) -> None:
    """A gate, an up and a down projection; Megatron joins the first two."""
    hidden = at.table.number("hidden_size")
    for kind, tail in (("weight", (hidden,)), ("bias", ()))[: 1 + bias]:
        both = [at.tensor(f"{hf}{x}.{kind}", inner, *tail, tp=0) for x in GATED[:2]]
        at.fused(f"{megatron}linear_fc1.{kind}", gated, *both, tp=0)
    down = f"{megatron}linear_fc2"
    at.tensor(f"{hf}down_proj.weight", hidden, inner, tp=1, megatron=f"{down}.weight")
    if bias:
        at.tensor(f"{hf}down_proj.bias", hidden, megatron=f"{down}.bias")


def norms(at: Layer, *, experts: bool = False, mixer: str = "self_attention.linear_qkv") -> None:
    """The norms before attention and before the feed-forward part, which Megatron joins to them."""
    hidden = at.table.number("hidden_size")
    at.norm("input_layernorm.weight", hidden, f"{mixer}.layer_norm_weight")
    second, local = "mlp.linear_fc1.layer_norm_weight", None
    if experts:  # the router reads it too, so only local specs keep the fused name
        second, local = "pre_mlp_layernorm.weight", second
    at.norm("post_attention_layernorm.weight", hidden, second, local=local)


def router(at: Layer, count: int, *, hf: str = "mlp.gate", module: str | None = None) -> None:
    """The projection that chooses experts."""
    if count < 1:
        raise FamilyError(f"config.json gives layer {at.stage[0]} {count} experts")
    hidden, module = at.table.number("hidden_size"), module and f"{module}.weight"
    at.tensor(f"{hf}.weight", count, hidden, module=module, megatron="mlp.router.weight")


def experts(
    at: Layer, count: int, inner: int, *, hf: str = "mlp.experts", parts: Sequence[str] = GATED
) -> None:
    """Gated experts: one tensor each on the hub, one stack per layer elsewhere."""
    t, hidden = at.table, at.table.number("hidden_size")
    t.check_room(count * len(parts))
    names = [f"{at.hf}{hf}.{e}.{part}.weight" for e in range(count) for part in parts]
    wide, tall = (inner, hidden), (hidden, inner)
    t.declare(names, (wide, wide, tall), at.optional)
    across, along = ([Rule(tp, None, (e, count), at.stage) for e in range(count)] for tp in (0, 1))
    rules = chain.from_iterable(zip(across, across, along, strict=True))
    t.dialects["hf"].add_whole(dict(zip(names, rules, strict=True)))
    rows, columns = [name for k, name in enumerate(names) if k % 3 < 2], names[2::3]
    both, one = Rule(ep=0, tp=1, layer=at.stage), Rule(ep=0, tp=2, layer=at.stage)
    for dialect, root in (("hf-fused", at.hf), ("hf-module", at.module)):
        if root is not None:
            t.store((dialect,), f"{root}mlp.experts.gate_up_proj", _PAIRS, *rows, rule=both)
            t.store((dialect,), f"{root}mlp.experts.down_proj", _STACK, *columns, rule=one)
    at.fused("mlp.experts.experts.linear_fc1.weight", _PAIRS, *rows, ep=0, tp=1)
    at.fused("mlp.experts.experts.linear_fc2.weight", _STACK, *columns, ep=0, tp=2)


def shared_expert(at: Layer, inner: int, *, hf: str = "mlp.shared_experts.") -> None:
    """An expert that every token uses."""
    mlp(at, inner, hf=hf, megatron="mlp.shared_experts.")


def sparse_after_dense(t: Table) -> tuple[bool, ...]:
    """For each layer whether it has experts: as `mlp_layer_types` says, or all but the first ones."""
    count, begun = t.number("num_hidden_layers"), "first_k_dense_replace"
    dense = t.number(begun, default=0)
    usual = ["dense" if layer < dense else "sparse" for layer in range(count)]
    kinds = t.kinds("mlp_layer_types", ("dense", "sparse"), usual, more=True)
    if begun in t.text and list(kinds) != usual:
        raise FamilyError(
            f"config.json: {begun} is {dense}, mlp_layer_types has dense layers"
            f" {[layer for layer, kind in enumerate(kinds) if kind == 'dense']}",
            hint="remove the one that is wrong for this model",
        )
    return tuple(kind == "sparse" for kind in kinds)


def is_sparse(t: Table, layer: int) -> bool:
    """Whether a Qwen layer has experts: every `decoder_sparse_step`-th one that is not excepted."""
    step = t.number("decoder_sparse_step", default=1)
    if step < 1:
        raise FamilyError(f"config.json: decoder_sparse_step is {step}")
    excepted = layer in t.numbers("mlp_only_layers") or (layer + 1) % step
    return not excepted and count_experts(t) > 0


def count_experts(t: Table) -> int:
    """How many routed experts a layer has."""
    return t.number("num_experts", "num_local_experts", "n_routed_experts")


def experts_in(t: Table) -> int:
    """How many routed experts a layer has; none where no tensor is an expert's."""
    return count_experts(t) if any(".experts." in name for name in t.logical) else 0
