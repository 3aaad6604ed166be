"""gpt-oss: attention with sinks over experts with biases.

The hub keeps the experts of a layer in one tensor, transposed, the rows of gate and up in turn;
the logical tensors are one per expert and projection.  Left out: the MXFP4 blocks and scales of
the published files, which belong to the element type and not to the layout.
"""

from __future__ import annotations

from intarsia.family import decoder
from intarsia.family.table import HUB, Layer, Table
from intarsia.family.verbs import gated, interleaved, stacked, then, transposed
from intarsia.mesh import Rule

_TRANSPOSED, _IN_TURN = stacked(then(interleaved, transposed), 2), stacked(interleaved, 2)
_HALVES, _TURNED, _STACK = stacked(gated, 2), stacked(transposed), stacked()
"""One verb for all layers, so that their rows are made once and renamed."""


def fill(t: Table) -> None:
    bias = t.flag("attention_bias", True)
    decoder.embeddings(t)
    heads, _, _ = decoder.heads_of(t, width=64)
    for at in t.layers():
        decoder.norms(at, experts=True)
        decoder.attention(at, bias=bias, out_bias=bias, width=64)
        sinks = "self_attention.core_attention.softmax_offset"
        at.tensor("self_attn.sinks", heads, tp=0, megatron=sinks)
        count = decoder.count_experts(t)
        decoder.router(at, count, hf="mlp.router")
        at.tensor("mlp.router.bias", count, megatron="mlp.router.bias")
        _experts(at, count)


def _experts(at: Layer, count: int) -> None:
    t = at.table
    hidden, inner = t.number("hidden_size"), t.number("intermediate_size")

    def declare(parts: tuple[str, ...], *shape: int) -> list[str]:
        t.check_room(count * len(parts))
        names = [f"{at.hf}mlp.experts.{e}.{part}" for e in range(count) for part in parts]
        t.declare(names, [shape], optional=False)
        return names

    both = declare(("gate_proj.weight", "up_proj.weight"), inner, hidden)
    shifts = declare(("gate_proj.bias", "up_proj.bias"), inner)
    down = declare(("down_proj.weight",), hidden, inner)
    down_shifts = declare(("down_proj.bias",), hidden)
    for name, verb, to, kept, names, tp, to_tp in (
        ("gate_up_proj", _TRANSPOSED, "linear_fc1.weight", _HALVES, both, 2, 1),
        ("gate_up_proj_bias", _IN_TURN, "linear_fc1.bias", _HALVES, shifts, 1, 1),
        ("down_proj", _TURNED, "linear_fc2.weight", _STACK, down, 1, 2),
        ("down_proj_bias", _STACK, "linear_fc2.bias", _STACK, down_shifts, None, None),
    ):  # fmt: skip
        rule = Rule(ep=0, tp=tp, layer=at.stage)
        t.store(HUB, f"{at.hf}mlp.experts.{name}", verb, *names, rule=rule)
        at.fused(f"mlp.experts.experts.{to}", kept, *names, ep=0, tp=to_tp)
