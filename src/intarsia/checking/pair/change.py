"""How far the tensors of two checkpoints moved, in numbers that neither overflow nor round a large integer.

An infinity beside the same one, and NaN beside NaN, have not moved; they are counted, and left out
of the norms.  A number beside NaN moved by NaN, beside an infinity by infinity.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import copysign, inf, isfinite, isnan, nan, sqrt
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from intarsia.checking.pair.pairs import Pair, match, read_windows
from intarsia.checkpoint import Checkpoint
from intarsia.document import Document
from intarsia.dtypes import DType
from intarsia.errors import few_lines
from intarsia.frozen import frozen, frozen_open
from intarsia.mesh import Shape
from intarsia.quantised.refusing import DIFF, refuse_numbers
from intarsia.run.budget import Budget
from intarsia.run.progress import Progress
from intarsia.run.sharing import share_out
from intarsia.value.bits import Bits, as_float64, bits_dtype
from intarsia.value.codes import OF_FOUR_BITS

Floats = NDArray[np.float64]
Number = float | int
_WIDE = {"I64": "i8", "U64": "u8"}
_EXACT = 2.0**53
"""Up to here every integer is a number of double precision."""


@frozen
class TensorChange(Document):
    """How far one tensor moved from A to B; `not_finite` counts NaN and infinities in A and in B."""

    tensor: str
    elements: int
    max_abs: Number
    rms: float
    relative: float
    cosine: float
    not_finite: tuple[int, int] = (0, 0)

    def __str__(self) -> str:
        far = f"{self.max_abs:,}" if isinstance(self.max_abs, int) else f"{self.max_abs:.4g}"
        numbers = f"rms {self.rms:.4g}, relative {self.relative:.4g}, cosine {self.cosine:.4g}"
        return f"{self.tensor}: max abs {far}, {numbers}"

    @property
    def rank(self) -> tuple[object, ...]:
        """The furthest first: what is not a number, infinities, then by relative distance and by name."""
        far = 0 if isnan(self.max_abs) else 1 if self.max_abs == inf else 2
        return (
            far,
            -self.relative if far == 2 else 0.0,
            -self.max_abs if far == 2 else 0,
            self.tensor,
        )


@frozen
class ShapesDiffer(Document):
    """A tensor whose shapes differ, so that no distance can be measured."""

    tensor: str
    shape_a: Shape
    shape_b: Shape

    def as_json(self) -> dict[str, Any]:
        return {"tensor": self.tensor, "a": list(self.shape_a), "b": list(self.shape_b)}

    def __str__(self) -> str:
        return f"{self.tensor} {list(self.shape_a)} in A, {list(self.shape_b)} in B"


@frozen_open
class Changes(Document, Sequence[TensorChange]):
    """The changes of all tensors, the furthest first, and the tensors that could not be measured."""

    tensors: tuple[TensorChange, ...]
    unlike: tuple[ShapesDiffer, ...] = ()
    only_in_a: tuple[str, ...] = ()
    only_in_b: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @overload
    def __getitem__(self, index: int) -> TensorChange: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[TensorChange]: ...
    def __getitem__(self, index: int | slice) -> TensorChange | Sequence[TensorChange]:
        return self.tensors[index]

    def __len__(self) -> int:
        return len(self.tensors)

    def __str__(self) -> str:
        lists: tuple[tuple[str, Sequence[object]], ...] = (
            ("tensors, the furthest first", self.tensors),
            ("of unlike shapes", self.unlike),
            ("only in A", self.only_in_a),
            ("only in B", self.only_in_b),
        )
        said = [f"{len(x):,} {title}{few_lines([*map(str, x)])}" for title, x in lists if x]
        return "\n".join(said) or "no tensor is in both"


def changes(
    a: Checkpoint, b: Checkpoint, budget: Budget, progress: Progress | None = None
) -> Changes:
    """How far every tensor that both checkpoints hold moved, and which could not be measured."""
    what = "measuring how much weights changed needs their numbers"
    for side in (a, b):
        refuse_numbers(side.manifest.quantised, side.manifest.path, what, hint=DIFF)
        side.prover.all()
    matched = match(a, b)
    same = [p for p in matched.pairs if p.a.shape == p.b.shape]
    found = share_out(
        same,
        budget.workers,
        lambda pair: _change(a, b, pair, budget),
        progress=progress,
        nbytes=lambda p: p.a.nbytes,
    )
    unlike = [p for p in matched.pairs if p.a.shape != p.b.shape]
    return Changes(
        tuple(sorted(found, key=lambda change: change.rank)),
        tuple(ShapesDiffer(p.a.name, p.a.shape, p.b.shape) for p in unlike),
        matched.only_in_a,
        matched.only_in_b,
        matched.notes,
    )


@dataclass
class _ScaledSum:
    """A sum of products as `value * 2**exponent`, so that it neither overflows nor vanishes."""

    value: float = 0.0
    exponent: int = 0

    def add(self, value: float, exponent: int) -> None:
        if value == 0:
            return
        if self.value == 0 or exponent > self.exponent:
            self.value = float(np.ldexp(self.value, max(-4000, self.exponent - exponent)))
            self.exponent = exponent
        self.value += float(np.ldexp(value, max(-4000, exponent - self.exponent)))

    def root_over(self, other: _ScaledSum) -> float:
        """The square root of this sum over another."""
        ratio = sqrt(self.value / other.value)
        half, odd = divmod(self.exponent - other.exponent, 2)
        return _scaled(ratio * (sqrt(2) if odd else 1), half)


def _scaled(value: float, exponent: int) -> float:
    with np.errstate(over="ignore", under="ignore"):
        return float(np.ldexp(value, max(-4000, min(4000, exponent))))


@dataclass
class _Measure:
    """What windows of a pair come to."""

    most: Number = 0
    worst: float = 0.0
    gaps: _ScaledSum = field(default_factory=_ScaledSum)
    left: _ScaledSum = field(default_factory=_ScaledSum)
    right: _ScaledSum = field(default_factory=_ScaledSum)
    both: _ScaledSum = field(default_factory=_ScaledSum)
    odd: tuple[int, int] = (0, 0)

    def add(self, u: Floats, v: Floats, gap: Floats, most: Number) -> None:
        self.odd = self.odd[0] + _odd(u), self.odd[1] + _odd(v)
        if np.isnan(gap).any():
            self.worst = nan
        elif np.isinf(gap).any() and not isnan(self.worst):
            self.worst = inf
        self.most = max(self.most, most)
        shared = np.isfinite(u) & np.isfinite(v)
        (gap, g), (u, m), (v, n) = (_normal(np.where(shared, x, 0.0)) for x in (gap, u, v))
        self.gaps.add(float(gap @ gap), 2 * g)
        self.left.add(float(u @ u), 2 * m)
        self.right.add(float(v @ v), 2 * n)
        self.both.add(float(u @ v), m + n)


def _change(a: Checkpoint, b: Checkpoint, pair: Pair, budget: Budget) -> TensorChange:
    found = _Measure()
    for _, left, right in read_windows(a, b, pair, budget):
        x, y = left.view(bits_dtype(pair.a.dtype)), right.view(bits_dtype(pair.b.dtype))
        if x.size:
            with np.errstate(invalid="ignore", over="ignore", under="ignore"):
                found.add(*distances(x, y, pair.a.dtype, pair.b.dtype))
    size = pair.a.size
    count = float(size * (pair.a.dtype.packs if pair.a.dtype == pair.b.dtype else 1))
    rms = found.gaps.root_over(_ScaledSum(count)) if size else 0.0
    moved = found.gaps.value > 0
    relative = found.gaps.root_over(found.left) if found.left.value else inf if moved else 0.0
    cosine = _cosine(found, moved)
    if found.worst:
        return TensorChange(
            pair.a.name, size, found.worst, found.worst, found.worst, nan, found.odd
        )
    return TensorChange(pair.a.name, size, found.most, rms, relative, cosine, found.odd)


def _cosine(found: _Measure, moved: bool) -> float:
    if not (moved and found.left.value and found.right.value):
        return 0.0 if moved else 1.0
    scale = found.both.exponent - (found.left.exponent + found.right.exponent) // 2
    value = _scaled(found.both.value / sqrt(found.left.value) / sqrt(found.right.value), scale)
    return value if abs(value) <= 1 else copysign(1.0, value)


def distances(x: Bits, y: Bits, a: DType, b: DType) -> tuple[Floats, Floats, Floats, Number]:
    """Elements as numbers of double precision, the distances, and the largest of those, exactly."""
    if a == b and a.packs > 1:
        u, v = (OF_FOUR_BITS[np.stack((bits & 15, bits >> 4), -1).reshape(-1)] for bits in (x, y))
        return u, v, v - u, float(np.abs(v - u).max())
    u, v = as_float64(x, a), as_float64(y, b)
    if a.name in _WIDE or b.name in _WIDE:
        gap, most = _wide_gap(x, y, a, b, u, v)
        return u, v, gap, most
    same = (u == v) | (np.isnan(u) & np.isnan(v))
    if np.iscomplexobj(u) or np.iscomplexobj(v):
        return _complex(u.astype(np.complex128), v.astype(np.complex128))
    gap = np.where(same, 0.0, v - u)
    return u, v, gap, _largest(np.abs(gap), a, b)


def _complex(u: Any, v: Any) -> tuple[Floats, Floats, Floats, Number]:
    """Complex elements as twice as many numbers; the distance is that of both parts."""
    left, right = u.view(np.float64), v.view(np.float64)
    same = (left == right) | (np.isnan(left) & np.isnan(right))
    gap = np.where(same, 0.0, right - left)
    return left, right, gap, float(np.hypot(gap[0::2], gap[1::2]).max())


def _wide_gap(x: Bits, y: Bits, a: DType, b: DType, u: Floats, v: Floats) -> tuple[Floats, Number]:
    """Distances between elements, where some are 64-bit integers."""
    if a == b:
        p, q = (np.ascontiguousarray(bits).view(_WIDE[a.name]) for bits in (x, y))
        gap = np.where(p > q, x.view("u8") - y.view("u8"), y.view("u8") - x.view("u8"))
        return gap.astype(np.float64), int(gap.max())
    gap = np.where(u == v, 0.0, np.abs(v - u))
    large = np.flatnonzero((np.abs(u) >= _EXACT) | (np.abs(v) >= _EXACT))
    most: Number = _largest(np.delete(gap, large), a, b) if large.size < gap.size else 0
    for k in large.tolist():
        here, there = _exactly(x[k], u[k], a), _exactly(y[k], v[k], b)
        if here is not None and there is not None:
            far = abs(here - there)
            gap[k] = float(far)
            most = max(most, int(far) if far.denominator == 1 else float(far))
    return gap, most


def _exactly(bits: Any, number: float, dtype: DType) -> Fraction | None:
    if dtype.name in _WIDE:
        return Fraction(int(np.asarray(bits).reshape(1).view(_WIDE[dtype.name])[0]))
    return Fraction(float(number)) if isfinite(number) else None


def _largest(gap: Floats, a: DType, b: DType) -> Number:
    most = float(gap.max())
    whole = not (a.floating or b.floating) and isfinite(most)
    return int(most) if whole else most


def _odd(x: Floats) -> int:
    return int(x.size - np.isfinite(x).sum())


def _normal(x: Floats) -> tuple[Floats, int]:
    """Numbers scaled so that the largest is about one, and by what power of two they were."""
    most = float(np.abs(x).max())
    if most == 0:
        return x, 0
    exponent = int(np.frexp(most)[1])
    return np.ldexp(x, -exponent), exponent
