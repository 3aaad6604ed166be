"""Faults that single numbers of a tensor show: none at all, negative ones, implausible ones."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from math import inf, isfinite, log2

from intarsia.checking.fault import Fault
from intarsia.checking.survey.item_stats import ItemStats, Odd
from intarsia.state.names import MASTER

_MANTISSA = {"F16": 0x3FF, "BF16": 0x7F}
_FEWEST_BITS = 5
"""Bits of their mantissas that numbers of another type use; signs and powers of two use none."""

_SIGN = 0x8000
"""The sign of a 16-bit number; factors near one, such as a norm's of every head, have none."""

_LEAST_WEIGHT, _MOST_WEIGHT = 0.2, 1e-8
"""Every number of a matrix above the first, or below the second: no weights are like that."""

_LOWER = re.compile(r"(?:(?<=[._])|^)min(?=_[^.]*$|$)")
"""The word in the last part of a name that names a lower bound."""


_SCALE = re.compile("scale|scaling_factor")


def is_scale(name: str) -> bool:
    """Whether the last part of a name has what a scale's has."""
    return _SCALE.search(name.rpartition(".")[2]) is not None


def open_bounds(found: Sequence[ItemStats]) -> list[str]:
    """Single numbers that are the ends of an interval without bounds, `…min` and `…max`; of one end, it may have diverged."""
    if not any(stats.not_finite.count and stats.item.stored.layout.size == 1 for stats in found):
        return []
    return [x for n, m, lo, hi in _intervals(found) if (lo, hi) == (-inf, inf) for x in (n, m)]


def far_bounds(found: Sequence[ItemStats]) -> list[str]:
    """The same for ends that are both implausible as weights: ranges of sums that a model keeps as integers."""
    far = {stats.item.stored.name for stats in found if stats.absurd.count}
    ends = _intervals(found) if far else ()
    return [x for n, m, lo, hi in ends if lo <= hi and {n, m} <= far for x in (n, m)]


def _intervals(found: Sequence[ItemStats]) -> list[tuple[str, str, float, float]]:
    """The names of both ends of each interval, and the single numbers that they are."""
    single = {
        stats.item.stored.name: stats.value
        for stats in found
        if stats.item.kinds == {""} and stats.value is not None
    }
    ends = [(name, _LOWER.sub("max", name)) for name in single if _LOWER.search(name)]
    return [(n, m, single[n], single[m]) for n, m in ends if m in single]


def not_finite(stats: ItemStats, bounds: Collection[str]) -> Iterator[Fault]:
    """NaN or infinity; a mask may hold them, and so may the ends of an interval."""
    name = stats.item.stored.name
    if stats.not_finite.count and "mask" not in name.rpartition(".")[2] and name not in bounds:
        yield _odd("not-finite", stats, stats.not_finite, "NaN or infinite")


def negative_variance(stats: ItemStats) -> Iterator[Fault]:
    """A second moment below zero."""
    if stats.negative.count:
        yield _odd("negative-variance", stats, stats.negative, "negative")


def _odd(kind: str, stats: ItemStats, odd: Odd, what: str) -> Fault:
    stored = stats.item.stored
    text = (
        f"{odd.count:,} of {stored.layout.size:,} elements of `{stored.name}` are {what},"
        f" in {stats.item.files}"
    )
    return Fault(kind, odd.tensors(stored), f"{list(odd.first)} first", text, odd.count)


def dtype_implausible(stats: ItemStats) -> Iterator[Fault]:
    """Bits of bf16 read as fp16 lie between 0.25 and 4 on both sides of zero, those of fp16 read as bf16 far apart below 1e-8."""
    stored = stats.item.stored
    mantissa = stats.used_bits & _MANTISSA.get(stored.dtype.name, 0)
    if mantissa.bit_count() < _FEWEST_BITS:
        return
    if not any(p.telling for p in stats.matrices) or stats.item.kinds != {""}:
        return
    if is_scale(stored.name):
        return
    if stored.layout.size < 64 or stats.not_finite.count:
        return
    least, most = stats.number_of(stats.least), stats.number_of(stats.most)
    fp16 = stored.dtype.name == "F16" and least > _LEAST_WEIGHT and stats.used_bits & _SIGN
    bf16 = stored.dtype.name == "BF16" and 0 < most < _MOST_WEIGHT
    bf16 = bf16 and not _may_be_drawn(least, most, stored.layout.size)
    if fp16 or bf16:
        other = "BF16" if fp16 else "F16"
        text = (
            f"`{stored.name}` is declared as {stored.dtype}, and all its magnitudes are in"
            f" [{least:.2g}, {most:.2g}]: the bits are those of {other}"
        )
        names = stored.layout.tensors or (stored.name,)
        yield Fault("dtype-implausible", names, stats.item.files, text, stored.layout.size)


def _may_be_drawn(least: float, most: float, count: int) -> bool:
    """Whether so many numbers may be of one draw: the least is about the `count`-th part of the greatest.

    A bit of the exponent of fp16 is three bits higher in that of bf16: the numbers lie eight times as many octaves apart.

    >>> _may_be_drawn(1e-14, 4e-10, 4096), _may_be_drawn(1e-37, 4e-12, 4096)
    (True, False)
    """
    return least > 0 and log2(most / least) < 2 * log2(count) + 8


def value_implausible(stats: ItemStats, bounds: Collection[str]) -> Iterator[Fault]:
    """Numbers that no training gives a weight, and that memory which was never written holds."""
    if not stats.absurd.count:
        return
    stored = stats.item.stored
    leaf = stored.name.rpartition(".")[2]
    if "mask" in leaf or is_scale(leaf) or stats.item.kinds - {"", MASTER}:
        return
    if stored.name in bounds:
        return
    most = stats.number_of(stats.most)
    top = f", up to {most:.2g}" if isfinite(most) else ""
    yield _odd("value-implausible", stats, stats.absurd, f"beyond 1e8{top}")
