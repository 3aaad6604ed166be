"""What a load brings an optimizer: state, counters and settings, found before the first byte is read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from intarsia.errors import CoverageError
from intarsia.family import Param
from intarsia.format.naming.wrappers import bare, without_wrappers
from intarsia.layout import Layout
from intarsia.live.entries import unpack
from intarsia.live.loading.kept import NO_SETTINGS, NO_STATE
from intarsia.live.model.holding import Holding
from intarsia.live.optimizer.groups import (
    agreed_groups,
    check_classes,
    check_settings,
    put_groups,
)
from intarsia.live.optimizer.named import NamedOptimizer
from intarsia.live.optimizer.own_state_dict import check_after_loading
from intarsia.live.optimizer.several import each_of
from intarsia.live.optimizer.state import StateToFill, put, state_to_fill
from intarsia.live.optimizer.state_memory import PartOf
from intarsia.live.optimizer.tensor_settings import with_tensors
from intarsia.live.optimizer.values import shared_in
from intarsia.opened.entries import groups_of
from intarsia.planning.manifest import Manifest
from intarsia.state.names import CLASS, StateName, kinds_by_parameter


def rows_of_state(rows: Mapping[str, Param], manifest: Manifest) -> Mapping[str, Param]:
    """The rows of parameters, by the names that their state has where only weights have DDP's word in theirs,
    or the key of their section, as what PEFT adds beside the model.

    Torch's get_optimizer_state_dict takes that word out, and a state dict of the wrapper's own has it.
    """
    kinds = kinds_by_parameter(map(StateName.of, manifest.logical))
    stated = kinds.keys() | kinds_by_parameter(map(StateName.of_torch, manifest.entries)).keys()
    bare_ones = stated - manifest.logical.keys()
    found = dict(rows)
    for name, row in rows.items() if bare_ones else ():
        at, plain = row.layout.tensors, bare(name)
        alone = len(at) == 1 and at[0] not in stated and plain in bare_ones
        if alone and (at[0].endswith(f".{plain}") or without_wrappers(at[0], {plain}) is not None):
            found[name] = replace(
                row, name=plain, layout=row.layout.rename({at[0]: plain}.__getitem__)
            )
    return found


@dataclass(frozen=True)
class OptimizerFilling:
    """Memory for an optimizer's state, and the settings of its groups, where they are the checkpoint's."""

    optimizer: NamedOptimizer
    manifest: Manifest
    entries: Mapping[str, bytes]
    states: StateToFill
    counters: Mapping[str, Holding]
    agreed: Sequence[Mapping[str, Any] | None] | None
    kept: Mapping[str, str]

    @staticmethod
    def of(
        optimizer: NamedOptimizer,
        rows: Mapping[str, Param],
        manifest: Manifest,
        entries: Mapping[str, bytes],
        part_of: PartOf,
        *,
        strict: bool,
        hyperparameters: str,
        optimizer_class: str,
    ) -> OptimizerFilling:
        """Raise where what is stored is not this optimizer's; `rows` are those of parameters' state."""
        agreed, lost, stored = None, list[str](), hyperparameters == "stored"
        groups = groups_of(manifest, entries)
        saved = unpack(entries[CLASS], CLASS) if CLASS in entries else None
        if optimizer_class == "same" or stored:
            check_classes(saved, optimizer, rows, groups, manifest.path)
        if stored:
            groups = with_tensors(groups, manifest, entries)
            agreed = agreed_groups(optimizer, rows, groups)
        owned = optimizer.settings.param_groups
        settings = [
            {**own, **(found or {})}
            for own, found in zip(owned, agreed or [None] * len(owned), strict=True)
        ]
        states = state_to_fill(
            optimizer, rows, manifest, entries, part_of, groups, settings, strict=strict
        )
        counters = counter_holdings(manifest, states.counters)
        if optimizer.whole is not None:
            optimizer.whole.check(states.fresh, manifest.path)
        if agreed is not None:
            lost = check_settings(agreed, optimizer.settings, manifest.path, strict=strict)
        kept = {f"hyperparameters of group {k}": NO_SETTINGS for k in lost}
        kept |= {f"optimizer state of {name}": NO_STATE for name in states.lost}
        return OptimizerFilling(optimizer, manifest, entries, states, counters, agreed, kept)

    @property
    def holdings(self) -> list[Holding]:
        """All memory that is to be filled."""
        return [*self.states.holdings, *self.counters.values()]

    def put(self) -> list[str]:
        """Give the optimizer what was read; remarks on its settings."""
        notes = ["the optimizer keeps its own hyperparameters, as asked"]
        set_counters(self.states.counters, self.counters)
        put(self.optimizer.held, self.states.fresh, shared_in(self.entries))
        if self.agreed is not None:
            notes = put_groups(self.optimizer.settings, self.agreed)
        if self.optimizer.whole is not None:
            self.optimizer.whole.give(self.manifest.path)
            return notes
        for one in each_of(self.optimizer.held):
            if isinstance(one, torch.optim.Optimizer):
                # As in torch's load_state_dict: numbers that older versions stored become tensors.
                one.__setstate__({"state": one.state, "param_groups": one.param_groups})
        for one in each_of(self.optimizer.settings):
            for hook in getattr(one, "_optimizer_load_state_dict_post_hooks", {}).values():
                hook(one)
        check_after_loading(self.optimizer.held)
        return notes


def counter_holdings(
    manifest: Manifest, counters: Iterable[tuple[torch.Tensor, tuple[str, ...]]]
) -> dict[str, Holding]:
    """Memory for each step that the checkpoint has of the counters' parameters."""
    found: dict[str, Holding] = {}
    for name in dict.fromkeys(name for _, names in counters for name in names):
        dtype = getattr(torch, manifest.logical[name].dtype.torch)
        found[name] = Holding(name, Layout.of(name, ()), torch.empty((), dtype=dtype, device="cpu"))
    return found


def set_counters(
    counters: Iterable[tuple[torch.Tensor, tuple[str, ...]]], read: Mapping[str, Holding]
) -> None:
    """Set the steps that were read; those of the parts of one parameter must agree."""
    for tensor, names in counters:
        first, *others = (read[name].tensor for name in names)
        if any(not _same(x, first) for x in others):
            values = sorted({x.item() for x in (first, *others)})
            raise CoverageError(
                f"{names[0]} and {len(others)} other tensors are {values}, and one"
                " parameter holds them all",
                hint="the parts of the checkpoint were saved at different steps",
            )
        tensor.copy_(first)


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.dtype == b.dtype and (a.item() == b.item() or bool(a != a and b != b))
