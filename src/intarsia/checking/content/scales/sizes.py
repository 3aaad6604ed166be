"""Scales that are far too large for the codes that they scale, and zero beside codes that are not.

What the survey saw of the scales says where to look: beside sound ones no codes are read again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from math import prod

import numpy as np

from intarsia.checking.content.scales.code_blocks import (
    BlockCut,
    BlockRows,
    are_in_order,
    judged,
    read_blocks,
    read_scales,
    scale_numbers,
    scale_of,
)
from intarsia.checking.fault import Fault, with_more
from intarsia.checking.naming import place_of
from intarsia.checking.survey.item_stats import ItemStats
from intarsia.checkpoint import Checkpoint
from intarsia.errors import IntarsiaError, few
from intarsia.frozen import frozen
from intarsia.planning.manifest import Manifest
from intarsia.quantised import PartRole, QuantisedWeight, WeightPart
from intarsia.value.bits import bits_dtype

_IMPLAUSIBLE = 256.0
"""No trained matrix has a number as large in most of its blocks."""

_BLOCKS = 512
"""Blocks whose median is taken."""

_MOST_ROWS = 64
"""Rows of blocks with zero scales whose codes are read."""

_NARROW = ("F16", "F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ")
"""Types in which the scales of blocks of small numbers may round to zero; not those of half of all blocks."""


def size_faults(
    manifest: Manifest, found: Sequence[ItemStats], known: Collection[str]
) -> Iterator[Fault]:
    """Scales that are implausible or zero, like ones as one; those in `known` are reported elsewhere."""
    seen: dict[str, list[ItemStats]] = {}
    for stats in found:
        for stored in stats.item.names:
            seen.setdefault(stored.name, []).append(stats)
    kinds: dict[str, list[tuple[str, str]]] = {}
    with Checkpoint(manifest) as checkpoint:
        for cut, weights in judged(manifest.quantised, known):
            for w in weights:
                # What cannot be read is a fault of its own.
                try:
                    for kind, text in _Judged(checkpoint, w, cut, seen).faults():
                        kinds.setdefault(kind, []).append((scale_of(w).name, text))
                except IntarsiaError as error:
                    error.raise_unless_fault()
    for kind, like in kinds.items():
        names = tuple(name for name, _ in like)
        yield Fault(kind, names, few(manifest.files_of(names)), with_more(like[0][1], like))


@frozen
class _Judged:
    """A quantised weight and what the survey saw of its parts."""

    checkpoint: Checkpoint
    w: QuantisedWeight
    cut: BlockCut
    seen: Mapping[str, Sequence[ItemStats]]

    def faults(self) -> Iterator[tuple[str, str]]:
        """The kind of each fault of its scales, and what to say of it."""
        scale = scale_of(self.w)
        least, most = self._extremes(scale)
        if not least < most and (most == 1 or not most):
            return  # a cast alone, or all zero, which is a fault of its own
        if least == 0:
            yield from self._zeros(scale)
        if most * self.cut.codes.top * self._unit() >= _IMPLAUSIBLE:
            yield from self._implausible(scale)

    def _extremes(self, part: WeightPart) -> tuple[float, float]:
        """The least and the greatest magnitude of a part; ones where some of it was not read."""
        held = self.seen.get(part.name, ())
        if not held or any(stats.unread or stats.not_finite.count for stats in held):
            return 1.0, 1.0
        bits = [min(stats.least for stats in held), max(stats.most for stats in held)]
        least, most = scale_numbers(part, np.array(bits, bits_dtype(part.dtype)))
        return float(least), float(most)

    def _unit(self) -> float:
        """What a code of one and a scale of one make, at least."""
        unit = 1.0
        for part in self.w.others:
            if part.role is PartRole.WHOLE_SCALE and part.dtype.floating:
                least, most = self._extremes(part)
                unit *= (1 / most if most else 0) if part.word == "_global_scale" else least
        return unit / 127 if any(part.word == "SCB" for part in self.w.others) else unit

    def _implausible(self, scale: WeightPart) -> Iterator[tuple[str, str]]:
        if place_of(self.w.of).is_vocabulary or not are_in_order(self.checkpoint, self.w):
            return
        blocks = read_blocks(self.checkpoint, self.w, self.cut, self.cut.evenly(_BLOCKS))
        numbers = np.abs(blocks.scales) * blocks.reach * self._unit()
        median = float(np.nanmedian(numbers))
        if median >= _IMPLAUSIBLE:
            text = (
                f"half of the blocks of `{self.w.of}` reach {median:,.4g} with the scales of"
                f" `{scale.name}`, which no weight does: as where 1/s is stored for s"
            )
            yield "scale-implausible", text

    def _zeros(self, scale: WeightPart) -> Iterator[tuple[str, str]]:
        checkpoint, w, cut = self.checkpoint, self.w, self.cut
        if not are_in_order(checkpoint, w):
            return
        rows, columns = cut.grid
        zeros, held = 0, list[BlockRows]()
        for m in range(prod(cut.lead)):
            zero = read_scales(checkpoint, w, cut, BlockRows(m, 0, rows, columns)) == 0
            zeros += int(zero.sum())
            held += [
                BlockRows(m, int(k), int(k) + 1, columns) for k in np.flatnonzero(zero.any(axis=1))
            ]
        if scale.dtype.name in _NARROW and 2 * zeros < prod(cut.lead) * rows * columns:
            return
        blocks = read_blocks(checkpoint, w, cut, held[:: -(-len(held) // _MOST_ROWS)])
        lost = (blocks.scales == 0) & (blocks.reach > 0)
        if lost.any():
            text = (
                f"{zeros:,} of {prod(cut.lead) * rows * columns:,} blocks of `{w.of}` are zero by the scales of"
                f" `{scale.name}`, and their codes differ from each other: these scales were lost"
            )
            yield "scale-zero", text
