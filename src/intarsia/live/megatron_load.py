"""Loading a checkpoint of any format into Megatron-FSDP's parameters and optimizer states.

Each rank reads the bytes of its own slices and nothing else; no rank waits for another, so a
rank that holds nothing of a parameter has nothing to do.  Main weights are filled from the
checkpoint's main weights where it has them, with all of their precision.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from intarsia.checkpoint import Checkpoint
from intarsia.errors import CoverageError, FamilyError, UsageError, few
from intarsia.family import Param, table_for
from intarsia.format.megatron.fsdp_dtensor.keys import FsdpRows, canonical
from intarsia.layout import Layout
from intarsia.live.loading.filling.fill import fill, prove
from intarsia.live.loading.optimizer import counter_holdings, set_counters
from intarsia.live.megatron.model import unwrapped_path
from intarsia.live.megatron_fsdp import ParameterSlice
from intarsia.live.model.holding import Holding, memory_of
from intarsia.run.budget import Budget
from intarsia.state.names import STEP, master_of, of_kind
from intarsia.value import PLAIN, Value

Name = Callable[[str], str]


@dataclass
class LoadedParameters:
    """What a load filled, and what it left as the caller had it."""

    filled: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        kept = f", kept as they were: {', '.join(self.kept)}" if self.kept else ""
        return f"{len(self.filled)} tensors filled{kept}"


def load_parameters(
    checkpoint: Checkpoint,
    params: Mapping[str, Any],
    states: Mapping[str, Mapping[str, Any]] | None = None,
    *,
    name_of: Name = canonical,
    zero_centered: bool | None = None,
) -> LoadedParameters:
    """Fill a model's parameters, and their states where given, each rank its own slices.

    `name_of` gives the global name of a local one, where expert parallelism numbers experts again.
    `zero_centered` is Megatron's `layernorm_zero_centered_gamma` of the model that is filled.
    """
    table = table_for(checkpoint.config, zero_centered=zero_centered)
    if table is None:
        raise FamilyError(
            f"the model family of {checkpoint.manifest.path} is not known",
            hint="open it with its config.json",
        )
    states = states or {}
    if strange := [*states.keys() - params.keys()]:
        raise UsageError(
            f"states are given of {len(strange)} parameters that are not: {few(sorted(strange), 4)}",
            hint="give states under the names of their parameters",
        )
    rows, loader = FsdpRows(table), _Loader(checkpoint)
    for name, param in params.items():
        item, known = ParameterSlice.of(param), canonical(unwrapped_path(name_of(name)))
        row = rows.local(known, item.shape, item.tp, item.tp_rank)
        loader.weight(name, row, item, param)
        for kind, value in states.get(name, {}).items():
            loader.state(f"{name}.{kind}", row, item, kind, value)
    if loader.missing:
        shown = few(loader.missing, 4)
        raise CoverageError(
            f"{len(loader.missing)} tensors have no source in {checkpoint.manifest.path}: {shown}",
            hint="use the model's own checkpoint, or leave the optimizer state out",
        )
    counters = counter_holdings(checkpoint.manifest, loader.counters)
    steps, fillings = (
        prove(held, checkpoint.manifest) for held in (counters.values(), loader.holdings)
    )
    fill(checkpoint.source, steps, Budget.of(None, None))
    set_counters(loader.counters, counters)
    fill(checkpoint.source, fillings, Budget.of(None, None))
    return loader.loaded


class _Loader:
    """Everything is found first; the first byte is read when nothing is missing."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        self.holdings: list[Holding] = []
        self.counters: list[tuple[torch.Tensor, tuple[str, ...]]] = []
        self.missing: list[str] = []
        self.loaded = LoadedParameters()

    def weight(self, name: str, row: Param | None, item: ParameterSlice, param: Any) -> None:
        if row is None:
            self.missing.append(name)
            return
        masters = map(master_of, row.layout.tensors)
        layout = row.layout
        if all(n in self.checkpoint for n in masters):
            layout = layout.rename(master_of)
        self._hold(name, layout, row.value, item, param)

    def state(
        self, name: str, row: Param | None, item: ParameterSlice, kind: str, value: Any
    ) -> None:
        if row is None or not hasattr(value, "ndim"):
            self.loaded.kept.append(name)
        elif not value.ndim or (kind == STEP and value.shape == (1,)):
            self._count(name, tuple(map(of_kind(kind), row.layout.tensors)), value)
        else:
            self._hold(name, row.layout.rename(of_kind(kind)), PLAIN, item, value)

    def _count(self, name: str, names: tuple[str, ...], tensor: Any) -> None:
        if any(n not in self.checkpoint for n in names):
            self.missing.append(name)
            return
        self.counters.append((memory_of(tensor), names))
        self.loaded.filled.append(name)

    def _hold(
        self, name: str, layout: Layout, value: Value, item: ParameterSlice, tensor: Any
    ) -> None:
        if any(n not in self.checkpoint for n in layout.tensors):
            self.missing.append(name)
            return
        local = memory_of(tensor)
        if local.numel() != item.size:
            raise CoverageError(
                f"`{name}` has {local.numel():,} elements on this rank, its slice"
                f" [{item.start}, {item.stop}) has {item.size:,}"
            )
        self.loaded.filled.append(name)
        if not item.size:
            return
        part = layout.reshape(-1).narrow(0, item.start, item.stop)
        self.holdings.append(Holding(name, part.reshape(*local.shape), local, value))
