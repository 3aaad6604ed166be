"""Odd numbers, unlike their neighbours: a sum of elements times these tells their order too."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def odd_numbers(start: int, n: int) -> NDArray[np.uint64]:
    """An odd number for each of `n` places from `start` on (the mix of SplitMix64)."""
    x = np.arange(start + 1, start + 1 + n, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (x ^ (x >> np.uint64(31))) | np.uint64(1)
