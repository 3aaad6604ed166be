"""Gradients on a mix of meshes: one norm, and groups that an optimizer can take whole."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate

from intarsia.errors import UsageError

MeshCut = tuple[DeviceMesh, tuple[bool, ...]] | None
"""A mesh, and which of its dimensions cut a tensor; None for a plain tensor, whole on every rank."""


def clip_grad_norm_(
    params: Tensor | Iterable[Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    *,
    error_if_nonfinite: bool = False,
) -> Tensor:
    """Scale all gradients so that their norm is at most `max_norm`; returns the norm before.

    The norm of the whole model, equal on every rank, where parameters lie on several meshes and
    some on none.  A plain gradient counts once, as it is the same on every rank.

        norm = clip_grad_norm_(model.parameters(), 1.0)
    """
    given = [params] if isinstance(params, Tensor) else list(params)
    grads = [p.grad for p in given if p.grad is not None]
    norm = _norm(grads, float(norm_type), given[0].device if given else torch.device("cpu"))
    if error_if_nonfinite and not torch.isfinite(norm):
        raise UsageError(f"the gradients have the norm {norm.item()}, which cannot be clipped")
    scale = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    for grad in grads:
        local = _local(grad)
        local.mul_(scale.to(local.device, local.dtype))
    return norm


def parameter_groups(params: Iterable[Tensor], **options: Any) -> list[dict[str, Any]]:
    """Optimizer groups of one mesh each, for `foreach=True` and `fused=True`.

    Such optimizers take the tensors of a group together, and torch refuses two meshes in one
    call.  Without those flags one group of everything works as well.

        AdamW(parameter_groups(model.parameters(), weight_decay=0.1), foreach=True)
    """
    groups: dict[DeviceMesh | None, list[Tensor]] = {}
    for p in params:
        groups.setdefault(p.device_mesh if isinstance(p, DTensor) else None, []).append(p)
    return [{"params": group, **options} for group in groups.values()]


def _norm(grads: Sequence[Tensor], p: float, device: torch.device) -> Tensor:
    """Norms of local parts, summed over exactly the dimensions that cut them."""
    by_cut: dict[MeshCut, list[Tensor]] = {}
    for grad in grads:
        by_cut.setdefault(_cut(grad), []).append(_local(grad))
    largest, total = p == float("inf"), torch.zeros((), device=device)
    for cut, parts in by_cut.items():
        held = [x.detach().float() for x in parts if x.numel()]
        norms = torch.stack(torch._foreach_norm(held, p)) if held else total.new_zeros(1)
        part = norms.max() if largest else norms.pow(p).sum()
        if cut is not None:
            part = _over_ranks(part, cut, "max" if largest else "sum")
        part = part.to(device)
        total = torch.maximum(total, part) if largest else total + part
    return total if largest else total.pow(1 / p)


def _over_ranks(part: Tensor, cut: tuple[DeviceMesh, tuple[bool, ...]], kind: str) -> Tensor:
    """The sum or the largest over the dimensions that cut; NaN where any rank has it."""
    mesh, cuts = cut
    placed = [Partial(kind) if dim else Replicate() for dim in cuts]
    # Which of a number and NaN is larger, each backend answers in its own way.
    nan = part.isnan()
    both = torch.stack([part.masked_fill(nan, 0.0), nan.to(part.dtype)])
    found = DTensor.from_local(both, mesh, placed, run_check=False).full_tensor()
    whole: Tensor = found[0].masked_fill(found[1] > 0, float("nan"))
    return whole


def _cut(grad: Tensor) -> MeshCut:
    if not isinstance(grad, DTensor):
        return None
    if any(placement.is_partial() for placement in grad.placements):
        raise UsageError(
            f"a gradient of shape {tuple(grad.shape)} is partial ({grad.placements})",
            hint="its ranks hold summands: reduce them before computing the norm",
        )
    return grad.device_mesh, tuple(not placement.is_replicate() for placement in grad.placements)


def _local(grad: Tensor) -> Tensor:
    return grad.to_local() if isinstance(grad, DTensor) else grad
