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

JOINED_BYTES = 16 << 10
"""A checksum of less takes no longer than to join it to another."""

Sums = dict[tuple[str, str], Sum]
"""By the names of a target and of a logical tensor of which it holds elements."""


@frozen
class Tallied:
    """The sums of windows of targets, and the CRC-32 of each: a list for each box of the cut."""

    sums: Sums
    crcs: Sequence[Sequence[int]]


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
        size, start = self.sizes.get(pieces[0].tensor), pieces[0].to
        if size is None or pieces[0].run != target.layout.size or not target.value.is_plain:
            return None
        if window.shape != target.shape:
            whole = Box.whole(target.shape)
            if not is_stretch(window, whole):
                return None
            start += flat_start(window, whole)
        return Run(start * itemsize, length_bytes, size * itemsize)

    def of_each(
        self, filled: Sequence[Filled], together: Neighbours, memory: Bytes
    ) -> list[Tallied]:
        """What the windows come to; those with a run lie `together` in memory, in their order."""
        crcs = [[[crc32(row) for row in rows] for rows in x.boxes] for x in filled if x.runs]
        small = zip([x for x in filled if x.runs], crcs, strict=True)
        found = iter(together.sums(memory, [r for x, each in small for r in _remainders(x, each)]))
        of_small = iter(crcs)
        return [
            Tallied(
                merged(_of(t, {t.layout.pieces[0].tensor: next(found)}) for t in x.targets),
                next(of_small),
            )
            if x.runs
            else self._of(x)
            for x in filled
        ]

    def _of(self, filled: Filled) -> Tallied:
        """What one window comes to."""
        (target,), boxes = filled.targets, [rows[0] for rows in filled.boxes]
        if not filled.window.size or not self.sizes.keys() >= set(target.layout.tensors):
            return Tallied({}, [[crc32(box)] for box in boxes])
        if not target.value.is_plain or not filled.cut.in_order:
            whole, dtype = _numbers(target, filled.wholes[0], filled.parts)
            part = layout_of_box(target.layout, filled.window)
            found = sum_layout(part, whole, dtype.itemsize, self.sizes, self.stretch_bytes)
            return Tallied(_of(target, found), [[crc32(box)] for box in boxes])
        both = [
            sum_buffer(
                layout_of_box(target.layout, each.box),
                box,
                target.dtype.itemsize,
                self.sizes,
                self.stretch_bytes,
            )
            for each, box in zip(filled.cut.boxes, boxes, strict=True)
        ]
        return Tallied(_of(target, merged(sums for sums, _ in both)), [[crc] for _, crc in both])


def _remainders(filled: Filled, crcs: Sequence[Sequence[int]]) -> list[int]:
    """The remainder of each window, of whose boxes these are the CRC-32."""
    lengths = [rows.shape[1] for rows in filled.boxes]
    many = len(lengths) > 1 and sum(lengths) < JOINED_BYTES * len(lengths)
    if many or not filled.cut.in_order:
        return [remainder(whole) for whole in filled.wholes]
    wholes = [0] * len(filled.targets)
    for length, each in zip(lengths, crcs, strict=True):
        unlike = full(0, length)  # in which a CRC-32 differs from its remainder
        wholes = [
            shift(whole, length) ^ crc ^ unlike for whole, crc in zip(wholes, each, strict=True)
        ]
    return wholes


def _of(target: Target, sums: Mapping[str, Sum]) -> Sums:
    return {(target.name, name): found for name, found in sums.items()}


def _numbers(target: Target, buffer: Bytes, parts: Mapping[str, Window]) -> tuple[Bytes, DType]:
    """The logical elements that a reader finds in a buffer of a target, and their type."""
    if target.value.is_plain:
        return buffer, target.dtype
    stored = Window(np.frombuffer(buffer, bits_dtype(target.dtype)), target.dtype, parts)
    dtype = target.value.number_type(target.dtype)
    return target.value.decode(stored, dtype).view(np.uint8), dtype
