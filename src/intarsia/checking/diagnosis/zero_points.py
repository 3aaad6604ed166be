"""Zero points of packed integers that differ by one throughout: GPTQ stores them less one, its second format as they are."""

from __future__ import annotations

import numpy as np

from intarsia.checking.diagnosis.finding import Finding
from intarsia.checking.pair.pairs import Pair, read_windows
from intarsia.checkpoint import Checkpoint
from intarsia.quantised import PartRole
from intarsia.run.budget import Budget
from intarsia.value.bits import Bits, bits_dtype

_SECOND = "gptq_v2"
_FIRST = ("", "gptq")


def find_zeros_by_one(a: Checkpoint, b: Checkpoint, pair: Pair, budget: Budget) -> Finding | None:
    """That every zero point of B is one more than A's, or one less."""
    found = [side.manifest.quantised.by_part.get(x.name) for side, x in ((a, pair.a), (b, pair.b))]
    if any(x is None or x[1].role is not PartRole.ZERO for x in found):
        return None
    if any(x.dtype.name not in ("I32", "U32") for x in (pair.a, pair.b)):
        return None
    schemes = [x[0].scheme for x in found if x]
    bits = {x.bits for x in schemes if x and x.bits} or {2, 4, 8}
    ways = {(n, sign) for n in bits if 32 % n == 0 for sign in (1, -1)}
    for _, left, right in read_windows(a, b, pair, budget):
        x, y = (raw.view(bits_dtype(pair.a.dtype)) for raw in (left, right))
        ways = {way for way in ways if _differ_by(x, y, *way)}
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
    n = pair.a.size
    return Finding(pair.a.name, "constant-added", fault, fault, fault, n, n, all_over=True)


def _differ_by(x: Bits, y: Bits, bits: int, sign: int) -> bool:
    """Whether each number of `bits` in the words differs by one, carried into the next or not."""
    low, high = (x, y) if sign > 0 else (y, x)
    ones = x.dtype.type(sum(1 << at for at in range(0, 32, bits)))
    if np.array_equal(low + ones, high):
        return True
    mask = x.dtype.type((1 << bits) - 1)
    shifts = (x.dtype.type(at) for at in range(0, 32, bits))
    return all(np.array_equal(((low >> k) + 1) & mask, (high >> k) & mask) for k in shifts)
