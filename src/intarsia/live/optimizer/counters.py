"""Counters of an optimizer, such as `step`: whole numbers or one-element tensors, filled through memory of their own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch

from intarsia.errors import CoverageError
from intarsia.layout import Layout
from intarsia.live.model.holding import Holding
from intarsia.planning.manifest import Manifest


def counter_holdings(
    manifest: Manifest, counters: Iterable[tuple[torch.Tensor, tuple[str, ...]]]
) -> dict[str, Holding]:
    """Memory for each step that the checkpoint has of the counters' parameters."""
    found: dict[str, Holding] = {}
    for name in dict.fromkeys(name for _, names in counters for name in names):
        dtype = getattr(torch, manifest.logical[name].dtype.torch)
        found[name] = Holding(name, Layout.of(name, ()), torch.empty((), dtype=dtype))
    return found


def set_counters(
    counters: Iterable[tuple[torch.Tensor, tuple[str, ...]]], read: Mapping[str, Holding]
) -> None:
    """Set the steps that were read; those of the parts of one parameter must agree."""
    for tensor, names in counters:
        first, *others = (read[name].tensor for name in names)
        if any(not _same(x, first) for x in others):
            values = sorted({x.item() for x in (first, *others)})
            raise CoverageError(
                f"{names[0]} and {len(others)} other tensors are at steps {values}, and one"
                " parameter holds them all",
                hint="the parts of the checkpoint were saved at different steps",
            )
        tensor.copy_(first)


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.dtype == b.dtype and (a.item() == b.item() or bool(a != a and b != b))
