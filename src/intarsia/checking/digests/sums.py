"""Sums for digests, taken from the same blocks that are surveyed: every byte is read once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from intarsia.checking.survey.items import SurveyItem
from intarsia.layout import Layout
from intarsia.planning.copy import layout_of_box
from intarsia.planning.manifest import Chunk, Logical, Stored
from intarsia.run.sums.hashing import STRETCH_BYTES, Sum, add_to, sum_buffer, sum_layout
from intarsia.state.names import parameter_of
from intarsia.value import Window
from intarsia.value.bits import Bits


@dataclass
class Summing:
    """The sums of what one item holds of the logical tensors that are wanted, while its blocks come in."""

    item: SurveyItem
    wanted: Mapping[str, Logical]
    weights: Mapping[str, Logical] = field(default_factory=dict)
    """The weights, by name, that the item holds the main weights of."""
    stretch_bytes: int = STRETCH_BYTES
    sums: dict[str, Sum] = field(default_factory=dict)
    rounded: dict[str, Sum] = field(default_factory=dict)
    """The sums of main weights rounded to their weights' element type, by the weights' names."""
    _layouts: dict[str, Layout] = field(default_factory=dict)
    _masters: Layout | None = None

    def start(self, chunk: Chunk) -> None:
        """Blocks of this chunk come next."""
        self._layouts = {}
        for stored in self.item.names:
            # Of a tensor whose parts have several element types, the digest is of one type.
            held = {
                name
                for name in stored.layout.tensors
                if name in self.wanted and is_summed(stored, self.wanted[name])
            }
            if held:
                whole = layout_of_box(stored.layout, chunk.box).reshape(-1)
                pieces = tuple(p for p in whole.pieces if p.tensor in held)
                self._layouts[stored.name] = Layout(whole.shape, pieces)
        if self.weights:
            whole = layout_of_box(self.item.stored.layout, chunk.box).reshape(-1)
            named = whole.rename(parameter_of)
            pieces = tuple(p for p in named.pieces if p.tensor in self.weights)
            self._masters = Layout(whole.shape, pieces)

    def run_of(self) -> tuple[str, int] | None:
        """The tensor that the whole chunk is a run of, which is summed as it lies, and its first element there.

        "" where nothing is summed, and None where more is done than that.
        """
        if not self._layouts and self._masters is None:
            return "", 0
        plain = len(self.item.names) == 1 and self.item.stored.value.is_plain
        whole = self._layouts.get(self.item.stored.name)
        if self._masters is not None or whole is None or not plain or len(whole.pieces) != 1:
            return None
        piece = whole.pieces[0]
        return (piece.tensor, piece.to) if piece.run == whole.size else None

    def add(self, block: Bits, at: int) -> int | None:
        """Add elements of the chunk, the first being number `at` in row-major order.

        The CRC-32 of their bytes comes with their sums, where any are taken of them.
        """
        crc = None
        for stored in self.item.names:
            whole = self._layouts.get(stored.name)
            if whole is None:
                continue
            part = whole if block.size == whole.size else whole.narrow(0, at, at + block.size)
            sizes = {name: self.wanted[name].size for name in part.tensors}
            held = _as_logical(stored, block)
            itemsize = stored.number_type.itemsize
            found, summed = sum_buffer(part, held, itemsize, sizes, self.stretch_bytes)
            add_to(self.sums, found)
            crc = summed if stored.value.is_plain else crc
        if self._masters is not None:
            self._add_rounded(self._masters, block, at)
        return crc

    def _add_rounded(self, whole: Layout, block: Bits, at: int) -> None:
        stored = self.item.stored
        part = whole if block.size == whole.size else whole.narrow(0, at, at + block.size)
        if not part.pieces:
            return
        dtype = self.weights[part.pieces[0].tensor].dtype
        held = Window(block.reshape(-1), stored.dtype)
        narrow = np.ascontiguousarray(stored.value.decode(held, dtype))
        sizes = {name: self.weights[name].size for name in part.tensors}
        add_to(self.rounded, sum_layout(part, narrow.view(np.uint8), dtype.itemsize, sizes))


def is_summed(stored: Stored, x: Logical) -> bool:
    """Whether what a stored tensor holds of a logical one is summed as it lies there."""
    return x.dtype == stored.number_type and not stored.value.parts


def _as_logical(stored: Stored, block: Bits) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    held = Window(block.reshape(-1), stored.dtype)
    return stored.value.decode(held, stored.number_type).view(np.uint8)
