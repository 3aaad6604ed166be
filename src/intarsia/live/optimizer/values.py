"""What an optimizer keeps beside tensors of its parameters' shapes: entries, each value in its own type.

optimizer.state.<parameter>.<kind>   a number, None, a list, or a tensor of another shape (torch's spelling)
optimizer.shared_state.<key>         state that belongs to no parameter
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

import torch

from intarsia.errors import UsageError
from intarsia.format.naming.wrappers import bare
from intarsia.live.entries import pack, unpack
from intarsia.live.model.holding import is_dtensor
from intarsia.state.names import MASTER, SHARED_STATE, StateName

_KIND = re.compile(r"[A-Za-z_0-9]+")


def is_value(value: Any, param: Any) -> bool:
    """Whether a state is kept as a value: no tensor, or one of another shape than its plain parameter's."""
    if not isinstance(value, torch.Tensor):
        return True
    if is_dtensor(param) or is_dtensor(value):
        return False
    return value.dim() != 0 and value.shape != param.shape


@cache
def _is_kind(kind: Any) -> bool:
    return isinstance(kind, str) and _KIND.fullmatch(kind) is not None and kind != MASTER


def check_kind(kind: Any, name: str) -> None:
    """Raise where a kind of state has a name that a checkpoint cannot hold."""
    if not _is_kind(kind):
        raise UsageError(
            f"a state of `{name}` has the name {kind!r}",
            hint="names of states consist of letters, digits and underscores, and `master` is"
            " reserved for main weights: rename it",
        )


def values_of(params: Iterable[tuple[str, Any]], state: Mapping[Any, Any]) -> dict[str, bytes]:
    """The entries of an optimizer's state, for parameters under their names; raise where some has no name."""
    found: dict[str, bytes] = {}
    for name, param in params:
        for kind, value in state.get(param, {}).items():
            check_kind(kind, name)
            if is_value(value, param):
                entry = StateName(kind, bare(name)).as_torch
                found[entry] = pack(value, entry)
    for key, value in state.items():
        if isinstance(key, torch.Tensor):
            continue
        if not isinstance(key, str):
            raise UsageError(
                f"the optimizer keeps state under {key!r} of type {type(key).__name__}",
                hint="use text as keys",
            )
        found[SHARED_STATE + key] = pack(value, SHARED_STATE + key)
    return found


def state_value(entries: Mapping[str, bytes], param: str, kind: str, device: Any) -> Any:
    """A state that is kept as a value; tensors with axes go to their parameter's device."""
    name = StateName(kind, param).as_torch
    return _on(unpack(entries[name], f"`{name}`"), device)


def has_axes(value: Any) -> bool:
    """Whether a value is or holds a tensor with axes."""
    if isinstance(value, (list, tuple)):
        return any(map(has_axes, value))
    if isinstance(value, dict):
        return any(map(has_axes, value.values()))
    return getattr(value, "ndim", 0) > 0


def _on(value: Any, device: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(device) if value.dim() else value
    if type(value) in (list, tuple):
        return type(value)(_on(x, device) for x in value)
    return {k: _on(x, device) for k, x in value.items()} if type(value) is dict else value


def shared_in(entries: Mapping[str, bytes]) -> dict[str, Any]:
    """The state that belongs to no parameter."""
    return {
        name.removeprefix(SHARED_STATE): unpack(data, f"`{name}`")
        for name, data in entries.items()
        if name.startswith(SHARED_STATE)
    }
