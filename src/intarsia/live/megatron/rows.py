"""What the tensors of a live Megatron model hold of the logical ones, on this rank.

A DTensor's shape is that of all ranks, a plain tensor's is one rank's: `ParameterSlice` keeps them apart, so
that tensor parallelism divides once.  Nothing is asked of other ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from intarsia.errors import FamilyError, few
from intarsia.family import Param, Table, table_for
from intarsia.format.megatron.fsdp_dtensor.keys import FsdpRows
from intarsia.layout import Layout
from intarsia.live.loading.filling.fill import as_bytes
from intarsia.live.megatron.boxes import boxes_of_piece
from intarsia.live.megatron.model import Live, live_tensors, pipeline_models, transformer_config
from intarsia.live.megatron_fsdp import ParameterSlice, local_elements
from intarsia.live.megatron_settings import hub_config
from intarsia.live.model.holding import dtype_of, held_layout, is_dtensor, memory_of
from intarsia.live.model.names import LiveRows
from intarsia.live.saving.parts import HeldPart
from intarsia.opened.lazy_tensor import as_torch
from intarsia.run.losses import Changed, recentred
from intarsia.value import Change, Window
from intarsia.value.bits import bits_dtype


@dataclass(frozen=True, slots=True)
class HeldTensor:
    """A live tensor's memory here, and the row that says what its elements are."""

    live: Live
    row: Param | None
    memory: torch.Tensor


def held_tensors(into: Any, config: Mapping[str, Any] | None) -> list[HeldTensor]:
    """The memory of every tensor of a Megatron model; `row` is None where no table has its name."""
    rows = FsdpRows(_table(into, config))
    return [_held(live, rows) for live in live_tensors(into)]


def memory_and_rows(
    into: Any, config: Mapping[str, Any] | None
) -> tuple[dict[str, torch.Tensor], LiveRows]:
    """The memory of every tensor by name, and the row of each."""
    held = held_tensors(into, config)
    found = {each.live.name: each.row for each in held if each.row is not None}
    missing = tuple(each.live.name for each in held if each.row is None)
    return {each.live.name: each.memory for each in held}, LiveRows(found, missing)


def parts_of_megatron(
    into: Any, config: Mapping[str, Any] | None
) -> tuple[list[HeldPart], list[Changed]]:
    """The boxes of logical tensors that this rank holds, and the tensors that they hold rounded."""
    table = _table(into, config)
    held = held_tensors(into, config)
    unknown = [each.live.name for each in held if each.row is None]
    if unknown:
        raise FamilyError(
            f"{len(unknown)} tensors of the model are not in the table of {table.family!r}:"
            f" {few(unknown, 4)}",
            hint="give the `config` that the model was built from",
        )
    parts, changed = list[HeldPart](), list[Changed]()
    for each in held:
        assert each.row is not None
        numbers, lost = _numbers(each.row, each.memory)
        own = [*_parts(each.row, numbers, table)]
        parts += own
        if lost:
            changed.append(Changed(own[0].name, numbers.numel(), own[0].dtype.name, recentred=lost))
    return parts, changed


def _table(into: Any, config: Mapping[str, Any] | None) -> Table:
    zero_centered = getattr(
        transformer_config(pipeline_models(into)[0]), "layernorm_zero_centered_gamma", None
    )
    table = table_for(hub_config(config), zero_centered=zero_centered)
    if table is None:
        found = config and config.get("model_type")
        raise FamilyError(
            "reading a Megatron model's tensors needs the model's configuration, and"
            + (f" model_type {found!r} has no table" if found else " none was given"),
            hint="give `config=`, the model's config.json",
        )
    return table


def _held(live: Live, rows: FsdpRows) -> HeldTensor:
    item = live.item
    row = rows.local(live.known, item.shape, item.tp, item.tp_rank, item.tp_axis)
    memory = memory_of(live.tensor)
    if row is not None:
        row = replace(row, name=live.name, layout=_layout(row.layout, live.tensor, item))
    return HeldTensor(live, row, memory)


def _layout(whole: Layout, tensor: Any, item: ParameterSlice) -> Layout:
    """The layout of the memory that is here, given that of the tensor-parallel part."""
    if not is_dtensor(tensor):
        return whole
    if not hasattr(tensor, "megatron_fsdp_dist_index"):
        return held_layout(whole, tensor)
    shape = memory_of(tensor).shape
    local_elements(tensor, item)
    return whole.reshape(-1).narrow(0, item.start, item.stop).reshape(*shape)


def _numbers(row: Param, memory: torch.Tensor) -> tuple[torch.Tensor, int]:
    """The numbers of elements that a model may keep in its own way, and how many of them are rounded."""
    flat, dtype = memory.reshape(-1), dtype_of(memory, row.name)
    if row.value.is_plain:
        return flat, 0
    change = Change(dtype, dtype, row.value)
    held = Window(as_bytes(flat.cpu().contiguous()).view(bits_dtype(dtype)), dtype)
    found = change.of(held)
    numbers = as_torch(found.view(np.uint8), dtype, found.shape)
    return numbers.to(flat.device), recentred(change, held, found)


def _parts(row: Param, flat: torch.Tensor, table: Table) -> Iterator[HeldPart]:
    dtype = dtype_of(flat, row.name)
    for piece in row.layout.pieces:
        name = table.tied.get(piece.tensor, piece.tensor)
        shape = table.logical[name]
        for box, over in boxes_of_piece(piece, shape):
            sizes = [loop.n for loop in over.loops]
            steps = [loop.to for loop in over.loops]
            view = flat.as_strided(sizes, steps, flat.storage_offset() + over.to)
            yield HeldPart(name, dtype, shape, box, (), view)
