"""Model and optimizer state as torch's DCP can save and load them without losing an element.

DCP takes a DTensor's shard for one box.  A gated projection's is two, gate and up, and DCP would
save or load neither right; here every box goes by itself.  TransformerEngine's `_extra_state`
(statistics of quantisation, of a size that varies) is left out unless it is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import PurePath
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    MetadataIndex,
    TensorProperties,
)
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from intarsia.errors import CoverageError, LayoutError, few
from intarsia.format.registry import live_format
from intarsia.live.model.module_state import is_extra_state
from intarsia.placement import Strided, boxes, placements_of
from intarsia.store.address import named
from intarsia.store.reading.folder import Folder


def model_state(
    module: nn.Module, extra_state: bool = False, held_by: str | PathLike[str] | None = None
) -> dict[str, Any]:
    """A model's state for `dcp.save`, and the target of `dcp.load`.

    With `extra_state`, TransformerEngine's entries are kept; to load those that a checkpoint has
    and no others, name its folder in `held_by`.
    """
    state = get_model_state_dict(module)
    held = _keys(named(held_by)) if held_by is not None else None
    return {
        name: _boxed(value)
        for name, value in state.items()
        if not is_extra_state(name)
        or (extra_state and (held is None or any(f".{k}".endswith(f".{name}") for k in held)))
    }


def optimizer_state(module: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
    """An optimizer's state for `dcp.save`, and the target of `dcp.load`; parameters without
    elements have none, on whichever rank: a rank without a shard still takes part."""
    found = get_optimizer_state_dict(module, optimizer)
    held = get_model_state_dict(module)
    empty = {name for name, p in held.items() if isinstance(p, Tensor) and not p.numel()}
    states: Mapping[str, Any] = found["state"]  # type: ignore[assignment]
    return {
        **found,
        "state": {
            name: {} if name in empty else {kind: _boxed(x) for kind, x in state.items()}
            for name, state in states.items()
        },
    }


def set_state(module: nn.Module, optimizer: Optimizer | None, state: Mapping[str, Any]) -> None:
    """Take what `dcp.load` put into `{"model": model_state(...), "optim": optimizer_state(...)}`.

    Only `_extra_state` may be absent.
    """
    given, wanted = set(state["model"]), set(get_model_state_dict(module))
    lost = sorted(name for name in wanted - given if not is_extra_state(name))
    if lost or given - wanted:
        raise CoverageError(
            f"the state lacks {len(lost)} of {len(wanted)} entries of the model"
            f" ({few(lost, 3)}) and has {len(given - wanted)} that the model lacks"
            f" ({', '.join(sorted(given - wanted)[:3])})",
            hint="load into model_state(module)",
        )
    set_model_state_dict(module, dict(state["model"]), options=StateDictOptions(strict=False))
    if optimizer is not None:
        set_optimizer_state_dict(module, optimizer, dict(state["optim"]))


def _keys(folder: PurePath) -> set[str]:
    with Folder(folder) as files:
        tensors, entries = live_format().everything(files)
    return {name for name, chunks in tensors.items() if chunks} | {entry.name for entry in entries}


@dataclass(frozen=True, slots=True)
class _Boxes:
    """The boxes of one rank's shard, each a view of it, by where they begin in the whole."""

    shape: torch.Size
    views: Mapping[torch.Size, Tensor]

    def write_items(self, name: str, _: object) -> list[WriteItem]:
        return [
            WriteItem(
                index=MetadataIndex(name, chunk.offsets),
                type=WriteItemType.SHARD,
                tensor_data=TensorWriteData(
                    chunk=chunk,
                    properties=TensorProperties.create_from_tensor(self.views[chunk.offsets]),
                    size=self.shape,
                ),
            )
            for chunk in self.chunks()
        ]

    def chunks(self) -> list[ChunkStorageMetadata]:
        return [ChunkStorageMetadata(to, view.size()) for to, view in self.views.items()]

    def view(self, index: MetadataIndex) -> Tensor:
        assert index.offset is not None
        return self.views[index.offset]


def _boxed(value: Any) -> Any:
    """A DTensor of the same memory that gives DCP its boxes; others go as they are.

    torch asks a DTensor's local tensor first for the three methods that are set here.
    """
    if not isinstance(value, DTensor):
        return value
    placements = placements_of(value)
    if not any(isinstance(p, Strided) for p in placements):
        return value
    alias = DTensor.from_local(
        value.to_local().detach(),
        value.device_mesh,
        value.placements,
        run_check=False,
        shape=value.shape,
        stride=value.stride(),
    )
    part: Any = alias._local_tensor
    place = value.device_mesh.get_coordinate()
    mesh = tuple(value.device_mesh.shape)
    found = boxes(value.shape, mesh, placements, place) if place is not None else []
    count = sum(to.size for _, to in found)
    if count != part.numel():
        raise LayoutError(
            f"placements {value.placements} give the rank at {place} {count} elements of"
            f" {list(value.shape)}, it holds {part.numel()}"
        )
    views = {torch.Size(to.offsets): part[at.slices] for at, to in found}
    held = _Boxes(value.shape, views)
    part.__create_write_items__ = held.write_items
    part.__create_chunk_list__ = held.chunks
    part.__get_tensor_shard__ = held.view
    return alias
