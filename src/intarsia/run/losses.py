"""What a cast does to numbers: how many are rounded, how many become zero, and which do not fit.

A number that does not fit its new type is refused, wherever it is met; the rest is counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import numpy as np

from intarsia.document import Document
from intarsia.dtypes import DType, greatest, overflows_at
from intarsia.errors import PrecisionError
from intarsia.frozen import frozen
from intarsia.layout import Piece, unravel
from intarsia.mesh import Box
from intarsia.planning.manifest import Target
from intarsia.value import Change, Window
from intarsia.value.bits import Bits

AT_ONCE = 1 << 17
"""Elements that are numbers of double precision at one time."""


class Effect(StrEnum):
    """What happened to elements: the type could not hold them, or nothing of them; or a norm was recentred."""

    ROUNDED = "rounded"
    UNDERFLOWED = "underflowed"
    RECENTRED = "recentred"


Losses = Counter[tuple[str, Effect]]
"""Elements by target and effect."""


@frozen
class LossWatch:
    """Counts what becomes of the elements of a box of a target; raises where one does not fit."""

    target: Target
    box: Box
    losses: Losses

    def see(self, change: Change, before: Window, after: Bits, piece: Piece) -> None:
        """Compare elements with what a change made of them; `piece.to` counts elements of the box."""
        if change.is_lossless:
            return
        if change.recentres:
            self._add(Effect.RECENTRED, recentred(change, before, after))
            return
        flat, made = before.reshape(-1), after.reshape(-1)
        usual = change.keeps_value and (change.src.name, change.dst.name) == ("F32", "BF16")
        for lo in range(0, made.size, AT_ONCE):
            stretch = slice(lo, lo + AT_ONCE)
            some, to = flat[stretch], made[stretch]
            if usual and _is_ordinary(to):
                # Known by the bits that are cut off.
                self._add(Effect.ROUNDED, np.count_nonzero(some.bits & 0xFFFF))
                continue
            x, y = change.compared(some, to)
            self._count(x, y, change.dst_value.number_type(change.dst), piece, lo)

    def _count(self, x: Any, y: Any, dst: DType, piece: Piece, start: int) -> None:
        unequal = ~((x == y) | (np.isnan(x) & np.isnan(y)))
        if not unequal.any():
            return
        with np.errstate(invalid="ignore"):
            beyond = unequal & (~np.isfinite(y) | ~np.isfinite(x) | (np.abs(x) > overflows_at(dst)))
        if beyond.any():
            at = int(beyond.argmax())
            raise self._refused(float(x[at]), dst, _place(piece, start + at))
        self._add(Effect.ROUNDED, np.count_nonzero(unequal))
        self._add(Effect.UNDERFLOWED, np.count_nonzero(unequal & (y == 0)))

    def _add(self, effect: Effect, elements: Any) -> None:
        if elements:
            self.losses[self.target.name, effect] += int(elements)

    def _refused(self, value: float, dst: DType, element: int) -> PrecisionError:
        place = [*self.box.index_of(element)]
        wider = "fp32" if dst.name == "BF16" else "bf16 or fp32"
        return PrecisionError(
            f"`{self.target.name}`{place} is {value!r}, which {dst} cannot hold"
            f" (its greatest number is {greatest(dst):.6g})",
            hint=f"choose a wider type, such as {wider}",
        )


def recentred(change: Change, before: Window, after: Bits) -> int:
    """How many elements of a norm a change of its centre rounded: those that the way back does not give again."""
    undone = change.back.of(Window(after, change.dst))
    return int(np.count_nonzero(undone != before.bits))


def _is_ordinary(bf16: Bits) -> bool:
    """Whether numbers are neither zero nor infinite nor NaN."""
    size = bf16 & 0x7FFF
    return bool((size != 0).all() and (size < 0x7F80).all())


def _place(piece: Piece, element: int) -> int:
    """The element of the destination that an element of a piece goes to, counted in row-major order."""
    index = unravel(element, [loop.n for loop in piece.loops])
    return piece.to + sum(i * loop.to for i, loop in zip(index, piece.loops, strict=True))


@frozen
class Changed(Document):
    """A tensor whose numbers are not those of the source, and how many of them."""

    tensor: str
    elements: int
    to: str
    rounded: int = 0
    underflowed: int = 0
    recentred: int = 0


def changed_tensors(losses: Losses, targets: Mapping[str, Target]) -> tuple[Changed, ...]:
    """The tensors that lost anything, in the order of their names."""
    found = []
    for name in sorted({tensor for tensor, _ in losses}):
        counts = {str(effect): losses[name, effect] for effect in Effect}
        target = targets[name]
        found.append(Changed(name, target.layout.mapped, target.dtype.name, **counts))
    return tuple(found)


def summary(changed: tuple[Changed, ...]) -> list[str]:
    """What is said of numbers that changed, a line for each cause."""
    lines = []
    cast = [x for x in changed if x.rounded]
    if cast:
        worst = max(cast, key=lambda x: x.rounded)
        total, of = sum(x.rounded for x in cast), sum(x.elements for x in cast)
        zeros = sum(x.underflowed for x in cast)
        lines.append(
            f"{total:,} of {of:,} elements of {len(cast)} tensors were rounded to"
            f" {', '.join(sorted({x.to for x in cast}))}, most of them in `{worst.tensor}`"
            + (f"; {zeros:,} of them became zero" if zeros else "")
        )
    norms = [x for x in changed if x.recentred]
    if norms:
        worst = max(norms, key=lambda x: x.recentred)
        lines.append(
            f"{sum(x.recentred for x in norms):,} elements of {len(norms)} norms were rounded,"
            f" `{worst.tensor}` among them: the formats centre them on different values, and the"
            " last bits of elements far from one are lost"
        )
    return lines
