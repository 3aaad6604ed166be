"""Evidence: a sample of one differing tensor to choose hypotheses by, all of it to prove them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cached_property
from math import prod

import numpy as np

from intarsia.checking.diagnosis.hypothesis import (
    Bits,
    BitsOfPair,
    Hypothesis,
    Mask,
    Score,
    Shuffle,
    score,
)
from intarsia.checking.diagnosis.rearranged.order import along, of_runs
from intarsia.checking.diagnosis.sample import SMALL, most_common, places
from intarsia.checking.pair.pairs import Pair, read
from intarsia.checkpoint import Checkpoint
from intarsia.frozen import frozen_open
from intarsia.layout import Layout
from intarsia.mesh import Box, Shape
from intarsia.planning.manifest import Logical
from intarsia.planning.window import flat_start, windows
from intarsia.run.budget import Budget
from intarsia.run.sums.mixing import odd_numbers
from intarsia.value.bits import bits_dtype


@frozen_open
class Evidence:
    """One tensor of A and of B, which differ first at element `first`.

    `arranged` is the order in which A's elements are read, where one step is already known; `left`
    and `right` are what the two are called in sentences.
    """

    a: Checkpoint
    b: Checkpoint
    pair: Pair
    first: tuple[int, ...]
    budget: Budget
    arranged: Layout | None = None
    left: str = "A"
    right: str = "B"
    chosen: tuple[Box, ...] | None = None

    @property
    def shape(self) -> Shape:
        return self.pair.a.shape

    @property
    def name(self) -> str:
        return self.pair.a.name

    @property
    def flipped(self) -> Evidence:
        """The same with A and B in each other's place; each keeps what it is called."""
        return Evidence(
            self.b, self.a, self.pair.flipped, self.first, self.budget,
            left=self.right, right=self.left, chosen=self.chosen,
        )  # fmt: skip

    def moved(self, layout: Layout) -> Evidence:
        """What is left to explain once A is read in another arrangement."""
        return replace(self, arranged=layout, chosen=self.places)

    @cached_property
    def whole(self) -> Layout:
        """A's tensor as it is."""
        return self.arranged or Layout.of(self.name, self.shape)

    @cached_property
    def places(self) -> tuple[Box, ...]:
        """Where the sample is taken."""
        return self.chosen or places(self.shape, self.first, self.window, self.windows)

    @cached_property
    def sample(self) -> list[BitsOfPair]:
        """A few rows, with elements that differ among them."""
        return [self.window(box) for box in self.places]

    def windows(self) -> Iterator[BitsOfPair]:
        """Everything, one window at a time."""
        widest = max(self.pair.a.dtype.itemsize, self.pair.b.dtype.itemsize)
        for box in windows(self.shape, widest, self.budget.window_bytes // 2):
            yield self.window(box)

    def on_sample(self, hypothesis: Hypothesis) -> Score:
        return self._score(hypothesis, self.sample)

    def rearranged(self, predict: Layout | Shuffle) -> tuple[Score, list[BitsOfPair]]:
        """How a rearrangement does on the sample, and the sample in its order.

        That the most common number comes where it is expected tells nothing, unless the sample is everything.
        """
        moved = [w.with_a(self.predicted(predict, w.box)) for w in self.sample]
        total = Score()
        for w, m in zip(self.sample, moved, strict=True):
            unequal = w.unequal
            if self._usual is not None:
                unequal = unequal & ((m.x != self._usual[0]) | (m.y != self._usual[1]))
            total += score(unequal, ~m.unequal)
        return total, moved

    @cached_property
    def _usual(self) -> tuple[int, int] | None:
        """What most elements of each side are, in the sample of a tensor that has more."""
        if prod(self.shape) <= SMALL:
            return None
        x, y = (
            most_common(side) for side in ([w.x for w in self.sample], [w.y for w in self.sample])
        )
        return None if x is None or y is None else (x, y)

    def on_all(self, hypothesis: Hypothesis) -> Score:
        predict = hypothesis.predict
        if isinstance(predict, Shuffle) and predict.axis == 0:
            return self._rows_shuffled(predict)
        return self._score(hypothesis, self.windows())

    def logical(self, side: Checkpoint) -> Logical:
        """The tensor of A, or of B."""
        return self.pair.a if side is self.a else self.pair.b

    def as_stored(self, side: Checkpoint) -> Layout:
        """The tensor of a side as it is; A's in the order that is known."""
        return self.whole if side is self.a else Layout.of(self.pair.b.name, self.pair.b.shape)

    def parts_of(self, box: Box) -> Iterator[Box]:
        """Windows of a box, small enough for the memory budget."""
        for part in windows(box.shape, self.pair.a.dtype.itemsize, self.budget.window_bytes // 2):
            yield part.moved(box.offsets)

    def read(self, layout: Layout, box: Box, checkpoint: Checkpoint | None = None) -> Bits:
        """Elements of A (or of B) in any arrangement."""
        side = checkpoint or self.a
        x = self.logical(side)
        # Most hypotheses are tried on a sample alone: no more of them is proven than is read.
        proven = side.prove(x.name, layout.box(box.offsets, box.shape), x.dtype)
        return side.read_box(proven, Box.whole(box.shape)).view(bits_dtype(x.dtype))

    def predicted(self, predict: Layout | Shuffle, box: Box) -> Bits:
        """What a rearrangement of A puts into a box of B."""
        if isinstance(predict, Layout):
            return self.read(predict, box)
        axis, lo, n = predict.axis, box.offsets[predict.axis], box.shape[predict.axis]
        taken = predict.order[lo : lo + n]
        if axis == 0:
            rest = Box((0, *box.offsets[1:]), box.shape)
            return self.read(along(self.whole, 0, of_runs(taken)), rest)
        wide = box.on_axis(axis, 0, self.shape[axis])
        found = np.take(self.read(self.whole, wide).reshape(wide.shape), taken, axis)
        return np.ascontiguousarray(found).reshape(-1)

    def _score(self, hypothesis: Hypothesis, windows: Iterable[BitsOfPair]) -> Score:
        total = Score()
        for w in windows:
            total += score(w.unequal, self._explains(hypothesis, w))
        return total

    def _explains(self, hypothesis: Hypothesis, w: BitsOfPair) -> Mask:
        predict, then = hypothesis.predict, hypothesis.then
        if not isinstance(predict, Layout | Shuffle):
            return predict(w)
        moved = w.with_a(self.predicted(predict, w.box))
        return then(moved) if then else ~moved.unequal

    def _rows_shuffled(self, shuffle: Shuffle) -> Score:
        """A shuffle of rows compared with all of them by a hash of each: no element is read twice."""
        n = self.shape[0]
        left, right = np.zeros(n, np.uint64), np.zeros(n, np.uint64)
        unequal = np.zeros(n, np.int64)
        width = self.whole.size // n
        for w in self.windows():
            at = np.arange(w.box.shape[0]) + w.box.offsets[0]
            inner = w.box.size // len(at)
            first = flat_start(w.box.on_axis(0, 0, 1), Box.whole(self.shape))
            weights = odd_numbers(np.arange(first, first + inner))
            for hashes, bits in ((left, w.x), (right, w.y)):
                hashes[at] += (bits.reshape(-1, inner) * weights).sum(1, dtype=np.uint64)
            unequal[at] += w.unequal.reshape(-1, inner).sum(1)
        order = shuffle.order
        right_rows = (order >= 0) & (right == left[np.maximum(order, 0)])
        differing, explained = int(unequal.sum()), int(unequal[right_rows].sum())
        denied = int((width - unequal[~right_rows]).sum())
        return Score(differing, explained, denied)

    def window(self, box: Box) -> BitsOfPair:
        """One box of both sides."""
        a, b = self.pair.a.dtype, self.pair.b.dtype
        right = read(self.b, self.pair.b, box).view(bits_dtype(b))
        return BitsOfPair(box, self.read(self.whole, box), right, a, b)
