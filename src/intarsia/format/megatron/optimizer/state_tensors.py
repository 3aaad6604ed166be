"""Optimizer state in Megatron's checkpoints that is stored by parameter.

    optimizer.state.exp_avg.<key>      shaped and cut as the model's tensor `<key>`
    optimizer.state.fp32_param.<key>   the same for the fp32 main weight, also called `param`

Megatron-core up to 0.15 flattens each rank's shard of such a tensor: element `[i, j, f]` of
what is stored is element `f` of the shard in row `i` and column `j` of the shards' grid.  The
shape of the tensor itself is beside it in the metadata.  State that is stored in buckets, as
the distributed optimizer lays it out in memory, is read in `buckets`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import Any

from intarsia.errors import FormatError
from intarsia.family import Param
from intarsia.format.torch_file.inert import Inert
from intarsia.layout import Layout
from intarsia.mesh import Shape
from intarsia.state.names import MASTER, StateName, of_kind
from intarsia.value import PLAIN

_STATE = re.compile(r"^(?:chained_\d+\.)?optimizer\.state\.(?P<kind>[^.]+)\.(?P<key>.+)$")
_MASTERS = ("param", "fp32_param")


def state_of(name: str) -> tuple[str, str] | None:
    """The kind of state and the model's key that a stored name has; None for any other."""
    found = _STATE.match(name)
    return (state_kind(found["kind"]), found["key"]) if found else None


def state_kind(word: str) -> str:
    """Our word for a kind of state: Megatron has two for the fp32 main weight."""
    return MASTER if word in _MASTERS else word


def stored_key(name: str) -> str:
    """Megatron's key of a target: its optimizer state by kind first."""
    state = StateName.of(name)
    if state is None:
        return name
    word = "param" if state.kind == MASTER else state.kind
    return f"optimizer.state.{word}.{state.parameter}"


def state_row(row: Param, kind: str) -> Param:
    """The row of a parameter's state; moments are not shifted with their parameter."""
    layout = row.layout.rename(of_kind(kind))
    value = row.value if kind == MASTER else PLAIN
    return Param(of_kind(kind)(row.name), layout, row.rule, value)


def flattened_shape(extra: Mapping[str, Any], name: str, leading: int) -> Shape | None:
    """The shape of a tensor that is stored by flattened shards; None where it is stored as it is."""
    of_all = extra.get("mcore_data")
    entry = of_all.get(name) if isinstance(of_all, dict) else None
    fields = entry.fields if isinstance(entry, Inert) else entry if isinstance(entry, dict) else {}
    shape = fields.get("nd_reformulated_orig_global_shape")
    if not isinstance(shape, (tuple, list)) or not all(type(n) is int and n >= 0 for n in shape):
        return None
    return tuple(shape[leading:])


def flatten_shards(row: Param, stored: Shape, where: str) -> Param:
    """The row as it lies in shards that are flattened on a new last axis."""
    shape = row.layout.shape
    grid, flat = stored[:-1], stored[-1]
    sizes = [n // g if g and n % g == 0 else 0 for n, g in zip(shape, grid, strict=False)]
    if len(grid) != len(shape) or prod(sizes) != flat:
        raise FormatError(
            f"`{where}` is stored as {list(stored)}, which is not a cut of {list(shape)} into"
            " equal shards",
            tensors=(where,),
        )
    cut = [n for pair in zip(grid, sizes, strict=True) for n in pair]
    axes = (*range(0, len(cut), 2), *range(1, len(cut), 2))
    layout: Layout = row.layout.reshape(*cut).permute(*axes).reshape(*stored)
    return replace(row, layout=layout)
