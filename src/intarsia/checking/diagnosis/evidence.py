"""Evidence: a sample of one differing tensor to choose hypotheses by, all of it to prove them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np

from intarsia.checking.diagnosis.hypothesis import Bits, Hypothesis, Score, Window, same, score
from intarsia.checking.pairs import Pair, read, read_windows
from intarsia.checkpoint import Checkpoint
from intarsia.dtypes import DType
from intarsia.layout import Layout, unravel
from intarsia.mesh import Box, Shape
from intarsia.run.budget import Budget
from intarsia.run.values import bits_dtype

SAMPLE_ROWS = 12
SAMPLE_WIDTH = 2048
SMALL = 16 << 10
"""A tensor of so many elements is its own sample."""


@dataclass(frozen=True)
class Evidence:
    """One tensor of A and of B, which differ first at element `first`."""

    a: Checkpoint
    b: Checkpoint
    pair: Pair
    first: tuple[int, ...]
    budget: Budget

    @property
    def shape(self) -> Shape:
        return self.pair.a.shape

    @property
    def name(self) -> str:
        return self.pair.a.name

    @cached_property
    def whole(self) -> Layout:
        """A's tensor as it is."""
        return Layout.of(self.name, self.shape)

    @cached_property
    def sample(self) -> list[Window]:
        """A few rows, the first that differs among them."""
        return [
            self._window(box, read(self.a, self.pair.a, box), read(self.b, self.pair.b, box))
            for box in sample_boxes(self.shape, self.first)
        ]

    def windows(self) -> Iterator[Window]:
        """Everything, one window at a time."""
        for box, left, right in read_windows(self.a, self.b, self.pair, self.budget):
            yield self._window(box, left, right)

    def on_sample(self, hypothesis: Hypothesis) -> Score:
        return self._score(hypothesis, self.sample)

    def on_all(self, hypothesis: Hypothesis) -> Score:
        return self._score(hypothesis, self.windows())

    def read(self, layout: Layout, box: Box, checkpoint: Checkpoint | None = None) -> Bits:
        """Elements of A (or of B) in any arrangement."""
        side = checkpoint or self.a
        dtype = (self.pair.a if side is self.a else self.pair.b).dtype
        return side.read_box(layout, box, dtype).view(bits_dtype(dtype))

    def _score(self, hypothesis: Hypothesis, windows: Iterable[Window]) -> Score:
        total, predict = Score(), hypothesis.predict
        for w in windows:
            if isinstance(predict, Layout):
                told = same(self.read(predict, w.box), w.y, w.a, w.b)
            else:
                told = predict(w)
            total += score(w.unequal, told)
        return total

    def _window(self, box: Box, left: Bits, right: Bits) -> Window:
        a, b = self.pair.a.dtype, self.pair.b.dtype
        return Window(box, left.view(bits_dtype(a)), right.view(bits_dtype(b)), a, b)


def sample_boxes(shape: Shape, first: tuple[int, ...]) -> list[Box]:
    """Boxes of one row each (or of part of a long one), spread over a tensor."""
    if prod(shape) <= SMALL:
        return [Box.whole(shape)]
    *lead, last = shape
    count = prod(lead)
    spread = np.linspace(0, count - 1, min(count, SAMPLE_ROWS)).astype(int).tolist()
    width = min(last, SAMPLE_WIDTH)
    boxes: dict[tuple[int, ...], None] = {}
    if first:
        start = min(first[-1], last - width)
        boxes[(*first[:-1], start)] = None
    for k, row in enumerate(spread):
        place = unravel(row, lead)
        boxes[(*place, (last - width) * k // max(len(spread) - 1, 1))] = None
    return [Box(at, (*(1,) * len(lead), width)) for at in boxes]


def elements(dtype: DType) -> np.dtype[np.void]:
    """One element as plain bytes."""
    return np.dtype((np.void, dtype.itemsize))
