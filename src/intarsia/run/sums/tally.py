"""The sums of what a conversion writes, taken from the buffers on their way to the files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from intarsia.dtypes import DType
from intarsia.mesh import Box
from intarsia.planning.copy import box_copy, layout_of_box
from intarsia.planning.manifest import Target
from intarsia.run.room import Bytes, Room
from intarsia.run.sums.checksum import crc32
from intarsia.run.sums.hashing import STRETCH_BYTES, Sum, merged, sum_buffer, sum_layout
from intarsia.value import Window
from intarsia.value.bits import bits_dtype

Sums = dict[tuple[str, str], Sum]
"""By the names of a target and of a logical tensor of which it holds elements."""


@dataclass(frozen=True, slots=True)
class Tallied:
    """The sums of a window of a target, and the CRC-32 of each of its buffers."""

    sums: Sums
    crcs: tuple[int, ...]


@dataclass
class Tally:
    """The sums of windows of targets, by logical tensor.

    `sizes` are the elements of the logical tensors; those that are not in it are not summed.
    """

    sizes: Mapping[str, int] = field(default_factory=dict)
    stretch_bytes: int = STRETCH_BYTES
    _room: Room = field(default_factory=Room)

    def of(self, target: Target, window: Box, held: Sequence[tuple[Box, Bytes]]) -> Tallied:
        """What a window of a target comes to, which lies in the buffers of these boxes."""
        if not window.size or not self.sizes.keys() >= set(target.layout.tensors):
            return Tallied({}, tuple(crc32(x) for _, x in held))
        if not target.value.is_plain or not all(_is_stretch(box, window) for box, _ in held):
            whole, dtype = _numbers(target, self._assembled(target, window, held))
            part = layout_of_box(target.layout, window)
            found = sum_layout(part, whole, dtype.itemsize, self.sizes, self.stretch_bytes)
            return Tallied(_of(target, found), tuple(crc32(x) for _, x in held))
        sums, crcs = zip(
            *(
                sum_buffer(
                    layout_of_box(target.layout, box),
                    x,
                    target.dtype.itemsize,
                    self.sizes,
                    self.stretch_bytes,
                )
                for box, x in held
            ),
            strict=True,
        )
        return Tallied(_of(target, merged(sums)), crcs)

    def _assembled(self, target: Target, window: Box, held: Sequence[tuple[Box, Bytes]]) -> Bytes:
        """The row-major bytes of a window that several boxes share: its runs are longer than theirs."""
        bits = bits_dtype(target.dtype)
        room = self._room.take(window.size * target.dtype.itemsize)
        whole: NDArray[Any] = room.view(bits).reshape(window.shape)
        for box, buffer in held:
            cut = tuple(
                slice(o - w, o - w + n)
                for o, w, n in zip(box.offsets, window.offsets, box.shape, strict=True)
            )
            whole[cut] = np.frombuffer(buffer, bits).reshape(box.shape)
        return room


def _of(target: Target, sums: Mapping[str, Sum]) -> Sums:
    return {(target.name, name): found for name, found in sums.items()}


def _is_stretch(box: Box, window: Box) -> bool:
    piece = box_copy(box, window)
    return piece is not None and piece.run == box.size


def _numbers(target: Target, buffer: Bytes) -> tuple[Bytes, DType]:
    """The logical elements that a reader finds in a buffer of a target, and their type."""
    if target.value.is_plain:
        return buffer, target.dtype
    stored = Window(np.frombuffer(buffer, bits_dtype(target.dtype)), target.dtype)
    dtype = target.value.number_type(target.dtype)
    return target.value.decode(stored, dtype).view(np.uint8), dtype
