"""A model on a mesh beside accelerate and Trainer, which would wrap, move or cut it a second time.

Both have a mark for a model that owns its placement and the reduction of its gradients.  A model that
has it is not put under accelerate's autocast either: where that was asked for, training in full
precision would pass unnoticed, and is refused.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import nn

from intarsia.errors import UsageError


def mark_placed(model: nn.Module) -> None:
    """Have accelerate and Trainer take a model as it is; forward passes refuse a precision that it lacks."""
    model._is_accelerate_prepared = True  # type: ignore[assignment]
    model._is_distributed_loading_by_transformers = True  # type: ignore[assignment]
    model.register_forward_pre_hook(_refuse_autocast_that_is_off)


def _refuse_autocast_that_is_off(model: nn.Module, _: Any) -> None:
    state = sys.modules.get("accelerate.state")
    asked = state.AcceleratorState._shared_state.get("_mixed_precision") if state else None
    if asked in (None, "no", "None"):
        return
    where = next(iter(model.parameters())).device.type
    if torch.is_autocast_enabled(where):
        return
    fsdp = getattr(model, "_get_fsdp_state", lambda: None)()
    if getattr(getattr(fsdp, "_mp_policy", None), "param_dtype", None) is not None:
        return
    raise UsageError(
        f"accelerate is asked for mixed_precision={str(asked)!r}, which has no effect on a model"
        " that `parallelize` placed",
        hint="give it to parallelize,"
        " mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16), and leave"
        " mixed_precision (Trainer: bf16, fp16) out; or call the model under torch.autocast",
    )
