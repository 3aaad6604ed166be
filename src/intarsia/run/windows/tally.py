"""The sums of what a conversion writes, taken from the buffers on their way to the files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from intarsia.dtypes import DType
from intarsia.frozen import frozen
from intarsia.planning.copy import layout_of_box
from intarsia.planning.manifest import Target
from intarsia.run.room import Bytes
from intarsia.run.sums.checksum import crc32
from intarsia.run.sums.hashing import STRETCH_BYTES, Sum, sum_layout
from intarsia.run.windows.filled import Filled
from intarsia.value import Window
from intarsia.value.bits import bits_dtype

Sums = dict[tuple[str, str], Sum]
"""By the names of a target and of a logical tensor whose elements it holds."""


@frozen
class Tallied:
    """The sums of a window of a target, and the CRC-32 of each box of its cut."""

    sums: Sums
    crcs: tuple[int, ...]


@dataclass
class Tally:
    """The sums of windows of targets, by logical tensor.

    `sizes` are the elements of the logical tensors; those that are not in it are not summed.
    """

    sizes: Mapping[str, int] = field(default_factory=dict)
    stretch_bytes: int = STRETCH_BYTES

    def of(self, filled: Filled) -> Tallied:
        """What a window comes to."""
        target, crcs = filled.target, tuple([crc32(box) for box in filled.boxes])
        if not filled.window.size or not self.sizes.keys() >= set(target.layout.tensors):
            return Tallied({}, crcs)
        whole, dtype = _numbers(target, filled.whole)
        part = layout_of_box(target.layout, filled.window)
        found = sum_layout(part, whole, dtype.itemsize, self.sizes, self.stretch_bytes)
        return Tallied({(target.name, name): x for name, x in found.items()}, crcs)


def _numbers(target: Target, buffer: Bytes) -> tuple[Bytes, DType]:
    """The logical elements that a reader finds in a buffer of a target, and their type."""
    if target.value.is_plain:
        return buffer, target.dtype
    stored = Window(np.frombuffer(buffer, bits_dtype(target.dtype)), target.dtype)
    dtype = target.value.number_type(target.dtype)
    return target.value.decode(stored, dtype).view(np.uint8), dtype
