"""Sentences about values: what became of each element in its place."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from tests.faults.statements.held import NAMES, Held, Mask, differ_at

STEPS = {
    torch.float64: 2.0**-51,
    torch.float32: 2.0**-22,
    torch.float16: 2.0**-10,
    torch.bfloat16: 2.0**-7,
}
"""How far rounding may reach, relative to a number."""

PRINTED = 1e-5
"""How far a number that is printed with six digits may be from the one that is meant."""

Claim = Callable[[Held, Held], Mask]
Numbers = NDArray[np.float64]
TYPES = {name: dtype for dtype, name in NAMES.items()}


def value_claim(text: str) -> Claim | None:
    """Where a sentence of a known form holds."""
    for form, make in FORMS:
        if found := re.fullmatch(form, text):
            return _quiet(make(found))
    return None


def _quiet(claim: Claim) -> Claim:
    def checked(x: Held, y: Held) -> Mask:
        with np.errstate(all="ignore"):
            return claim(x, y)

    return checked


def _step(x: Held, y: Held) -> float:
    return max(STEPS.get(x.dtype, 0.0), STEPS.get(y.dtype, 0.0)) or 0.13


def _turnable(claim: Claim) -> Callable[[re.Match[str]], Claim]:
    return lambda found: (lambda x, y: claim(y, x)) if found["side"] == "A" else claim


def _all(claim: Claim) -> Claim:
    """What is said of every element holds of every element, or of none."""

    def holds(x: Held, y: Held) -> Mask:
        held = claim(x, y)
        return held if held.all() else np.zeros_like(held)

    return holds


def _rounded(found: re.Match[str]) -> Claim:
    to = TYPES[found["type"]]

    def holds(x: Held, y: Held) -> Mask:
        fine, rough = (y, x) if found["side"] == "A" else (x, y)
        return np.asarray(fine.to(to).to(fine.dtype).bits == rough.bits)

    return holds


def _recentred(found: re.Match[str]) -> Claim:
    by = -1.0 if found["how"] == "less" else 1.0

    def holds(x: Held, y: Held) -> Mask:
        fine, rough = (y, x) if found["side"] == "A" else (x, y)
        numbers = torch.from_numpy(fine.numbers)
        stored = (numbers + by).to(fine.dtype)
        return np.asarray((stored.double() - by).to(fine.dtype).double().numpy() == rough.numbers)

    return holds


def _nearly_all(claim: Claim) -> Claim:
    """What is said of nearly every element holds of nearly every one, not of every one, or of none."""

    def holds(x: Held, y: Held) -> Mask:
        held = claim(x, y)
        return held if 0.98 <= held.mean() < 1 else np.zeros_like(held)

    return holds


def _constant(found: re.Match[str]) -> Claim:
    n = float(found["n"])

    def holds(x: Held, y: Held) -> Mask:
        mine = y if found["side"] == "B" else x
        # `{:g}` has six digits.
        same = mine.numbers == np.nanmedian(mine.numbers)
        return np.asarray(same & (np.abs(mine.numbers - n) <= PRINTED * abs(n)))

    return _nearly_all(holds) if found["nearly"] else _all(holds)


def _steps(found: re.Match[str]) -> Claim:
    a, b = float(found["a"]), float(found["b"])
    return lambda x, y: np.asarray((x.numbers == a) & (y.numbers == b))


def _times(found: re.Match[str]) -> Claim:
    n = float(found["n"])

    def holds(x: Held, y: Held) -> Mask:
        u, v = (y.numbers, x.numbers) if found["side"] == "A" else (x.numbers, y.numbers)
        return np.asarray(np.abs(v - n * u) <= (_step(x, y) + PRINTED) * np.abs(v))

    return holds


def _inverted(found: re.Match[str]) -> Claim:
    return lambda x, y: np.asarray(np.abs(x.numbers * y.numbers - 1) <= _step(x, y) + PRINTED)


def _plus(found: re.Match[str]) -> Claim:
    n = float(found["n"]) * (1 if found["sign"] == "plus" else -1)

    def holds(x: Held, y: Held) -> Mask:
        u, v = (y.numbers, x.numbers) if found["side"] == "A" else (x.numbers, y.numbers)
        size = np.maximum(np.maximum(np.abs(u), np.abs(v)), abs(n))
        return np.asarray(np.abs(v - u - n) <= (_step(x, y) + PRINTED) * size)

    return holds


def _factors(found: re.Match[str]) -> Claim:
    """A factor for every row, column or block, of which the least and the greatest are told."""
    lo, hi = float(found["lo"]), float(found["hi"])

    def holds(x: Held, y: Held) -> Mask:
        u, v = (y.numbers, x.numbers) if found["side"] == "A" else (x.numbers, y.numbers)
        rows, columns = u.shape
        size = {"row": (1, columns), "column": (rows, 1)}.get(found["what"])
        size = size or (int(found["rows"]), int(found["columns"]))
        differ = differ_at(x, y)
        room, out = 2 * _step(x, y), np.zeros(u.shape, bool)
        for r in range(0, rows, size[0]):
            for c in range(0, columns, size[1]):
                at = np.s_[r : r + size[0], c : c + size[1]]
                # Which factor a block has is not told: the one that makes most of it.
                tried = [
                    _near(u[at], v[at], f, room) for f in factors(v[at] / u[at], differ[at], room)
                ]
                out[at] = max(tried, key=np.count_nonzero, default=np.zeros(u[at].shape, bool))
        return out

    def factors(ratio: Numbers, differ: Mask, room: float) -> Iterator[float]:
        for some in (ratio, ratio[differ]):
            fine = some[np.isfinite(some)]
            factor = float(np.median(fine)) if len(fine) else 0.0
            if lo - 0.001 * abs(lo) - room <= factor <= hi + 0.001 * abs(hi) + room:
                yield factor

    return holds


def _near(u: Numbers, v: Numbers, factor: float, room: float) -> Mask:
    return np.asarray(np.abs(v - u * factor) <= room * np.abs(v))


def _one_bit(x: Held, y: Held) -> Mask:
    both = x.bits ^ y.bits
    return np.asarray((both & (both - both.dtype.type(1))) == 0)


def _bits_zero(x: Held, y: Held) -> Mask:
    return np.asarray(y.numbers == 0)


N = r"(?P<n>-?[\d.]+(?:e[+-]?\d+)?)"
FORMS: list[tuple[str, Callable[[re.Match[str]], Claim]]] = [
    (r"(?P<side>A|B) is all zeros", _turnable(_all(_bits_zero))),
    (r"nearly all of (?P<side>A|B) is zero", _turnable(_nearly_all(_bits_zero))),
    (
        r"(?P<side>A|B) is zero where (?:A|B) is not",
        _turnable(lambda x, y: np.asarray((y.numbers == 0) | ~differ_at(x, y))),
    ),
    (
        r"(?P<side>A|B) is NaN where (?:A|B) has a number",
        _turnable(lambda x, y: np.asarray((np.isnan(y.numbers) & ~np.isnan(x.numbers)) | ~differ_at(x, y))),
    ),
    (r"(?P<side>A|B) is (?:A|B) rounded to (?P<type>\w+)", _rounded),
    (
        r"(?P<side>A|B) is (?:A|B) rounded (?P<how>less|plus) one, and back: a norm that was centred on another value",
        _recentred,
    ),
    (r"step (?P<a>[-\d.e+]+) in A, (?P<b>[-\d.e+]+) in B", _steps),
    (r"signs flipped", lambda found: lambda x, y: np.asarray(y.numbers == -x.numbers)),
    (
        r"(?P<side>A|B) is (?:A|B) without its signs",
        _turnable(lambda x, y: np.asarray(y.numbers == np.abs(x.numbers))),
    ),
    (r"one bit of an element flipped", lambda found: _one_bit),
    (rf"(?P<nearly>nearly )?every element of (?P<side>A|B) is {N}", _constant),
    (rf"(?P<side>A|B) is (?:A|B) times {N}", _times),
    (r"(?:A|B) is one divided by (?:A|B)", _inverted),
    (rf"(?P<side>A|B) is (?:A|B) (?P<sign>plus|minus) {N}", _plus),
    (
        r"(?P<side>A|B) is (?:A|B) times a factor for every (?P<what>row|column|block of (?P<rows>\d+) x (?P<columns>\d+)),"
        r" (?P<lo>\S+) to (?P<hi>\S+)",
        _factors,
    ),
]  # fmt: skip
"""Every form of a sentence about values."""
