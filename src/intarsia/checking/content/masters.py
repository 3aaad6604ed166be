"""A weight compared with its fp32 main weight, element by element.

The sums of both tell whether they may differ, by value and by place, whatever their cuts; only then
are both read again.  A last bit that is off is let pass: some train with stochastic rounding.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from intarsia.checking.fault import Fault
from intarsia.checking.survey.item_stats import ItemStats
from intarsia.checkpoint import Checkpoint
from intarsia.errors import CoverageError
from intarsia.frozen import frozen
from intarsia.opened.fewer_bits import fewer_bits, may_have_fewer_bits
from intarsia.planning.manifest import Logical, Manifest
from intarsia.planning.window import windows
from intarsia.run.budget import Budget
from intarsia.run.progress import Progress, counting
from intarsia.run.sums.hashing import Sum, merged_sums
from intarsia.state.names import MASTER, kind_of, master_of, parameter_of
from intarsia.value.bits import Bits, as_float64, bits_dtype
from intarsia.value.cast import cast

_LAST_BIT = {"BF16": 2.0**-7, "F16": 2.0**-10}
"""What the last bit of a number between one and two is worth."""


def weights_with_masters(logical: Mapping[str, Logical]) -> dict[str, Logical]:
    """The weights that are compared with a main weight."""
    weights = (parameter_of(name) for name in logical if kind_of(name) == MASTER)
    return {n: logical[n] for n in weights if n in logical and logical[n].dtype.floating}


def note_on_fewer_bits(manifest: Manifest) -> Iterator[str]:
    """A note where weights cannot be compared with their main weights."""
    weights = weights_with_masters(manifest.logical).values()
    count = sum(map(may_have_fewer_bits, weights))
    if count and (argument := fewer_bits(manifest)):
        yield (
            f"{count:,} weights are not compared with their main weights: the run kept weights in fewer bits"
            f" ({argument})"
        )


@frozen
class StaleWeight:
    """A weight that is not its main weight rounded: in how many elements, first where, how far."""

    weight: Logical
    master: Logical
    elements: int
    first: str
    most: float

    def __str__(self) -> str:
        return (
            f"{self.elements:,} of {self.weight.size:,} elements of `{self.weight.name}` are not"
            f" their main weight rounded to {self.weight.dtype}, by up to {self.most:.3g}"
        )


def masters_that_differ(
    manifest: Manifest, found: Sequence[ItemStats], budget: Budget, progress: Progress | None = None
) -> Iterator[Fault]:
    """Weights that are not their main weights rounded, by the sums that a survey took."""
    rounded = merged_sums(stats.rounded for stats in found)
    if not rounded:
        return
    weights = merged_sums(stats.sums for stats in found)
    lost = (stats.item.stored.layout.tensors for stats in found if stats.unread)
    unread = {parameter_of(name) for names in lost for name in names}
    suspects = [
        name
        for name, total in rounded.items()
        if name not in unread
        and total.count_bytes == weights.get(name, Sum()).count_bytes
        and total != weights[name]
    ]
    if suspects and fewer_bits(manifest):
        suspects = [n for n in suspects if not may_have_fewer_bits(manifest.logical[n])]
    if not suspects:
        return
    advance = counting(progress, sum(manifest.logical[name].nbytes for name in suspects))
    with Checkpoint(manifest) as checkpoint:
        for name in suspects:
            # Elements that no chunk holds are a fault of their own.
            with suppress(CoverageError):
                if stale := compare_master(checkpoint, name, budget):
                    names = (stale.weight.name, stale.master.name)
                    yield Fault("master-differs", names, stale.first, str(stale), stale.elements)
            advance(manifest.logical[name].nbytes)


def compare_master(checkpoint: Checkpoint, name: str, budget: Budget) -> StaleWeight | None:
    """How a weight differs from its main weight rounded; None where it is that."""
    logical = checkpoint.manifest.logical
    weight, master = logical[name], logical[master_of(name)]
    if weight.shape != master.shape:
        return StaleWeight(weight, master, weight.size, "the whole tensor", float("inf"))
    count, first, most = 0, "", 0.0
    for box in windows(weight.shape, master.dtype.itemsize, budget.window_bytes // 4):
        narrow, wide = (
            checkpoint.read_box(checkpoint.prover.tensor(x.name), box).view(bits_dtype(x.dtype))
            for x in (weight, master)
        )
        near = _agree(narrow, cast(wide, master.dtype, weight.dtype), weight)
        x, y = as_float64(narrow, weight.dtype), as_float64(wide, master.dtype)
        near |= ~np.isfinite(x) | ~np.isfinite(y)  # a fault of its own
        if near.all():
            continue
        if not count:
            first = f"{[*box.index_of(int(near.argmin()))]} first"
        count += int((~near).sum())
        most = max(most, float(np.abs(x[~near] - y[~near]).max()))
    return StaleWeight(weight, master, count, first, most) if count else None


def _agree(a: Bits, b: Bits, weight: Logical) -> NDArray[np.bool_]:
    """Where two elements are equal but for a last bit.

    A norm may have been trained around one and be stored around zero: its last bit is then that
    of a number near one.
    """
    sign = 1 << (8 * weight.dtype.itemsize - 1)
    near: NDArray[np.bool_] = np.abs(_ordered(a, sign) - _ordered(b, sign)) <= 1
    if "norm" in weight.name and weight.dtype.name in _LAST_BIT:
        x, y = as_float64(a, weight.dtype), as_float64(b, weight.dtype)
        near |= np.abs(x - y) <= _LAST_BIT[weight.dtype.name] * (1 + np.abs(x))
    return near


def _ordered(bits: Bits, sign: int) -> NDArray[np.int64]:
    """Bits as whole numbers in the order of the numbers that they stand for."""
    wide = bits.view(f"i{bits.itemsize}").astype(np.int64)
    return np.where(wide < 0, -(wide & (sign - 1)), wide)
