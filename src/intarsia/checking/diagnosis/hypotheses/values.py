"""Hypotheses about values: the right elements in the right places, changed one by one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from intarsia.checking.diagnosis.evidence import Evidence
from intarsia.checking.diagnosis.hypotheses.scales import scale_hypotheses
from intarsia.checking.diagnosis.hypothesis import (
    NEARLY_ALL,
    BitsOfPair,
    ChangeOfValue,
    Hypothesis,
    Mask,
    Score,
    Shuffle,
)
from intarsia.checking.diagnosis.sample import SMALL
from intarsia.dtypes import BY_NAME, DType
from intarsia.layout import Layout
from intarsia.value import Shift
from intarsia.value import Window as ValueWindow
from intarsia.value.cast import cast

NARROW = ("BF16", "F16", "F8_E4M3", "F8_E5M2")
STEP = {"F64": 2.0**-51, "F32": 2.0**-22, "F16": 2.0**-10, "BF16": 2.0**-7}
"""Relative distance up to which two numbers of a type may be one number rounded twice."""

LEAST = 16
"""Differing elements, of several values, that a factor or a constant must explain."""


CONSTANT, ROUNDED = "constant", "rounded"
MADE_ANEW = 0.8
"""The share of a tensor that differs where all of it was initialised again."""

NO_SECOND_STEP = ("bits-flipped", "zero", "nan", CONSTANT)


def value_hypotheses(e: Evidence) -> Iterator[Hypothesis]:
    """Changes of value, the plainest first."""
    a, b = e.pair.a.dtype, e.pair.b.dtype
    right, left = e.right, e.left
    for side, in_b in ((right, True), (left, False)):
        text, nearly = f"{side} is all zeros", f"nearly all of {side} is zero"
        yield Hypothesis("zero", text, partial(_is, in_b, 0.0), nearly=nearly, side=side)
    if not (a.floating and b.floating):
        yield from _flipped(a == b)
        return
    text = f"{right} is NaN where {left} has a number"
    yield Hypothesis("nan", text, lambda w: _nan_in(w.v, w.u, w), side=right)
    text = f"{left} is NaN where {right} has a number"
    yield Hypothesis("nan", text, lambda w: _nan_in(w.u, w.v, w), side=left)
    if a == b:
        yield from roundings(e)
        ways = ((f"{right} is {left}", False), (f"{left} is {right}", True))
        for by, how in ((-1.0, "less one"), (1.0, "plus one")):
            for text, flip in ways:
                there = f"{text} rounded {how}, and back: a norm that was centred on another value"
                yield Hypothesis(ROUNDED, there, partial(_recentred, by, flip), text)
    yield from _constant(e)
    yield Hypothesis("signs-flipped", "signs flipped", lambda w: w.v == -w.u)
    yield from _unsigned(e)
    step = max(STEP.get(a.name, 0.0), STEP.get(b.name, 0.0)) or 0.13
    # Times a power of two is one bit of the exponent in numbers of one size, as scales are.
    yield from _estimated(e, step)
    yield from _flipped(a == b)
    yield from scale_hypotheses(e, step)


def roundings(e: Evidence, *, to_one_number: bool = False) -> Iterator[Hypothesis]:
    """One side rounded; `to_one_number` also where all numbers became one, as those of a norm near 1 do."""
    own = e.pair.a.dtype
    if not own.floating or own != e.pair.b.dtype:
        return
    for narrow in map(BY_NAME.__getitem__, NARROW):
        if narrow != own and narrow.itemsize <= own.itemsize:
            for flip, (rough, fine) in enumerate(((e.right, e.left), (e.left, e.right))):
                text, predict = f"{rough} is {fine}", partial(_rounded, narrow, flip, to_one_number)
                yield Hypothesis(ROUNDED, f"{text} rounded to {narrow.name}", predict, text)


def _unsigned(e: Evidence) -> Iterator[Hypothesis]:
    """The size of every number; of a few numbers single bits may have flipped."""
    if sum(np.count_nonzero(w.unequal) for w in e.sample) < LEAST // 4:
        return
    ways: tuple[tuple[str, str, ChangeOfValue], ...] = (
        (e.right, e.left, lambda w: w.v == np.abs(w.u)),
        (e.left, e.right, lambda w: w.u == np.abs(w.v)),
    )
    for side, whole, predict in ways:
        text = f"{side} is {whole} without its signs"
        yield Hypothesis("signs-flipped", text, predict, text, side=side)


def _flipped(alike: bool) -> Iterator[Hypothesis]:
    if alike:
        yield Hypothesis("bits-flipped", "one bit of an element flipped", _one_bit)


def changed_after(e: Evidence, h: Hypothesis) -> tuple[Score, Hypothesis] | None:
    """The change of every element's value that explains B once A is rearranged as `h` says."""
    assert isinstance(h.predict, Layout)
    moved = e.moved(h.predict)
    for value in value_hypotheses(moved):
        if value.kind in NO_SECOND_STEP or moved.on_sample(value).share < NEARLY_ALL:
            continue
        assert not isinstance(value.predict, Layout | Shuffle)
        score = e.on_all(replace(h, then=value.predict))
        if score.holds:
            return score, value
    return None


def _constant(e: Evidence) -> Iterator[Hypothesis]:
    """One number all over a tensor of several, as where it was initialised again and never filled."""
    share = np.concatenate([w.unequal.reshape(-1) for w in e.sample]).mean()
    if share < MADE_ANEW or prod(e.shape) == 1:
        return
    for side, in_b in ((e.right, True), (e.left, False)):
        sampled = [w.v if in_b else w.u for w in e.sample]
        held, counts = np.unique(
            np.concatenate([x.reshape(-1) for x in sampled]), return_counts=True
        )
        if prod(e.shape) > SMALL and counts.max() >= NEARLY_ALL * counts.sum():
            held = held[[counts.argmax()]]  # a sample has what is rare as often as it can
        if len(held) == 1 and held[0] and np.isfinite(held[0]):
            number = float(held[0])
            text = f"every element of {side} is {number:g}"
            yield Hypothesis(
                CONSTANT, text, partial(_is, in_b, number), (side, number), nearly=f"nearly {text}",
                side=side,
            )  # fmt: skip


def _is(in_b: bool, number: float, w: BitsOfPair) -> Mask:
    return np.asarray((w.v if in_b else w.u) == number)


def _estimated(e: Evidence, step: float) -> Iterator[Hypothesis]:
    """A factor, a constant, and inverses, as the sample suggests them."""
    u = np.concatenate([w.u[w.unequal] for w in e.sample])
    v = np.concatenate([w.v[w.unequal] for w in e.sample])
    fine = np.isfinite(u) & np.isfinite(v)
    u, v = u[fine], v[fine]
    # Norms near one are their own inverses but for rounding.
    telling = len(np.unique(u)) >= LEAST // 4 or step <= STEP["F32"]
    if telling and len(u) and np.mean(np.abs(u * u - 1) > 4 * step) >= 0.5:
        text = f"{e.right} is one divided by {e.left}"
        yield Hypothesis("scaled", text, partial(_inverted, step))
    if len(u) < LEAST or len(np.unique(u)) < LEAST // 2:
        return
    big = np.abs(u) > 0
    if big.any() and np.count_nonzero(v):
        with np.errstate(over="ignore"):
            near = float(np.median(v[big] / u[big]))
        kept = big & (np.abs(v - near * u) <= step * np.abs(v))
        if near and kept.any():
            factor = _round(float(np.dot(u[kept], v[kept]) / np.dot(u[kept], u[kept])), step)
            if abs(factor - 1) > 2 * step:
                text = f"{e.right} is {e.left} times {factor:.6g}"
                yield Hypothesis("scaled", text, partial(_scaled, factor, step), round(factor, 4))
    constant = _round(float(np.median(v - u)), step)
    size = float(np.median(np.abs(u)))
    # Otherwise rounding alone would pass for the constant, or hide that there is none.
    if abs(constant) > 2 * step * size and np.std(u) > step * abs(constant):
        sign = "plus" if constant > 0 else "minus"
        text = f"{e.right} is {e.left} {sign} {abs(constant):.6g}"
        yield Hypothesis("constant-added", text, partial(_added, constant, step), constant)


def _round(number: float, step: float) -> float:
    """A whole, half or quarter number where `number` is one but for rounding."""
    plain = round(number * 4) / 4
    return plain if plain and abs(number - plain) <= step * abs(plain) else number


def _scaled(factor: float, step: float, w: BitsOfPair) -> Mask:
    with np.errstate(invalid="ignore", over="ignore"):
        return _close(w.v, w.u * factor, step * np.abs(w.v))


def _inverted(step: float, w: BitsOfPair) -> Mask:
    with np.errstate(invalid="ignore", over="ignore"):
        return _close(w.u * w.v, np.ones_like(w.u), np.full_like(w.u, step))


def _added(constant: float, step: float, w: BitsOfPair) -> Mask:
    with np.errstate(invalid="ignore", over="ignore"):
        size = np.maximum(np.maximum(np.abs(w.u), np.abs(w.v)), abs(constant))
        return _close(w.v, w.u + constant, step * size)


def _close(x: NDArray[Any], y: NDArray[Any], room: NDArray[Any]) -> Mask:
    return np.asarray(np.abs(x - y) <= room)


def _nan_in(broken: NDArray[Any], whole: NDArray[Any], w: BitsOfPair) -> Mask:
    return np.asarray((np.isnan(broken) & ~np.isnan(whole)) | ~w.unequal)


def _one_bit(w: BitsOfPair) -> Mask:
    both = w.x ^ w.y
    return np.asarray((both & (both - both.dtype.type(1))) == 0)


def _rounded(narrow: DType, flip: int, to_one_number: bool, w: BitsOfPair) -> Mask:
    """Where one side is the other rounded; zeros alone, or one number for several, may have come there otherwise."""
    fine, rough = (w.y, w.x) if flip else (w.x, w.y)
    if not np.count_nonzero((w.u if flip else w.v)[w.unequal]):
        return ~w.unequal
    alike = [bool((x[w.unequal] == x[w.unequal][0]).all()) for x in (rough, fine)]
    if alike == [True, False] and not to_one_number:
        return ~w.unequal
    return np.asarray(cast(cast(fine, w.a, narrow), narrow, w.a) == rough)


def _recentred(by: float, flip: bool, w: BitsOfPair) -> Mask:
    """Where one side is the other as it is read where it was stored plus `by`."""
    fine, rough = (w.y, w.x) if flip else (w.x, w.y)
    stored = Shift(by).encode(ValueWindow(fine, w.a), w.a)
    return np.asarray(Shift(by).decode(ValueWindow(stored, w.a), w.a) == rough)
