"""Settings of an optimizer's groups that are tensors, or have tensors in them: read, compared, and put in their places."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from intarsia.checkpoint import Checkpoint
from intarsia.errors import CoverageError, UsageError
from intarsia.format.optimizer_state.groups_in_entries import tensors_of_members
from intarsia.format.optimizer_state.parameter_groups import (
    Numbered,
    ParameterGroup,
    ParameterGroups,
    unplain_settings,
)
from intarsia.live.entries import unpack, with_each_tensor
from intarsia.planning.manifest import Manifest
from intarsia.state.names import TORCH_GROUPS


@dataclass(frozen=True)
class TensorSetting:
    """A setting that is a tensor, written with all of its digits."""

    tensor: Any

    def __repr__(self) -> str:
        return f"tensor({self.tensor.tolist()!r}, {self.tensor.dtype})"


def is_storable(value: Any) -> bool:
    """Whether a setting is of numbers, text and tensors, in lists, tuples and dicts: what comes back as it was."""
    if type(value) is dict:
        return all(type(k) in (str, int) and is_storable(x) for k, x in value.items())
    if type(value) in (list, tuple):
        return all(map(is_storable, value))
    return isinstance(value, torch.Tensor) or type(value) in (type(None), bool, int, float, str)


def with_tensors(
    groups: ParameterGroups | None, manifest: Manifest, entries: Mapping[str, bytes]
) -> ParameterGroups | None:
    """The groups with those settings that are tensors of the checkpoint, or objects with tensors in them."""
    found: dict[str, Any] = {
        name: _restored(unpack(entries[name], f"`{name}`"), name, manifest.path)
        for name in unplain_settings(entries)
    }
    with Checkpoint(manifest) as checkpoint:
        for name in manifest.logical:
            if name.startswith(TORCH_GROUPS):
                found[name] = TensorSetting(checkpoint[name][...].clone())
    if not found:
        return groups
    each, flat = list(groups.each) if groups else [], bool(groups and groups.flat)
    if flat:  # those that are alike but for such tensors were taken as one
        each = [
            ParameterGroup((member,), group.fields) for group in each for member in group.members
        ]
    places = {group.members[0] if flat else str(k): k for k, group in enumerate(each)}
    tensors = tensors_of_members(manifest)

    def members(of: str) -> tuple[str, ...]:
        return tensors(of) if flat else (of,)

    for name, value in found.items():
        rest = name.removeprefix(TORCH_GROUPS)
        ends = (at for at, letter in enumerate(rest) if letter == ".")
        end = next((at for at in ends if places.keys() >= {*members(rest[:at])}), None)
        if end is None:
            raise CoverageError(
                f"`{name}` of {manifest.path} is a setting of an unknown group",
                hint='load with hyperparameters="mine" to keep those that the optimizer has',
            )
        for k in map(places.__getitem__, members(rest[:end])):
            each[k] = replace(each[k], fields={**each[k].fields, rest[end + 1 :]: value})
    return ParameterGroups(tuple(each), flat)


def _restored(value: Any, name: str, where: str) -> Any:
    """An object with its tensors as settings; raise where something in it is not restored."""
    if not is_storable(value):
        raise UsageError(
            f"`{name}` of {where} holds more than numbers, text and tensors, and is not restored",
            hint='load with hyperparameters="mine" to keep the settings that the optimizer has',
        )
    return with_each_tensor(value, TensorSetting)


def in_order(value: Any, mine: Any, name: str) -> Any:
    """A stored value with the lists that torch took apart by number; `mine` says that it was one."""
    if not isinstance(value, dict):
        return value
    if not isinstance(value, Numbered):
        each = mine if isinstance(mine, dict) else {}
        return {k: in_order(x, each.get(k), f"{name}.{k}") for k, x in value.items()}
    numbers = [str(k) for k in range(len(value))]
    if type(mine) not in (list, tuple) or len(mine) != len(value) or value.keys() != {*numbers}:
        raise UsageError(
            f"`{name}`, a setting of a parameter group, was a list or a dictionary with numbers for keys, which"
            " its names in the checkpoint do not say, and nor does the setting that the optimizer has",
            hint='make the optimizer with the settings that were saved, or load with hyperparameters="mine" to'
            " keep those that it has",
        )
    pairs = zip(numbers, mine, strict=True)
    return type(mine)(in_order(value[k], own, f"{name}.{k}") for k, own in pairs)


class Settling:
    """The settings of a checkpoint in the place of those that an optimizer has.

    Groups that were given one tensor (as the learning rate, say) still have one where the checkpoint has
    one number for them, since a program that fills it means all of them.
    """

    def __init__(self) -> None:
        self._given: list[tuple[torch.Tensor, torch.Tensor]] = []

    def alike(self, mine: Any, value: Any) -> Any:
        """A stored value in the type that the optimizer has (tuples come back as lists, say)."""
        if isinstance(value, TensorSetting):
            device = mine.device if isinstance(mine, torch.Tensor) else "cpu"
            return self._one(mine, value.tensor.to(device, copy=True))
        if isinstance(mine, torch.Tensor) and type(value) in (int, float):
            return self._one(mine, torch.full_like(mine, value))
        if isinstance(value, dict):
            each = mine if isinstance(mine, dict) else {}
            return {k: self.alike(each.get(k), x) for k, x in value.items()}
        if type(value) in (tuple, list):
            same = type(mine) in (tuple, list)
            own = mine if same and len(mine) == len(value) else [None] * len(value)
            found = [self.alike(x, y) for x, y in zip(own, value, strict=True)]
            return (type(mine) if same else type(value))(found)
        return value

    def _one(self, mine: Any, found: torch.Tensor) -> torch.Tensor:
        """The tensor that was given already in the place of the same one, where it is equal."""
        if not isinstance(mine, torch.Tensor):
            return found
        for before, given in self._given:
            if before is mine and repr(TensorSetting(given)) == repr(TensorSetting(found)):
                return given
        self._given.append((mine, found))
        return found
