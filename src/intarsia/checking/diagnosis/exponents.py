"""Scales that are exponents of two, all changed alike: a sum of exponents is a factor of scales."""

from __future__ import annotations

import numpy as np

from intarsia.checking.content.scales.code_blocks import is_exponents
from intarsia.checking.diagnosis.finding import Finding
from intarsia.checking.diagnosis.hypothesis import ENOUGH
from intarsia.checking.pair.pairs import Pair, read_windows
from intarsia.checkpoint import Checkpoint
from intarsia.run.budget import Budget

_BIAS = 127
"""The exponent of one."""


def find_scaled_exponents(
    a: Checkpoint, b: Checkpoint, pair: Pair, budget: Budget
) -> Finding | None:
    """That every scale of B is A's times one power of two, or one divided by it."""
    part = a.manifest.quantised.by_part.get(pair.a.name)
    exponents = part is not None and (is_exponents(part[1]) or part[1].dtype.name == "F8_E8M0")
    if not exponents or pair.a.dtype != pair.b.dtype or pair.a.size < ENOUGH:
        return None
    sums, distances = set[int](), set[int]()
    for _, left, right in read_windows(a, b, pair, budget):
        sums |= {*np.unique(left + right).tolist()}
        distances |= {*np.unique(right - left).tolist()}
        if len(sums) > 1 < len(distances):
            return None
    text = "B is one divided by A"
    if len(distances) == 1:
        (by,) = distances
        text = f"B is A times 2^{by if by <= _BIAS else by - 256}"
    elif sums != {2 * _BIAS}:
        return None
    n = pair.a.size
    return Finding(pair.a.name, "scaled", text, text, text, n, n, all_over=True)
