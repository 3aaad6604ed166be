"""Collectives that gradients pass through."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.distributed.tensor import DTensor


def shared(x: Tensor, groups: Sequence[ProcessGroup] = (), *, scale: float = 1.0) -> Tensor:
    """`x` itself; its gradient is scaled, then summed over each of the groups.

    For what every rank of a group holds and uses in part, or on other data.
    """
    return _Shared.apply(x, tuple(groups), scale)  # type: ignore[no-any-return, no-untyped-call]


def summed(x: Tensor, group: ProcessGroup) -> Tensor:
    """The sum over the group, on every rank of it; the gradient of the sum is each summand's."""
    return _Summed.apply(x, group)  # type: ignore[no-any-return, no-untyped-call]


def exchanged(x: Tensor, sent: Sequence[int], got: Sequence[int], group: ProcessGroup) -> Tensor:
    """Rows from every rank of the group: `sent[r]` of ours go to rank r, `got[r]` come from it."""
    return _Exchanged.apply(x, tuple(sent), tuple(got), group)  # type: ignore[no-any-return, no-untyped-call]


def local_part(x: DTensor) -> Tensor:
    """This rank's part, as a tensor of its own; its gradient is cut as `x` is.

    `to_local` gives a view, and FSDP warns of views among the outputs of a module.
    """
    return _Unwrapped.apply(x)  # type: ignore[no-any-return, no-untyped-call]


class _Shared(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, groups: tuple[ProcessGroup, ...], scale: float) -> Tensor:
        ctx.groups, ctx.scale = groups, scale
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        grad = (grads[0] * ctx.scale).contiguous()
        for group in ctx.groups:
            dist.all_reduce(grad, group=group)
        return grad, None, None


class _Summed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: ProcessGroup) -> Tensor:
        x = x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return grads[0], None


class _Unwrapped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: DTensor) -> Tensor:
        ctx.mesh, ctx.placements = x.device_mesh, x.placements
        return x.to_local()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> DTensor:
        return DTensor.from_local(grads[0], ctx.mesh, ctx.placements, run_check=False)


class _Exchanged(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, sent: tuple[int, ...], got: tuple[int, ...], group: ProcessGroup
    ) -> Tensor:
        ctx.sent, ctx.got, ctx.group = sent, got, group
        return _exchange(x, sent, got, group)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return _exchange(grads[0], ctx.got, ctx.sent, ctx.group), None, None, None


def _exchange(x: Tensor, sent: Sequence[int], got: Sequence[int], group: ProcessGroup) -> Tensor:
    y = x.new_empty(sum(got), *x.shape[1:])
    dist.all_to_all_single(y, x.contiguous(), list(got), list(sent), group=group)
    return y
