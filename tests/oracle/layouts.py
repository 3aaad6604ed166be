"""NumPy twins of layouts: what a layout means, written the slow and obvious way.

`ids(layout)` materialises the id array.  `expressions()` draws a random expression and builds it
twice, as a `Layout` and in NumPy, so that any operation can be checked by comparing the two.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from itertools import product

import numpy as np
from hypothesis import strategies as st

from intarsia.layout import Layout, Loop, Piece, chunk, concat, padding, split, stack

TENSORS = {"w": 0, "v": 100_000}
"""The first id of each tensor, so that one integer says tensor and element."""

PADDING = -1

Twin = tuple[Layout, np.ndarray]


def pairs(p: Piece) -> list[tuple[int, int]]:
    """Every `(at, to)` that the piece names, repeats included."""
    out = []
    for steps in product(*(range(loop.n) for loop in p.loops)):
        at = sum(x * loop.at for x, loop in zip(steps, p.loops, strict=True))
        to = sum(x * loop.to for x, loop in zip(steps, p.loops, strict=True))
        out.append((p.at + at, p.to + to))
    return out


def all_pairs(pieces: Iterable[Piece]) -> Counter[tuple[int, int]]:
    """How often `pieces` name each `(at, to)`."""
    return Counter(pair for p in pieces for pair in pairs(p))


def ids(x: Layout, first_id: dict[str, int] | None = None) -> np.ndarray:
    """The id array of a layout, padding as -1; no place may be filled twice."""
    first_id = TENSORS if first_id is None else first_id
    out = np.full(x.size, PADDING, dtype=np.int64)
    for p in x.pieces:
        for at, to in pairs(p):
            assert out[at] == PADDING, f"place {at} is filled twice"
            out[at] = first_id[p.tensor] + to
    return out.reshape(x.shape)


def arange(tensor: str, shape: tuple[int, ...]) -> np.ndarray:
    return TENSORS[tensor] + np.arange(math.prod(shape)).reshape(shape)


def joint(src: np.ndarray, dst: np.ndarray) -> Counter[tuple[int, int]]:
    """Every pair of places, in `src` and in `dst`, that hold the same element."""
    where: dict[int, list[int]] = {}
    for to, element in enumerate(dst.reshape(-1).tolist()):
        where.setdefault(element, []).append(to)
    where.pop(PADDING, None)
    flat = enumerate(src.reshape(-1).tolist())
    return Counter((at, to) for at, element in flat for to in where.get(element, ()))


def runs_of(indices: Iterable[int]) -> list[tuple[int, int]]:
    """A set of integers as maximal ranges `[lo, hi)`."""
    out: list[tuple[int, int]] = []
    for i in sorted(set(indices)):
        if out and out[-1][1] == i:
            out[-1] = out[-1][0], i + 1
        else:
            out.append((i, i + 1))
    return out


def pieces(most: int = 12) -> st.SearchStrategy[Piece]:
    """Any piece at all: strides that repeat, overlap, vanish or do not divide each other."""
    loop = st.builds(Loop, n=st.integers(1, 5), at=st.integers(0, most), to=st.integers(0, most))
    index = st.integers(0, 2 * most)
    return st.builds(Piece, st.just("w"), index, index, st.lists(loop, max_size=3).map(tuple))


_sizes = st.sampled_from([3, 2, 4, 1, 5, 6, 7, 3, 2, 4, 6, 0])


@st.composite
def expressions(draw: st.DrawFn, depth: int = 6, largest: int = 2_000) -> Twin:
    """A random expression of at most `depth` operations, as a layout and as its id array."""
    tensor = draw(st.sampled_from(sorted(TENSORS)))
    shape = tuple(draw(st.lists(_sizes, min_size=0, max_size=4)))
    twin = Layout.of(tensor, shape), arange(tensor, shape)
    for _ in range(draw(st.integers(0, depth))):
        bigger = draw(st.sampled_from(OPERATIONS))(draw, *twin)
        if bigger[0].size <= largest:
            twin = bigger
    return twin


def _reshape(draw: st.DrawFn, x: Layout, a: np.ndarray) -> Twin:
    left, shape = x.size, []
    while left > 1:
        n = draw(st.sampled_from([k for k in range(2, left + 1) if left % k == 0]))
        shape.append(n)
        left //= n
    shape = draw(st.permutations([*shape, *([1] if draw(st.booleans()) else [])]))
    if x.size == 0:
        shape = [*shape, 0]
    elif shape and draw(st.booleans()):
        shape = [*shape[:-1], -1]
    return x.reshape(*shape), a.reshape(shape)


def _permute(draw: st.DrawFn, x: Layout, a: np.ndarray) -> Twin:
    axes = draw(st.permutations(range(a.ndim)))
    return x.permute(*axes), a.transpose(axes)


def _transpose(draw: st.DrawFn, x: Layout, a: np.ndarray) -> Twin:
    if not a.ndim:
        return x, a
    one, two = _axis(draw, a), _axis(draw, a)
    return x.transpose(one, two), a.swapaxes(one, two)


def _narrow(draw: st.DrawFn, x: Layout, a: np.ndarray) -> Twin:
    if not a.ndim:
        return x, a
    axis = _axis(draw, a)
    lo, hi = _slice(draw, a.shape[axis])
    return x.narrow(axis, lo, hi), np.take(a, range(lo, hi), axis)


def _flat(draw: st.DrawFn, x: Layout, a: np.ndarray) -> Twin:
    lo, hi = _slice(draw, x.size)
    return x.reshape(x.size).narrow(0, lo, hi), a.reshape(-1)[lo:hi]


def _box(draw: st.DrawFn, x: Layout, a: np.ndarray) -> Twin:
    slices = [_slice(draw, n) for n in a.shape]
    box = x.box([lo for lo, _ in slices], [hi - lo for lo, hi in slices])
    return box, a[tuple(slice(lo, hi) for lo, hi in slices)]


def _rotate(draw: st.DrawFn, x: Layout, a: np.ndarray) -> Twin:
    if not a.ndim:
        return x, a
    axis = _axis(draw, a)
    cut = draw(st.integers(0, a.shape[axis]))
    head, tail = split(x, [cut, a.shape[axis] - cut], axis)
    return concat([tail, head], axis), np.roll(a, -cut, axis)


def _fuse(draw: st.DrawFn, x: Layout, a: np.ndarray) -> Twin:
    if not a.ndim:
        return x, a
    axis, tensor = _axis(draw, a), draw(st.sampled_from(sorted(TENSORS)))
    shape = list(a.shape)
    shape[axis] = draw(_sizes)
    other = Layout.of(tensor, shape), arange(tensor, tuple(shape))
    both = draw(st.permutations([(x, a), other]))
    return concat([layout for layout, _ in both], axis), np.concatenate(
        [array for _, array in both], axis
    )


def _pad(draw: st.DrawFn, x: Layout, a: np.ndarray) -> Twin:
    if not a.ndim:
        return x, a
    axis, shape = _axis(draw, a), list(a.shape)
    shape[axis] = draw(st.integers(0, 3))
    return (
        concat([x, padding(*shape)], axis),
        np.concatenate([a, np.full(shape, PADDING, dtype=np.int64)], axis),
    )


def _stack(draw: st.DrawFn, x: Layout, a: np.ndarray) -> Twin:
    axis, n = draw(st.integers(-a.ndim - 1, a.ndim)), draw(st.integers(1, 3))
    blank = padding(*a.shape), np.full(a.shape, PADDING, dtype=np.int64)
    parts = [draw(st.sampled_from([(x, a), blank])) for _ in range(n)]
    return stack([layout for layout, _ in parts], axis), np.stack(
        [array for _, array in parts], axis
    )


def _expand(draw: st.DrawFn, x: Layout, a: np.ndarray) -> Twin:
    axis, n = draw(st.integers(0, a.ndim)), draw(st.integers(0, 3))
    thin = (*a.shape[:axis], 1, *a.shape[axis:])
    return x.reshape(*thin).expand(axis, n), np.repeat(a.reshape(thin), n, axis)


def _chunk(draw: st.DrawFn, x: Layout, a: np.ndarray) -> Twin:
    if not a.ndim:
        return x, a
    axis, n = _axis(draw, a), draw(st.integers(1, 4))
    i = draw(st.integers(0, n - 1))
    step = -(-a.shape[axis] // n)
    wanted = range(a.shape[axis])[i * step : (i + 1) * step]
    return chunk(x, n, axis)[i], np.take(a, wanted, axis)


def _interleave(draw: st.DrawFn, x: Layout, a: np.ndarray) -> Twin:
    """Grouped heads and strided shards: cut, then take one part of every cut."""
    if not a.ndim:
        return x, a
    axis, outer, inner = _axis(draw, a), draw(st.integers(1, 3)), draw(st.integers(1, 3))
    i = draw(st.integers(0, inner - 1))
    strided = concat([chunk(part, inner, axis)[i] for part in chunk(x, outer, axis)], axis)
    n = a.shape[axis]
    step = -(-n // outer)
    wanted: list[int] = []
    for first in range(0, outer * step, step or 1):
        part = range(n)[first : first + step]
        small = -(-len(part) // inner)
        wanted += part[i * small : (i + 1) * small]
    return strided, np.take(a, np.array(wanted, dtype=int), axis)


OPERATIONS = [
    _reshape, _permute, _narrow, _flat, _box, _rotate, _fuse,
    _pad, _stack, _expand, _chunk, _interleave, _transpose,
]  # fmt: skip


def _axis(draw: st.DrawFn, a: np.ndarray) -> int:
    return draw(st.integers(-a.ndim, a.ndim - 1))


def _slice(draw: st.DrawFn, n: int) -> tuple[int, int]:
    lo, hi = sorted((draw(st.integers(0, n)), draw(st.integers(0, n))))
    return lo, hi
