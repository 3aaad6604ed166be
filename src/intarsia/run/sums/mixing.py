"""Odd numbers, unlike their neighbours: a sum of elements times these depends on their order too."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from intarsia.planning.coalesce import Ints


def odd_numbers(places: Ints) -> NDArray[np.uint64]:
    """The odd number of each place: the outputs of SplitMix64 with the seed 0, the last bit set.

    >>> [f"{x:x}" for x in odd_numbers(np.arange(2)).tolist()]
    ['e220a8397b1dcdaf', '6e789e6aa1b965f5']
    """
    state = (places + 1).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (state ^ (state >> np.uint64(31))) | np.uint64(1)
