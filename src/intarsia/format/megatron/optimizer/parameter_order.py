"""A rank's parameters in the order in which Megatron's modules register them.

The names on disk do not tell everything: with Megatron's local layer specification a norm that
is stored as `linear_qkv.layer_norm_weight` is a module of its own before the attention, and
several tensors on disk may be one parameter in memory (`in_proj.weight.query`, ..., and the halves
`linear_fc1.weight_w` and `_v` where they are stored apart).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import product
from operator import itemgetter
from typing import Any, NamedTuple

from intarsia.family import Param
from intarsia.format.megatron.keys import Key
from intarsia.frozen import frozen
from intarsia.layout import Layout, chunk, concat
from intarsia.mesh import Rule
from intarsia.value import Value

# A module's own parameters come before those of the modules in it.
_MODULES = (
    "enorm", "hnorm", "eh_proj", "transformer_layer",
    "input_layernorm", "dt_bias", "A_log", "core_attention", "linear_proj", "linear_q_proj",
    "linear_q_down_proj", "linear_q_up_proj", "linear_kv_down_proj", "linear_kv_up_proj",
    "linear_qkv", "in_proj", "conv1d", "q_layernorm", "kv_layernorm", "k_layernorm", "out_norm",
    "out_proj", "pre_mlp_layernorm", "router", "experts", "shared_experts", "gate_weight",
    "linear_fc1", "linear_fc2", "final_layernorm", "post_layernorm",
)  # fmt: skip
_LEAVES = ("layer_norm_weight", "layer_norm_bias", "weight", "bias")
_TOP = ("embedding", "decoder.layers.", "decoder.", "mtp.", "output_layer")
_PARTS = ("query", "key", "value", "z", "beta", "alpha", "w", "v")
"""The tensors that are one parameter, in their order in memory: on disk they may be listed in any."""

_COMPONENT = re.compile(
    rf"^(?P<whole>.+\.(?:in_proj|conv1d|linear_fc1)\.(?:weight|bias))[._](?P<part>{'|'.join(_PARTS)})$"
)
_GATED = ("linear_fc1.weight", "linear_fc1.bias")
_DOWN = ("linear_q_down_proj.weight", "linear_kv_down_proj.weight")
_BUFFERS = ("expert_bias",)


class Spec(NamedTuple):
    """What names do not say: norms as modules of their own, experts grouped by projection."""

    separate_norms: bool
    grouped: bool


SPECS = [Spec(*flags) for flags in product((True, False), (False, True))]


@frozen
class Parameter:
    """A parameter whose parts tensor parallelism cuts one by one."""

    name: str
    parts: Sequence[Layout]
    rule: Rule
    value: Value
    copied: bool = False

    def local(self, parts: Sequence[Layout]) -> Param:
        """The parameter of a rank that holds these parts."""
        return Param(self.name, concat(parts, self.rule.tp or 0), self.rule, self.value)


def parameters_in_memory(rows: Sequence[Param], spec: Spec) -> list[Parameter]:
    """The parameters that the rows of a model are in memory, in their order."""
    merged: dict[str, list[tuple[int, Param]]] = {}
    for row in rows:
        if not row.name.endswith(_BUFFERS):
            found = _COMPONENT.match(row.name)
            whole, place = (found["whole"], _PARTS.index(found["part"])) if found else (row.name, 0)
            merged.setdefault(whole, []).append((place, row))
    ordered = {n: [row for _, row in sorted(x, key=itemgetter(0))] for n, x in merged.items()}
    params = [_parameter(name, held, spec) for name, held in ordered.items()]
    return sorted(params, key=lambda p: _place(p.name, spec))


def _parameter(name: str, rows: list[Param], spec: Spec) -> Parameter:
    rule = rows[0].rule
    if name.endswith(_DOWN) and spec.separate_norms:
        # Without TransformerEngine the low-rank projections are cut like any other.
        rule = Rule(0, layer=rule.layer)
    parts = [row.layout for row in rows]
    if name.endswith(_GATED) and rule.tp is not None and len(rows) == 1:
        parts = chunk(parts[0], 2, rule.tp)
    return Parameter(name, parts, rule, rows[0].value)


def _place(name: str, spec: Spec) -> Any:
    key = Key.parse(name)
    top = next((i for i, word in enumerate(_TOP) if word in name), len(_TOP))
    words = key.rest.split(".")
    if spec.separate_norms and words[-1].startswith("layer_norm_"):
        norm = "pre_mlp_layernorm" if "mlp" in words else "input_layernorm"
        words = [*(word for word in words if word == "transformer_layer"), norm]
    modules = [_MODULES.index(word) for word in dict.fromkeys(words) if word in _MODULES]
    modules.append(_LEAVES.index(words[-1]) if words[-1] in _LEAVES else 0)
    if key.expert is not None:
        place = len(modules) if spec.grouped else modules.index(_MODULES.index("experts")) + 1
        modules.insert(place, key.expert)
    return top, key.layer or 0, modules
