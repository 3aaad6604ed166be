"""TransformerEngine's `GroupedTensor`: the weights of several gemms as one parameter.

It wraps one flat buffer and allows no other view of itself than that, so neither a DTensor nor
FSDP2 can hold it.  They hold the buffer; while `forward` runs, it is wrapped anew.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


def is_grouped(tensor: Any) -> bool:
    """Whether a tensor is a `GroupedTensor`; TransformerEngine is not imported for it."""
    return hasattr(tensor, "rowwise_data") and hasattr(tensor, "num_tensors")


def is_quantised(tensor: Any) -> bool:
    """Whether the buffer of a `GroupedTensor` holds other numbers than its elements."""
    return tensor.quantizer is not None or tensor.rowwise_data is None


def grouped_kinds(module: nn.Module) -> dict[str, type]:
    """The class of each parameter of a module that is a `GroupedTensor`."""
    return {name: type(p) for name, p in module._parameters.items() if is_grouped(p)}


def plain_memory(param: Tensor) -> Tensor:
    """A parameter's elements as a plain tensor of the same memory."""
    held: Any = param.detach()
    plain: Tensor = held.rowwise_data.view(held.shape) if is_grouped(held) else held
    return plain


def marks(param: Tensor) -> dict[str, Any]:
    """What others noted on a parameter, as `sequence_parallel`; not what a `GroupedTensor` is made of."""
    own = vars(param.detach()) if is_grouped(param) else {}
    return {name: value for name, value in vars(param).items() if name not in own}


def regrouped(local: Tensor, kind: type) -> Tensor:
    """A plain tensor as a `GroupedTensor` of the same memory; gradients go the other way."""
    made: Tensor = _Regroup.apply(local, kind)  # type: ignore[no-untyped-call]
    return made


class _Regroup(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, local: Tensor, kind: Any) -> Tensor:
        wrapped: Tensor = kind.make_grouped_tensor_from_rowwise_data(
            num_tensors=local.shape[0],
            tensor_shape=tuple(local.shape[1:]),
            rowwise_data=local.detach(),
            dtype=local.dtype,
        )
        return wrapped

    @staticmethod
    def backward(ctx: Any, grad: Any) -> tuple[Tensor, None]:
        return plain_memory(grad), None
