"""What an optimizer says of itself in a state dict of its own making, compared with what it holds.

A class whose `state_dict()` computes (moments in fp16 beside their scales) holds numbers that mean nothing alone.
"""

from __future__ import annotations

from typing import Any

import torch

from intarsia.errors import UsageError
from intarsia.live.model.holding import is_dtensor, memory_of
from intarsia.live.optimizer.several import each_of

_HOOKS = ("_optimizer_state_dict_pre_hooks", "_optimizer_state_dict_post_hooks")


def own_state_dict(optimizer: Any) -> dict[str, Any] | None:
    """The state dict of an optimizer that makes it itself; None where it is torch's."""
    own = getattr(type(optimizer), "state_dict", None)
    if own is None or (
        own is torch.optim.Optimizer.state_dict
        and not any(getattr(optimizer, hooks, None) for hooks in _HOOKS)
    ):
        return None
    found: dict[str, Any] = optimizer.state_dict()
    return found


def check_same_numbers(optimizer: Any, given: dict[str, Any] | None) -> None:
    """Raise where a tensor of its state is another in its state dict."""
    states = given.get("state", {}) if given else {}
    params = [p for group in optimizer.param_groups for p in group["params"]] if states else []
    for number, param in enumerate(params):
        said = states.get(number)
        if not isinstance(said, dict):
            continue
        for kind, held in optimizer.state.get(param, {}).items():
            if _are_other(said.get(kind), held):
                raise UsageError(
                    f"{type(optimizer).__name__} holds other numbers in `{kind}` of parameter {number} than"
                    " its state_dict() has, which nothing beside them explains",
                    hint="let it keep its state as it is (FusedAdam: exp_avg_dtype=torch.float32 or"
                    " bfloat16), or save and load it with torch (get_optimizer_state_dict)",
                )


def check_after_loading(optimizer: Any) -> None:
    """Raise where an optimizer cannot say what it was filled with, or says something else."""
    for one in each_of(optimizer):
        try:
            given = own_state_dict(one)
        except Exception as error:
            raise UsageError(
                f"{type(one).__name__} does not take the state that was loaded: its state_dict() ends with"
                f" {f'{type(error).__name__}: {error}'.rstrip(': ')}",
                hint="make it with the settings that it had when it was saved, and let it make its state (a"
                " step) before it is loaded, or load only the model (optimizer=None)",
            ) from error
        check_same_numbers(one, given)


def _are_other(said: Any, held: Any) -> bool:
    if not (isinstance(said, torch.Tensor) and isinstance(held, torch.Tensor)):
        return False
    a, b = (memory_of(x) if is_dtensor(x) else x for x in (said, held))
    if a is b or (a.data_ptr() == b.data_ptr() and a.dtype == b.dtype and a.shape == b.shape):
        return False
    if a.shape != b.shape:
        return True
    a, b = a.to(b.device, torch.float64), b.to(torch.float64)
    return not torch.allclose(a, b, rtol=0.0, atol=0.0, equal_nan=True)
