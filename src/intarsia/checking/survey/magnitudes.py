"""The least and the greatest magnitudes of tensors, from the bits of their elements.

Bits that are taken as whole numbers, once without a sign and once with one, put the elements above
zero and those below it in the order of their magnitudes, so no magnitude has to be made.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from intarsia.frozen import frozen
from intarsia.value.bits import Bits


@frozen
class Greatest:
    """Of each of several tensors the greatest magnitude, as bits, and what its signs show."""

    magnitude: Bits
    below_zero: NDArray[np.bool_]
    """Whether an element is below zero."""
    signed_zero: NDArray[np.bool_]
    """Whether an element is zero with the sign of those below."""


def greatest(bits: Bits) -> Greatest:
    """What the rows of an array hold, each the elements of one tensor.

    >>> found = greatest(np.array([[1, 0x8003], [2, 0x8000]], np.uint16))
    >>> found.magnitude.tolist(), found.below_zero.tolist(), found.signed_zero.tolist()
    ([3, 2], [True, False], [False, True])
    """
    signed, sign = _signed(bits), _sign(bits)
    last = bits.max(axis=1)
    magnitude = np.maximum(last & ~sign, signed.max(axis=1).view(bits.dtype) & ~sign)
    return Greatest(magnitude, last > sign, signed.min(axis=1).view(bits.dtype) == sign)


def least_of(bits: Bits) -> Bits:
    """The least magnitude of each row, as bits.

    >>> least_of(np.array([[7, 0x8003], [0x8005, 0x8004]], np.uint16)).tolist()
    [3, 4]
    """
    sign = _sign(bits)
    found: Bits = np.minimum(
        bits.min(axis=1) & ~sign, _signed(bits).min(axis=1).view(bits.dtype) & ~sign
    )
    return found


def without_signed_zeros(bits: Bits) -> Bits:
    """The same bits, every zero without a sign."""
    found: Bits = np.where(bits == _sign(bits), bits.dtype.type(0), bits)
    return found


def _sign(bits: Bits) -> Any:
    return bits.dtype.type(1 << (8 * bits.dtype.itemsize - 1))


def _signed(bits: Bits) -> Bits:
    return bits.view(f"<i{bits.dtype.itemsize}")
