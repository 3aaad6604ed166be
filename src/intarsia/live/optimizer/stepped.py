"""The parameters that an optimizer steps, by the names that they have in the model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

import torch

from intarsia.errors import UsageError
from intarsia.live.model.names import modules_in, own_name

Names = TypeVar("Names")


class Stepped(NamedTuple):
    """A parameter that an optimizer steps, with its name and the number of its group."""

    name: str
    param: torch.Tensor
    group: int


def stepped(model: Any, optimizer: Any) -> tuple[Stepped, ...]:
    """The parameters of an optimizer under the names that the model has for them."""
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
    hint = "make the optimizer from the model's parameters, after a model on `meta` was loaded or given memory"
    return tuple(Stepped(*each) for each in named_members(optimizer, names, hint))


def named_members(
    optimizer: Any, names: Mapping[int, Names], hint: str
) -> Iterator[tuple[Names, Any, int]]:
    """Each parameter of an optimizer with its name, by its identity, and its group; raise where one has none."""
    for number, group in enumerate(optimizer.param_groups):
        for at, param in enumerate(group["params"]):
            if id(param) not in names:
                raise UsageError(
                    f"parameter {at} of group {number} ({list(param.shape)}) of the optimizer is not in"
                    " the model",
                    hint=hint,
                )
            yield names[id(param)], param, number
