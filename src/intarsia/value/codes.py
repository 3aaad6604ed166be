"""The numbers that the codes of floating-point types of one byte and of four bits stand for."""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from intarsia.dtypes import DType, extent_of

OF_FOUR_BITS = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
"""The number of each code of four bits (E2M1), two of which share an element."""


@cache
def numbers_of_codes(dtype: DType) -> NDArray[np.float64]:
    """The number that each of the 256 codes of a floating-point type of one byte stands for."""
    extent, codes = extent_of(dtype), np.arange(256)
    if dtype.name == "F8_E8M0":  # a power of two, without a sign
        found: NDArray[np.float64] = np.ldexp(1.0, codes + extent.least)
        found[255] = np.nan
        return found
    fraction = codes & ((1 << extent.fraction) - 1)
    exponent = (codes & 127) >> extent.fraction
    whole = np.where(exponent, fraction + (1 << extent.fraction), fraction)
    found = np.ldexp(whole.astype(np.float64), np.maximum(exponent, 1) - 1 + extent.least)
    found = np.where(codes < 128, found, -found)
    if dtype.name.endswith("FNUZ"):
        found[128] = np.nan
    elif dtype.name == "F8_E4M3":
        found[[127, 255]] = np.nan
    else:  # E5M2, whose last exponent is for what is not finite, as in wider types
        found[[124, 252]] = np.inf, -np.inf
        found[[125, 126, 127, 253, 254, 255]] = np.nan
    return found
