"""The memory into which a load reads one kind of a parameter's state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from intarsia.errors import CoverageError, UsageError
from intarsia.family import Param
from intarsia.layout import Layout
from intarsia.live.model.holding import Holding, is_dtensor, is_present, memory_of
from intarsia.live.optimizer.classes import NUMBERS, is_torchs, keeps_shape
from intarsia.live.optimizer.several import held_by
from intarsia.live.optimizer.stepped import Stepped
from intarsia.planning.manifest import Logical, Manifest
from intarsia.state.names import of_kind

PartOf = Callable[[str, Layout, torch.Tensor], Layout]
"""What of a layout goes into a tensor that is cut as the parameter of a name."""


@dataclass(frozen=True)
class ParameterState:
    """The state that a checkpoint holds of one parameter, which is made of the tensors `names`."""

    each: Stepped
    row: Param
    names: tuple[str, ...]
    manifest: Manifest
    held: Any

    def memory(
        self, kind: str, part_of: PartOf
    ) -> tuple[torch.Tensor, Holding | tuple[str, ...] | None]:
        """Memory for one kind, and what is read into it: a holding, or the tensors of one number.

        Nothing is read on a rank that holds nothing of the parameter.
        """
        each, called = self.each, f"{self.each.name}.{kind}"
        stored = [self.manifest.logical[of_kind(kind)(n)] for n in self.names]
        dtype = getattr(torch, stored[0].dtype.torch)
        old = self.held.state.get(each.param, {}).get(kind)
        if (each.param.dim() or kind in NUMBERS) and all(x.shape == () for x in stored):
            return _counter(old, dtype, each, self.held), tuple(x.name for x in stored)
        one = held_by(self.held, each.group)
        if not self._has_its_shapes(stored):
            whole = self._whole(kind, stored[0], one)
            return whole, Holding(called, Layout.of(stored[0].name, stored[0].shape), whole)
        of_param = self.manifest.logical.get(self.names[0])
        if of_param is not None and of_param.dtype == stored[0].dtype:
            dtype = _as_param(kind, dtype, each.param, one)
        memory = _like(each.param, old, dtype)
        if not is_present(each.param):
            return memory, None
        layout = part_of(each.name, self.row.layout.rename(of_kind(kind)), memory)
        return memory, Holding(called, layout, memory_of(memory))

    def _has_its_shapes(self, stored: Sequence[Logical]) -> bool:
        """Whether a kind of state is stored in the shapes of the tensors that its parameter is made of."""
        shapes = [x.shape for x in stored]
        if all(n in self.manifest.logical for n in self.names):
            return shapes == [self.manifest.logical[n].shape for n in self.names]
        return len(shapes) != 1 or shapes == [self.row.layout.shape] or not self._is_one_tensor

    @property
    def _is_one_tensor(self) -> bool:
        """Whether the parameter is one logical tensor as it is."""
        first, *others = self.names
        return not others and self.row.layout == Layout.of(first, self.row.layout.shape)

    def _whole(self, kind: str, stored: Logical, optimizer: Any) -> torch.Tensor:
        """Memory for state of another shape than its parameter's (Adafactor's factors), as it is stored."""
        param, name, shape = self.each.param, self.each.name, self.row.layout.shape
        if keeps_shape(kind, optimizer):
            raise CoverageError(
                f"`{kind}` of `{name}` has shape {list(stored.shape)} in {self.manifest.path}, and its"
                f" parameter {list(shape)}",
                hint="the checkpoint is damaged, or another optimizer's: use another, or load only the"
                " model (optimizer=None)",
            )
        if is_dtensor(param):
            raise stored_whole(kind, name, "sharded over ranks")
        if not self._is_one_tensor or tuple(param.shape) != tuple(shape):
            raise stored_whole(kind, name, "put together from other tensors, or from a part")
        dtype = getattr(torch, stored.dtype.torch)
        return torch.empty(stored.shape, dtype=dtype, device=param.device)


def stored_whole(kind: str, name: str, now: str) -> UsageError:
    """The refusal of state without its parameter's shape where the parameter is no longer whole."""
    return UsageError(
        f"`{kind}` of `{name}` was stored whole and does not have the shape of its parameter,"
        f" which is now {now}",
        hint="load it into plain parameters, or load only the model (optimizer=None)",
    )


def _counter(old: Any, stored: torch.dtype, each: Stepped, optimizer: Any) -> torch.Tensor:
    """Memory for a state without axes; torch wants that of fused steps beside the parameter."""
    group = optimizer.param_groups[each.group]
    beside = group.get("capturable") or group.get("fused")
    device = old.device if isinstance(old, torch.Tensor) else each.param.device if beside else "cpu"
    return torch.zeros((), dtype=stored, device=device)


def _as_param(kind: str, stored: torch.dtype, param: torch.Tensor, optimizer: Any) -> torch.dtype:
    """The type of a state that was stored in its parameter's: torch's classes compute with both at once."""
    floating = stored.is_floating_point and param.is_floating_point()
    follows = floating and kind != "step" and is_torchs(optimizer)
    return param.dtype if follows else stored


def _like(param: torch.Tensor, old: Any, stored: torch.dtype) -> torch.Tensor:
    """The state's own memory where it lies as its parameter does, else memory that does."""
    if isinstance(old, torch.Tensor):
        same = old.shape == param.shape and is_dtensor(old) == is_dtensor(param)
        if same and getattr(old, "placements", None) == getattr(param, "placements", None):
            return old
        stored = old.dtype
    return torch.empty_like(param, dtype=stored, requires_grad=False).detach()
