"""Blocks of quantised weights: the scale of each, and how far its codes reach and spread.

Half of the range and the deviation are the same whatever the zero point is, so that none is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import prod

import numpy as np
from numpy.typing import NDArray

from intarsia.checking.content.codes import Codes, codes_of
from intarsia.checkpoint import Checkpoint
from intarsia.frozen import frozen
from intarsia.layout import unravel
from intarsia.mesh import Box, Shape
from intarsia.quantised import PartRole, QuantisedWeight, WeightPart
from intarsia.quantised.cutting import elements_per
from intarsia.value.bits import Bits, as_float64, bits_dtype

Floats = NDArray[np.float64]

_MOST_ROWS = 16
"""Stored rows of a large block that are read: they tell its deviation to a few hundredths."""

_AT_ONCE_BYTES = 1 << 17
"""Codes that are numbers at one time."""


@frozen
class BlockRows:
    """Rows of blocks that follow each other in one matrix of a weight."""

    matrix: int
    first: int
    end: int


@frozen
class Blocks:
    """Blocks, a row of them beside a row: scales, half of the range of their codes, and the deviation of these."""

    scales: Floats
    reach: Floats
    spread: Floats


@frozen
class BlockCut:
    """How weights that are alike are cut: into matrices of `rows`, `rows_of_block` to a block, of so many codes each."""

    codes: Codes
    lead: Shape
    rows: int
    row_elements: int
    rows_of_block: int
    codes_of_block: int

    @property
    def grid(self) -> tuple[int, int]:
        """The rows of blocks of one matrix, and the blocks of a row."""
        columns = self.row_elements * self.codes.per_element
        return -(-self.rows // self.rows_of_block), -(-columns // self.codes_of_block)

    def evenly(self, blocks: int) -> list[BlockRows]:
        """Rows of blocks at even distances with about so many blocks in them."""
        rows, columns = self.grid
        nbytes = self.row_elements * self.rows_of_block * self.codes.dtype.itemsize
        together = min(rows, max(1, _AT_ONCE_BYTES // nbytes), -(-blocks // columns))
        each = -(-rows // together)
        count = min(each * prod(self.lead), -(-blocks // (together * columns)))
        picked = [divmod(k * each * prod(self.lead) // count, each) for k in range(count)]
        return [BlockRows(m, k * together, min((k + 1) * together, rows)) for m, k in picked]


def scale_of(w: QuantisedWeight) -> WeightPart:
    """The part that has a scale for each block."""
    return next(part for part in w.others if part.role is PartRole.SCALE)


def cut_of(w: QuantisedWeight) -> BlockCut | None:
    """How a weight is cut, where that and what its codes stand for is known."""
    codes, main = codes_of(w), w.main.shape
    if codes is None or sum(part.role is PartRole.SCALE for part in w.others) != 1:
        return None
    scale = scale_of(w)
    if not (scale.dtype.floating or is_exponents(scale)):
        return None
    if not prod(main) or not prod(scale.shape):
        return None
    axis = 1 if w.form == "mxfp4" else len(main) - 2
    lead, rows, row_elements = main[:axis], main[axis], prod(main[axis + 1 :])
    if w.form == "qweight":
        each, rest = divmod(rows, scale.shape[0])
        return None if rest else BlockCut(codes, lead, rows, row_elements, each, 1)
    per = elements_per(w, scale)
    if per is None or any(per[k : k + 1] != (1,) and n > 1 for k, n in enumerate(lead)):
        return None
    each, columns = ((*per, 0, 0)[k] for k in (axis, axis + 1))
    columns *= prod(main[axis + 2 :])
    return BlockCut(
        codes,
        lead,
        rows,
        row_elements,
        each or rows,
        (columns or row_elements) * codes.per_element,
    )


EXPONENTS = ("_scale", "_scales", "_scale_inv", "scale")
"""Words for scales that are exponents of two where they are bytes; bitsandbytes' bytes are codes."""


def is_exponents(scale: WeightPart) -> bool:
    """Whether scales are bytes that are exponents of two."""
    return scale.dtype.name == "U8" and scale.word in EXPONENTS


def scale_numbers(scale: WeightPart, bits: Bits) -> Floats:
    """The numbers that scales stand for; the least power of two is as good as zero."""
    if is_exponents(scale):
        return np.where(bits == 0, 0, np.ldexp(1.0, bits.astype(np.int64) - 127))
    found = as_float64(bits, scale.dtype)
    return np.where(bits == 0, 0, found) if scale.dtype.name == "F8_E8M0" else found


def are_in_order(checkpoint: Checkpoint, w: QuantisedWeight, cut: BlockCut) -> bool:
    """Whether the inputs of a group lie beside each other: no order is stored, or one that says so."""
    order = next((part for part in w.others if part.role is PartRole.ORDER), None)
    if order is None:
        return True
    scale = scale_of(w)
    held = read_box(checkpoint, order, Box.whole(order.shape)).view(f"<i{order.dtype.itemsize}")
    groups = scale.shape[0] if w.form == "qweight" else scale.shape[-1]
    return bool((held == -1).all() or (held == np.arange(held.size) * groups // held.size).all())


def read_box(checkpoint: Checkpoint, part: WeightPart, box: Box) -> Bits:
    """The bits of a box of a part."""
    raw = checkpoint.read_box(checkpoint.prover.tensor(part.name), box)
    return raw.view(bits_dtype(part.dtype)).reshape(box.shape)


def read_blocks(
    checkpoint: Checkpoint, w: QuantisedWeight, cut: BlockCut, wanted: Iterable[BlockRows]
) -> Blocks:
    """The blocks of some rows of them."""
    found = [each for rows in wanted for each in _read(checkpoint, w, cut, rows)]
    scales, reach, spread = (np.concatenate(x, axis=None) for x in zip(*found, strict=True))
    return Blocks(scales, reach, spread)


def read_scales(
    checkpoint: Checkpoint, w: QuantisedWeight, cut: BlockCut, rows: BlockRows
) -> Floats:
    """The scales of rows of blocks, a row of them for each."""
    scale = scale_of(w)
    axis = len(cut.lead)
    at = (*unravel(rows.matrix, cut.lead), rows.first)
    shape = scale.shape
    offsets = tuple(at[k] if k <= axis and n > 1 else 0 for k, n in enumerate(shape))
    counts = tuple(
        1 if k < axis else min(rows.end - rows.first, n) if k == axis else n
        for k, n in enumerate(shape)
    )
    bits = read_box(checkpoint, scale, Box(offsets, counts))
    return scale_numbers(scale, bits).reshape(rows.end - rows.first, -1)


def _read(
    checkpoint: Checkpoint, w: QuantisedWeight, cut: BlockCut, rows: BlockRows
) -> Iterator[tuple[Floats, Floats, Floats]]:
    scales = read_scales(checkpoint, w, cut, rows)
    at = unravel(rows.matrix, cut.lead)
    step = cut.rows_of_block
    together = 1 if step > _MOST_ROWS else rows.end - rows.first
    rest = w.main.shape[len(at) + 1 :]
    for k in range(0, rows.end - rows.first, together):
        first = (rows.first + k) * step
        end = min(first + (min(step, _MOST_ROWS) if together == 1 else together * step), cut.rows)
        box = Box((*at, first, *(0 for _ in rest)), (*(1 for _ in at), end - first, *rest))
        raw = read_box(checkpoint, w.main, box).reshape(end - first, -1)
        high = len(raw) if together == 1 else step
        numbers = cut.codes.numbers(raw)
        yield scales[k : k + together], *_measured(numbers, together, high * cut.codes.per_row, cut)


def _measured(
    numbers: NDArray[np.float32], rows: int, high: int, cut: BlockCut
) -> tuple[Floats, Floats]:
    """Half of the range and the deviation in each of so many rows of blocks, each so many codes high."""
    columns, width = cut.grid[1], cut.codes_of_block
    padded = np.full((rows * high, columns * width), np.nan, np.float32)
    padded[: len(numbers), : numbers.shape[1]] = numbers
    blocks = padded.reshape(rows, high, columns, width)
    reach = np.fmax.reduce(blocks, (1, 3)) - np.fmin.reduce(blocks, (1, 3))
    there = np.isfinite(blocks)
    blocks[~there] = 0
    count = np.maximum(there.sum((1, 3)), 1)
    mean, square = blocks.sum((1, 3)) / count, (blocks**2).sum((1, 3)) / count
    return np.asarray(reach / 2, np.float64), np.sqrt(np.maximum(square - mean**2, 0.0))
