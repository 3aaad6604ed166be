"""Reads: copies from files into buffers, and how their elements are moved there from bytes that were read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from intarsia.dtypes import DType
from intarsia.frozen import frozen
from intarsia.layout import Piece
from intarsia.run.losses import LossWatch
from intarsia.run.room import Bytes
from intarsia.value import Change, Window
from intarsia.value.bits import bits_dtype

PartBytes = tuple[Bytes, DType]
"""What a part of a value holds for each place of a buffer, and its element type."""


class Front(NamedTuple):
    """What a chunk is expected to begin with: then its elements are where they are read.

    It is read with them; where the chunk begins in another way, `located` gives what is read instead.
    """

    start_bytes: int
    data: bytes
    located: Callable[[], Iterable[Fill | Straight]] = tuple


class Straight(NamedTuple):
    """A run of a file that is read straight into its destination."""

    file: str
    start_bytes: int
    view: memoryview
    front: Front | None = None


@frozen
class Fill:
    """One copy from a file into a buffer: `base_bytes` is where the piece's source elements begin.

    `watch` counts the elements whose numbers change; `parts` are what the source's value needs to tell them.
    """

    file: str
    base_bytes: int
    piece: Piece
    change: Change
    buffer: Bytes
    watch: LossWatch | None = None
    parts: Mapping[str, PartBytes] = field(default_factory=dict)
    front: Front | None = None

    @property
    def itemsize(self) -> int:
        """The bytes of an element in the file."""
        return self.change.src.itemsize


def scatter(
    fill: Fill, scratch: Bytes, start_bytes: int, strides: tuple[int, ...] | None = None
) -> None:
    """Move a copy's elements from bytes that were read, `start_bytes` being its first element.

    `strides` are those of its loops there, where they are not those in the file.
    """
    change = fill.change
    shape = tuple(loop.n for loop in fill.piece.loops)
    src: NDArray[Any] = np.ndarray(
        shape,
        bits_dtype(change.src),
        scratch.data,
        start_bytes,
        strides or tuple(loop.at * change.src.itemsize for loop in fill.piece.loops),
    )
    dst = _places(fill.piece, fill.buffer, change.dst)
    if change.is_none:
        dst[...] = src
        return
    parts = {name: Window(_places(fill.piece, *held), held[1]) for name, held in fill.parts.items()}
    window = Window(src, change.src, parts)
    dst[...] = change.of(window)
    if fill.watch is not None:
        fill.watch.see(change, window, dst, fill.piece)


def _places(piece: Piece, buffer: Bytes, dtype: DType) -> NDArray[Any]:
    """The places of a destination buffer that a copy fills."""
    shape = tuple(loop.n for loop in piece.loops)
    strides = tuple(loop.to * dtype.itemsize for loop in piece.loops)
    return np.ndarray(shape, bits_dtype(dtype), buffer.data, piece.to * dtype.itemsize, strides)
