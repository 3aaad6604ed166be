"""Parts of quantised weights that differ in a way of their own, as what their numbers stand for is known."""

from __future__ import annotations

import numpy as np

from intarsia.checking.content.scales.code_blocks import is_exponents
from intarsia.checking.diagnosis.evidence import Evidence
from intarsia.checking.diagnosis.finding import Finding
from intarsia.checking.diagnosis.hypothesis import ENOUGH, Bits
from intarsia.mesh import Box
from intarsia.quantised import PartRole, WeightPart

_BIAS = 127
"""The exponent of one."""

_SECOND = "gptq_v2"
_FIRST = ("", "gptq")


def find_of_part(e: Evidence) -> Finding | None:
    """What makes A's part of a quantised weight B's."""
    held = e.a.manifest.quantised.by_part.get(e.name)
    if held is None:
        return None
    return _regrouped(e, held[1]) or _zeros_by_one(e) or _scaled_exponents(e, held[1])


def _regrouped(e: Evidence, part: WeightPart) -> Finding | None:
    """That columns of a quantised weight are in other groups, where each group has as many of them on both sides."""
    if part.role is not PartRole.ORDER or e.pair.a.dtype != e.pair.b.dtype:
        return None
    w = e.window(Box.whole(e.shape))
    if not np.array_equal(np.sort(w.x), np.sort(w.y)):
        return None
    count = int(np.count_nonzero(w.x != w.y))
    said = "columns are in other groups; each group has as many columns in A as in B"
    text = f"{count:,} of {e.pair.a.size:,} {said}"
    return Finding(e.name, "rows-permuted", text, said, said, count, count)


def _zeros_by_one(e: Evidence) -> Finding | None:
    """That every zero point of B is one more than A's, or one less: GPTQ stores them less one, its second format as they are."""
    sides = ((e.a, e.pair.a), (e.b, e.pair.b))
    found = [side.manifest.quantised.by_part.get(x.name) for side, x in sides]
    if any(x is None or x[1].role is not PartRole.ZERO for x in found):
        return None
    if any(x.dtype.name not in ("I32", "U32") for _, x in sides):
        return None
    schemes = [x[0].scheme for x in found if x]
    bits = {x.bits for x in schemes if x and x.bits} or {2, 4, 8}
    ways = {(n, sign) for n in bits if 32 % n == 0 for sign in (1, -1)}
    for w in e.windows():
        ways = {way for way in ways if _differ_by(w.x, w.y, *way)}
    if len(ways) != 1:
        return None
    ((_, sign),) = ways
    formats = [x.format if x else None for x in schemes][::sign]
    said = "as their configurations say: the weights are the same"
    if formats[0] not in _FIRST or formats[1] != _SECOND:
        said = "and their configurations do not say so: one of the two is another weight"
    fault = (
        f"every zero point of B is A's {'plus' if sign > 0 else 'less'} one, as between GPTQ's formats"
        f" gptq (v1) and gptq_v2, {said}"
    )
    return _all_over(e, "constant-added", fault)


def _differ_by(x: Bits, y: Bits, bits: int, sign: int) -> bool:
    """Whether each number of `bits` in the words differs by one, carried into the next or not."""
    low, high = (x, y) if sign > 0 else (y, x)
    ones = x.dtype.type(sum(1 << at for at in range(0, 32, bits)))
    if np.array_equal(low + ones, high):
        return True
    mask = x.dtype.type((1 << bits) - 1)
    shifts = (x.dtype.type(at) for at in range(0, 32, bits))
    return all(np.array_equal(((low >> k) + 1) & mask, (high >> k) & mask) for k in shifts)


def _scaled_exponents(e: Evidence, part: WeightPart) -> Finding | None:
    """That every scale of B, an exponent of two, is A's times one power of two, or one divided by it."""
    exponents = is_exponents(part) or part.dtype.name == "F8_E8M0"
    if not exponents or e.pair.a.dtype != e.pair.b.dtype or e.pair.a.size < ENOUGH:
        return None
    sums, distances = set[int](), set[int]()
    for w in e.windows():
        sums |= {*np.unique(w.x + w.y).tolist()}
        distances |= {*np.unique(w.y - w.x).tolist()}
        if len(sums) > 1 < len(distances):
            return None
    text = "B is one divided by A"
    if len(distances) == 1:
        (by,) = distances
        text = f"B is A times 2^{by if by <= _BIAS else by - 256}"
    elif sums != {2 * _BIAS}:
        return None
    return _all_over(e, "scaled", text)


def _all_over(e: Evidence, kind: str, text: str) -> Finding:
    n = e.pair.a.size
    return Finding(e.name, kind, text, text, text, n, n, all_over=True)
