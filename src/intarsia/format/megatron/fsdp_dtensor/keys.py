"""Megatron-FSDP's names, and the rows of a family's table that they hold.

A checkpoint of Megatron-FSDP is a state dict of live modules, saved by DCP:

    model.module.decoder.layers.0.mlp.linear_fc1.weight_w
    optimizer.state.module.module.module.decoder.layers.0.mlp.linear_fc1.weight_w.exp_avg
    optimizer.param_to_group_meta.module.module.module.decoder.layers.0.mlp.linear_fc1.weight.lr

Every wrapper adds one `module.`; how many there are means nothing.  Layers and experts are never
stacked.  Where modules have other names than `torch_dist` gives their tensors, the names here
lead to those: then one table serves both formats.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from intarsia.errors import FamilyError, FormatError
from intarsia.family import Param, Table
from intarsia.format.megatron.keys import Key, MegatronRows, half_of, is_fc1, padded
from intarsia.format.megatron.optimizer.state_tensors import state_kind
from intarsia.format.optimizer_state.parameter_groups import PARAMETERS_GROUP
from intarsia.layout import Layout, concat, shard
from intarsia.mesh import Shape

MODEL, STATE, GROUP = "model.module.", "optimizer.state.", PARAMETERS_GROUP
WRAPPERS = "module.module.module."
"""What the optimizer's names begin with: the adapter, Megatron-FSDP, and the precision wrapper."""

PART = re.compile(r"(_[wv]|(?<=\.weight)\.\w+|(?<=\.bias)\.\w+)$")
"""What a part of a fused parameter adds to its name."""

_MODEL = re.compile(r"^model\.(?:module\.)*(?P<name>.+)$")
_STATE = re.compile(r"^optimizer\.state\.(?:module\.)*(?P<name>.+)\.(?P<kind>[A-Za-z_0-9]+)$")
_GROUP = re.compile(
    r"^optimizer\.param_to_group_meta\.(?:module\.)*(?P<name>.+)\.(?P<kind>[A-Za-z_0-9]+)$"
)
_SEQUENTIAL = re.compile(r"\.experts\.local_experts\.(\d{1,9})\.")
_GROUPED = re.compile(r"\.experts\.(linear_fc[12])\.(weight|bias)(\d{1,9})(_[wv])?$")
_COMPONENT = re.compile(r"^(?P<whole>.+\.(?:weight|bias))\.\w+$")
_EXPERT = re.compile(r"\.experts\.experts\.(\d{1,9})\.(linear_fc[12])\.(weight|bias)(_[wv])?$")
_NORMS = {
    "self_attention.linear_qkv.layer_norm_": "input_layernorm.",
    "self_attention.in_proj.layer_norm_": "input_layernorm.",
    "mlp.linear_fc1.layer_norm_": "pre_mlp_layernorm.",
}
"""Norms that TransformerEngine keeps inside a projection, and their modules without it."""


class KeySection(NamedTuple):
    """Where a stored name belongs: `kind` is empty for the model's own tensors."""

    kind: str
    name: str

    @property
    def parameter(self) -> str:
        """The name by which groups know the parameter: that of all of it, where it is a part."""
        return PART.sub("", self.name)


def section_of(key: str) -> KeySection | None:
    """The parameter that a key is about, without wrappers; None for what is no tensor's.

    >>> section_of("optimizer.state.module.module.decoder.final_layernorm.weight.exp_avg")
    KeySection(kind='exp_avg', name='decoder.final_layernorm.weight')
    """
    if found := _MODEL.match(key):
        return KeySection("", canonical(found["name"]))
    if found := _STATE.match(key):
        return KeySection(state_kind(found["kind"]), canonical(found["name"]))
    return None


def is_numbered(section: KeySection | None) -> bool:
    """Whether a state belongs to a number."""
    return section is not None and bool(section.kind) and section.name.isdecimal()


def group_of(key: str) -> tuple[str, str] | None:
    """The parameter and the field of an entry about a parameter's group."""
    found = _GROUP.match(key)
    return (canonical(found["name"]), found["kind"]) if found else None


def canonical(name: str) -> str:
    """A live name with its experts spelled as in `torch_dist`.

    >>> canonical("decoder.layers.0.mlp.experts.linear_fc1.weight3_w")
    'decoder.layers.0.mlp.experts.experts.3.linear_fc1.weight_w'
    """
    name = name.replace(".mtp_model_layer.", ".transformer_layer.")
    name = _SEQUENTIAL.sub(r".experts.experts.\1.", name)
    if found := _GROUPED.search(name):
        layer, leaf, expert, half = found.groups(default="")
        name = f"{name[: found.start()]}.experts.experts.{expert}.{layer}.{leaf}{half}"
    return name


def live(name: str, spec: str) -> str:
    """The name of a module's parameter under one of Megatron's layer specifications.

    >>> live("decoder.layers.0.mlp.experts.experts.3.linear_fc1.weight_w", "te")
    'decoder.layers.0.mlp.experts.linear_fc1.weight3_w'
    """
    found = _EXPERT.search(name)
    if spec == "te":
        if found:
            expert, layer, leaf, half = found.groups(default="")
            return f"{name[: found.start()]}.experts.{layer}.{leaf}{expert}{half}"
        return name
    for fused, alone in _NORMS.items():
        if f".{fused}" in name:
            return name.replace(fused, alone)
    return name.replace(".experts.experts.", ".experts.local_experts.") if found else name


class FsdpRows:
    """The rows of a table, found by Megatron-FSDP's names."""

    def __init__(self, table: Table) -> None:
        self.rows = MegatronRows(table)
        self._parts: dict[str, list[Param]] = {}
        for name in self.rows.rows:
            if found := _COMPONENT.match(name):
                self._parts.setdefault(found["whole"], []).append(self.rows.rows[name])

    def find(self, name: str, shape: Shape, tp: TensorParallel) -> Param | None:
        """What a stored tensor of this name and shape holds; None where no row has the name."""
        known, row, parts = self._found(name)
        if parts:
            row = _by_rank(known, parts, tp.of(parts[0], name))
        return None if row is None else self.rows.shaped(replace(row, name=known), name, shape)

    def local(
        self, name: str, shape: Shape, tp: int, rank: int, axis: int | None = None
    ) -> Param | None:
        """What one tensor-parallel rank holds of a live parameter whose part there has `shape`.

        `axis` is the one that the model cuts; without it, the table's.
        """
        known, row, parts = self._found(name)
        if parts:
            layout = concat([shard(_even(p, tp).layout, tp, rank) for p in parts])
            row = Param(known, layout, parts[0].rule, parts[0].value)
        elif (
            row is not None
            and tp > 1
            and (axis := row.rule.tp if axis is None else axis) is not None
        ):
            row = padded(row, (*shape[:axis], shape[axis] * tp, *shape[axis + 1 :]))
            row = replace(row, layout=shard(row.layout, tp, rank, axis))
        return None if row is None else self.rows.shaped(replace(row, name=known), name, shape)

    def _found(self, name: str) -> tuple[str, Param | None, list[Param]]:
        """The table's name for a live one, its row, and the parts that ranks cut one by one."""
        for known in spellings(name):
            key = Key.parse(known)
            row = self.rows.row(key)
            if row is not None:
                return known, row, gated_parts(row, key)
            if known in self._parts:
                return known, None, self._parts[known]
        return name, None, []


class TensorParallel(NamedTuple):
    """How many ranks cut a tensor when it was saved; None where the checkpoint does not say."""

    dense: int | None
    expert: int | None

    def of(self, row: Param, name: str) -> int:
        count = self.expert if row.rule.is_expert else self.dense
        if count is None:
            raise FormatError(
                f"`{name}` is stored fused, in the order of the tensor-parallel ranks that saved"
                " it, and no stored argument gives their number",
                hint="restore the checkpoint's `args`, or save its components as separate tensors",
                tensors=(name,),
            )
        return count


def gated_parts(row: Param, key: Key) -> list[Param]:
    """Gate and up of a gated projection; none where a layer is not gated, or is stored split.

    A layer is gated where its row is made of two tensors, each a half of it.
    """
    if key.half is not None or row.rule.ep is not None or not is_fc1(key):
        return []
    if row.layout.shape[0] % 2:
        return []
    halves = [half_of(row, half) for half in (0, 1)]
    first, second = (set(half.layout.tensors) for half in halves)
    return halves if first and second and not first & second else []


def _by_rank(name: str, parts: Sequence[Param], tp: int) -> Param:
    """Parts one after the other on every rank, and rank after rank."""
    ranks: list[Layout] = [shard(_even(p, tp).layout, tp, r) for r in range(tp) for p in parts]
    return Param(name, concat(ranks), parts[0].rule, parts[0].value)


def _even(part: Param, tp: int) -> Param:
    if part.layout.shape[0] % tp:
        raise FamilyError(
            f"`{part.name}` has {part.layout.shape[0]} rows, which {tp} tensor-parallel ranks do"
            " not divide",
            tensors=(part.name,),
        )
    return part


def spellings(name: str) -> Iterator[str]:
    """A name, and what `torch_dist` may call the same tensor."""
    yield name
    for fused, alone in _NORMS.items():
        start, found, leaf = name.rpartition(alone)
        if found and (not start or start.endswith(".")):
            yield f"{start}{fused}{leaf}"
