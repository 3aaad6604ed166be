"""Megatron-core on CPUs with gloo: what it asks of `torch.cuda` is answered, or left undone.

Import it before megatron.  Nothing of Megatron itself is changed, its checkpoint code least.
"""

from __future__ import annotations

import contextlib
import os
from collections import defaultdict
from typing import Any

import torch
import torch.distributed as dist


class _Idle:
    """A stream or an event on a device that does not exist."""

    cuda_stream = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: None


def _on_cpu(make: Any) -> Any:
    """A tensor factory that puts on the CPU what was meant for a device."""

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("device") is not None:
            kwargs["device"] = "cpu"
        kwargs.pop("pin_memory", None)
        return make(*args, **kwargs)

    return wrapped


def _with_gloo(make: Any) -> Any:
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if "nccl" in str(kwargs.get("backend")):
            kwargs["backend"] = "gloo"
        kwargs.pop("device_id", None)
        kwargs.pop("pg_options", None)
        return make(*args, **kwargs)

    return wrapped


def pretend() -> None:
    """Answer for `torch.cuda` in this process."""
    cuda: Any = torch.cuda
    for name in ("synchronize", "empty_cache", "set_device", "set_stream", "manual_seed_all"):
        setattr(cuda, name, lambda *args, **kwargs: None)
    cuda.Stream = cuda.Event = _Idle
    cuda.stream = cuda.device = lambda *args, **kwargs: contextlib.nullcontext()
    cuda.current_stream = cuda.default_stream = lambda *args, **kwargs: _Idle()
    cuda.current_device = lambda: "cpu"
    cuda.device_count = lambda: int(os.environ.get("WORLD_SIZE", "1"))
    cuda.get_device_capability = lambda *args, **kwargs: (9, 0)
    cuda.is_current_stream_capturing = lambda: False
    for module in (cuda, cuda.random):
        module.get_rng_state = lambda *args, **kwargs: torch.get_rng_state()
        module.set_rng_state = lambda state, *args, **kwargs: torch.set_rng_state(state)
    cuda.manual_seed = lambda seed: torch.default_generator.manual_seed(int(seed))
    cuda._lazy_init = lambda *args, **kwargs: None
    cuda._lazy_call = lambda call, **kwargs: call()
    cuda.default_generators = defaultdict(lambda: torch.default_generator)
    torch.Tensor.cuda = lambda self, *args, **kwargs: self  # type: ignore[method-assign]
    torch.nn.Module.cuda = lambda self, *args, **kwargs: self  # type: ignore[method-assign]
    plain_type = torch.Tensor.type

    def type_on_device(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        # Megatron's optimizers tell element types by names such as `torch.cuda.FloatTensor`.
        found = plain_type(self, *args, **kwargs)
        return found if args or kwargs else found.replace("torch.", "torch.cuda.", 1)

    torch.Tensor.type = type_on_device  # type: ignore[method-assign, assignment]
    for name in (
        "empty",
        "zeros",
        "ones",
        "full",
        "tensor",
        "arange",
        "rand",
        "randn",
        "empty_like",
        "zeros_like",
        "tril",
    ):
        setattr(torch, name, _on_cpu(getattr(torch, name)))
    dist.new_group = _with_gloo(dist.new_group)
    torch.distributed.new_group = dist.new_group
