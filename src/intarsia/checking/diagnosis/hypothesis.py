"""A hypothesis: one way in which B could have come from A, and how much it explains."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from intarsia.checking.pair.differing import same
from intarsia.dtypes import DType
from intarsia.frozen import frozen, frozen_open
from intarsia.layout import Layout
from intarsia.mesh import Box
from intarsia.value.bits import as_float64

Mask = NDArray[np.bool_]
Bits = NDArray[Any]

ENOUGH = 8
"""Differing elements from which on an agreement is no accident."""

NEARLY_ALL = 0.99


@frozen_open
class BitsOfPair:
    """The bits of one box in A and in B."""

    box: Box
    x: Bits
    y: Bits
    a: DType
    b: DType

    @cached_property
    def u(self) -> NDArray[Any]:
        return as_float64(self.x, self.a)

    @cached_property
    def v(self) -> NDArray[Any]:
        return as_float64(self.y, self.b)

    @cached_property
    def unequal(self) -> Mask:
        return ~same(self.x, self.y, self.a, self.b)

    def with_a(self, x: Bits) -> BitsOfPair:
        """The same box of B against other elements of A."""
        return BitsOfPair(self.box, x, self.y, self.a, self.b)


ChangeOfValue = Callable[[BitsOfPair], Mask]
"""Where B's elements are what a change of value makes of A's."""


@dataclass(frozen=True, eq=False)
class Shuffle:
    """Indices of one axis in an order of too many runs for a layout; -1 where it is not known."""

    axis: int
    order: NDArray[np.int64]


@frozen_open
class Hypothesis:
    """B's tensor read as A's elements in another place (a layout), or with another value.

    `then` is a change of value on top of another place.  `key` is what the hypothesis has in
    common with that of another tensor of the same fault.  `nearly` is what is said instead of a
    `text` about every element where it holds of nearly all.  `side` is the one that is wrong, where
    the hypothesis tells.
    """

    kind: str
    text: str
    predict: Layout | Shuffle | ChangeOfValue
    key: Hashable = None
    then: ChangeOfValue | None = None
    nearly: str = ""
    side: str = ""

    def as_far_as(self, score: Score) -> Hypothesis:
        """The same, not said of every element where the score knows of others."""
        if not self.nearly or score.exact:
            return self
        return replace(self, text=self.nearly, key=self.nearly)


@frozen
class Score:
    """How many differing elements a hypothesis explains, and how many equal ones it denies."""

    differing: int = 0
    explained: int = 0
    denied: int = 0

    def __add__(self, other: Score) -> Score:
        return Score(
            self.differing + other.differing,
            self.explained + other.explained,
            self.denied + other.denied,
        )

    @property
    def share(self) -> float:
        return self.explained / self.differing if self.differing else 0.0

    @property
    def exact(self) -> bool:
        """Whether the hypothesis explains every difference, and denies nothing."""
        return self.explained == self.differing and not self.denied

    @property
    def holds(self) -> bool:
        """Whether the hypothesis explains nearly everything, and denies nearly nothing."""
        few = self.differing < ENOUGH
        return self.share >= NEARLY_ALL and self.denied <= (0 if few else 0.01 * self.differing)

    @property
    def holds_in_part(self) -> bool:
        """Whether it explains nearly every difference, though it was not applied everywhere."""
        enough = self.explained >= ENOUGH and self.denied <= 31 * self.explained
        return enough and self.share >= NEARLY_ALL

    def __str__(self) -> str:
        return f"explains {self.explained:,} of {self.differing:,} differing elements"


def score(unequal: Mask, predicted: Mask) -> Score:
    """What a prediction does in one window."""
    counted = unequal, unequal & predicted, ~unequal & ~predicted
    return Score(*(int(np.count_nonzero(mask)) for mask in counted))
