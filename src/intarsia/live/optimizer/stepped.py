"""The parameters that an optimizer steps, by the names that they have in the model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from intarsia.errors import UsageError
from intarsia.live.model.names import modules_in, own_name
from intarsia.live.optimizer.classes import Opened

if TYPE_CHECKING:
    import torch


class Stepped(NamedTuple):
    """A parameter that an optimizer steps, with its name and the number of its group."""

    name: str
    param: torch.Tensor
    group: int


def stepped(model: Any, optimizer: Any) -> tuple[Stepped, ...]:
    """The parameters of an optimizer under the names that the model has for them."""
    return tuple(_stepped(model, optimizer))


@dataclass(frozen=True)
class Steps:
    """The parameters whose state this rank holds, and those that the groups of settings name."""

    held: tuple[Stepped, ...]
    settings: tuple[Stepped, ...]

    @staticmethod
    def of(model: Any, own: Opened) -> Steps:
        """The names of an optimizer's parameters, looked up once."""
        held = stepped(model, own.held)
        return Steps(held, held if own.settings is own.held else stepped(model, own.settings))


def _stepped(model: Any, optimizer: Any) -> Iterator[Stepped]:
    modules = list(modules_in(model))
    if not modules:
        raise UsageError(
            "optimizer state is stored under the names of the model's parameters",
            hint="give the module, not its state dict",
        )
    names: dict[int, str] = {}
    for prefix, module in modules:
        clean = own_name(module)
        for name, param in module.named_parameters(remove_duplicate=False):
            names.setdefault(id(param), prefix + clean(name))
    for number, group in enumerate(optimizer.param_groups):
        for at, param in enumerate(group["params"]):
            if id(param) not in names:
                raise UsageError(
                    f"parameter {at} of group {number} ({list(param.shape)}) of the optimizer is not in"
                    " the model",
                    hint="make the optimizer from the model's parameters, after a model on `meta` was"
                    " loaded or given memory",
                )
            yield Stepped(names[id(param)], param, number)
