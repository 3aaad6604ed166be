"""The halves of main weights, as TransformerEngine's kernel cuts and joins them."""

from __future__ import annotations

import torch


def cut(main: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The weight in bf16, rounded up where the lower half is negative, and that half."""
    bits = main.contiguous().view(torch.int32)
    lower = bits.to(torch.int16)
    upper = (bits >> 16) + (lower < 0)
    return upper.to(torch.int16).view(torch.bfloat16), lower


def join(weight: torch.Tensor, lower: torch.Tensor) -> torch.Tensor:
    """The main weight that both make."""
    upper = weight.contiguous().view(torch.int16).to(torch.int32) - (lower < 0).to(torch.int32)
    return ((upper << 16) | (lower.to(torch.int32) & 0xFFFF)).view(torch.float32)


def remainder_of(weight: torch.Tensor) -> torch.Tensor:
    """Some lower half for every weight, of either sign."""
    return (weight.contiguous().view(torch.int16).to(torch.int32) * 7919).to(torch.int16)
