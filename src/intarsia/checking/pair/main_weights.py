"""Weights compared with main weights: `fsdp_dtensor` keeps those in the place of the weights.

A weight of one side is then the main weight of the other rounded, and that is what equal means.
"""

from __future__ import annotations

from intarsia.checking.pair.differing import Differing, Unequal
from intarsia.checking.pair.pairs import Pair, read_windows
from intarsia.checkpoint import Checkpoint
from intarsia.opened.masters import unlike
from intarsia.run.budget import Budget
from intarsia.value import PLAIN, Value
from intarsia.value.bits import bits_dtype


def differ_from_main(a: Checkpoint, b: Checkpoint, pair: Pair, budget: Budget) -> Unequal | None:
    """How the narrower tensor of a pair differs from the wider one rounded; None where it does not."""
    found = _differ(a, b, pair, budget, PLAIN)
    if found is None or pair.recentred.is_plain:
        return found
    return _differ(a, b, pair, budget, pair.recentred) and found


def _differ(
    a: Checkpoint, b: Checkpoint, pair: Pair, budget: Budget, recentred: Value
) -> Unequal | None:
    found, left_is_wide = Differing(), pair.a.dtype.itemsize > pair.b.dtype.itemsize
    for box, left, right in read_windows(a, b, pair, budget):
        x, y = left.view(bits_dtype(pair.a.dtype)), right.view(bits_dtype(pair.b.dtype))
        if left_is_wide:
            wrong = unlike(y, pair.b.dtype, x, pair.a.dtype, recentred)
        else:
            wrong = unlike(x, pair.a.dtype, y, pair.b.dtype, recentred)
        found.add(wrong, x, y, box, pair)
    if found.first is None:
        return None
    text = f"{pair.a.dtype} in A, {pair.b.dtype} in B; the narrower is not the wider one rounded"
    return Unequal(pair, found.count, found.first, found.most, "", text)
