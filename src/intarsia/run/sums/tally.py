"""The sums of what a conversion writes, taken from the buffers on their way to the files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from intarsia.dtypes import DType
from intarsia.frozen import frozen
from intarsia.mesh import Box
from intarsia.planning.copy import layout_of_box
from intarsia.planning.manifest import Target
from intarsia.planning.window import flat_start, is_stretch
from intarsia.run.filled import Filled
from intarsia.run.room import Bytes
from intarsia.run.sums.checksum import crc32, full, remainder, shift
from intarsia.run.sums.hashing import STRETCH_BYTES, Sum, merged, sum_buffer, sum_layout
from intarsia.run.sums.neighbours import Neighbours, Run
from intarsia.value import Window
from intarsia.value.bits import bits_dtype

Sums = dict[tuple[str, str], Sum]
"""By the names of a target and of a logical tensor of which it holds elements."""


@frozen
class Tallied:
    """The sums of a window of a target, and the CRC-32 of each of its boxes."""

    sums: Sums
    crcs: Sequence[int]


@dataclass
class Tally:
    """The sums of windows of targets, by logical tensor.

    `sizes` are the elements of the logical tensors; those that are not in it are not summed.
    """

    sizes: Mapping[str, int] = field(default_factory=dict)
    stretch_bytes: int = STRETCH_BYTES

    def run_of(self, target: Target, window: Box) -> Run | None:
        """What a small window of a target is summed as, with others; None where it is summed alone."""
        pieces, itemsize = target.layout.pieces, target.dtype.itemsize
        length_bytes = window.size * itemsize
        if not 0 < 2 * length_bytes <= self.stretch_bytes or len(pieces) != 1:
            return None
        size, whole = self.sizes.get(pieces[0].tensor), Box.whole(target.shape)
        if size is None or pieces[0].run != target.layout.size or not target.value.is_plain:
            return None
        if not is_stretch(window, whole):
            return None
        start = pieces[0].to + flat_start(window, whole)
        return Run(start * itemsize, length_bytes, size * itemsize)

    def of_each(
        self, filled: Sequence[Filled], together: Neighbours, memory: Bytes
    ) -> list[Tallied]:
        """What each window comes to; those with a run lie `together` in memory, in their order."""
        small = [_remainders(x) for x in filled if x.run is not None]
        sums = iter(together.sums(memory, [whole for whole, _ in small]))
        crcs = iter([each for _, each in small])
        return [
            self._of(x)
            if x.run is None
            else Tallied(_of(x.target, {x.target.layout.pieces[0].tensor: next(sums)}), next(crcs))
            for x in filled
        ]

    def _of(self, filled: Filled) -> Tallied:
        target = filled.target
        if not filled.window.size or not self.sizes.keys() >= set(target.layout.tensors):
            return Tallied({}, [crc32(held.buffer) for held in filled.held])
        if not target.value.is_plain or not filled.in_order:
            whole, dtype = _numbers(target, filled.whole, filled.parts)
            part = layout_of_box(target.layout, filled.window)
            found = sum_layout(part, whole, dtype.itemsize, self.sizes, self.stretch_bytes)
            return Tallied(_of(target, found), [crc32(held.buffer) for held in filled.held])
        sums, crcs = zip(
            *(
                sum_buffer(
                    layout_of_box(target.layout, held.box),
                    held.buffer,
                    target.dtype.itemsize,
                    self.sizes,
                    self.stretch_bytes,
                )
                for held in filled.held
            ),
            strict=True,
        )
        return Tallied(_of(target, merged(sums)), crcs)


def _remainders(filled: Filled) -> tuple[int, list[int]]:
    """The remainder of a window, and the CRC-32 of each of its boxes."""
    parts = [remainder(held.buffer) for held in filled.held]
    crcs = [full(crc, len(held.buffer)) for crc, held in zip(parts, filled.held, strict=True)]
    if not filled.in_order:
        return remainder(filled.whole), crcs
    whole = 0
    for crc, held in zip(parts, filled.held, strict=True):
        whole = shift(whole, len(held.buffer)) ^ crc
    return whole, crcs


def _of(target: Target, sums: Mapping[str, Sum]) -> Sums:
    return {(target.name, name): found for name, found in sums.items()}


def _numbers(target: Target, buffer: Bytes, parts: Mapping[str, Window]) -> tuple[Bytes, DType]:
    """The logical elements that a reader finds in a buffer of a target, and their type."""
    if target.value.is_plain:
        return buffer, target.dtype
    stored = Window(np.frombuffer(buffer, bits_dtype(target.dtype)), target.dtype, parts)
    dtype = target.value.number_type(target.dtype)
    return target.value.decode(stored, dtype).view(np.uint8), dtype
