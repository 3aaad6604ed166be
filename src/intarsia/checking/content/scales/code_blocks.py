"""Blocks of quantised weights: the scale of each, and how far its codes reach and spread.

Half of the range and the deviation are the same whatever the zero point is, so that none is read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from math import prod

import numpy as np
from numpy.typing import NDArray

from intarsia.checking.content.scales.codes import Codes, codes_of
from intarsia.checkpoint import Checkpoint
from intarsia.frozen import frozen
from intarsia.layout import unravel
from intarsia.mesh import Box, Shape
from intarsia.quantised import PartRole, QuantisedWeight, QuantisedWeights, WeightPart
from intarsia.quantised.cutting import elements_per
from intarsia.value.bits import Bits, as_float64, bits_dtype

Floats = NDArray[np.float64]

_SAMPLE = 256
"""Codes of a large block that are looked at: they tell its deviation to a few hundredths."""

_COLUMNS = 32
"""Blocks of a row that are looked at where they are a sample."""

_AT_ONCE = 1 << 18
"""Codes that are numbers at one time."""


@frozen
class BlockRows:
    """Rows of blocks that follow each other in one matrix of a weight, and the first `columns` of them."""

    matrix: int
    first: int
    end: int
    columns: int


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
    def rows_read(self) -> int:
        """The stored rows of a block that are looked at."""
        codes_of_row = min(self.codes_of_block, _SAMPLE) * self.codes.per_row
        return min(self.rows_of_block, max(1, _SAMPLE // codes_of_row))

    @property
    def grid(self) -> tuple[int, int]:
        """The rows of blocks of one matrix, and the blocks of a row."""
        columns = self.row_elements * self.codes.per_element
        return -(-self.rows // self.rows_of_block), -(-columns // self.codes_of_block)

    @property
    def matrices(self) -> range:
        """The matrices that a weight is made of, such as those of experts."""
        return range(prod(self.lead))

    def evenly(self, blocks: int, matrices: range | None = None) -> list[BlockRows]:
        """Rows of blocks at even distances, of some matrices or all, with about so many blocks in them."""
        of = matrices if matrices is not None else self.matrices
        rows, columns = self.grid[0], min(self.grid[1], _COLUMNS)
        codes = columns * self.codes_of_block * self.rows_read * self.codes.per_row
        together = min(rows, max(1, _AT_ONCE // codes), -(-blocks // columns))
        each = -(-rows // together)
        count = min(each * len(of), -(-blocks // (together * columns)))
        picked = [divmod(k * each * len(of) // count, each) for k in range(count)]
        return [
            BlockRows(of[m], k * together, min((k + 1) * together, rows), columns)
            for m, k in picked
        ]


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


def judged(
    quantised: QuantisedWeights, known: Collection[str]
) -> Iterator[tuple[BlockCut, Iterator[QuantisedWeight]]]:
    """The weights that are alike, with their cut where it is known, but for those with a part in `known`."""
    for alike in quantised.alike:
        cut = cut_of(alike.first)
        if cut is not None:
            yield cut, (w for w in alike.weights if not any(p.name in known for p in w.parts))


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


def are_in_order(checkpoint: Checkpoint, w: QuantisedWeight) -> bool:
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
    found = [_read(checkpoint, w, cut, rows) for rows in wanted]
    scales, reach, spread = (np.concatenate(x, axis=None) for x in zip(*found, strict=True))
    return Blocks(scales, reach, spread)


def read_scales(
    checkpoint: Checkpoint, w: QuantisedWeight, cut: BlockCut, rows: BlockRows
) -> Floats:
    """The scales of rows of blocks, a row of them for each."""
    scale, axis = scale_of(w), len(cut.lead)
    counts = (*(1 for _ in cut.lead), rows.end - rows.first, rows.columns)
    starts = (*unravel(rows.matrix, cut.lead), rows.first, 0)
    shape = tuple(map(min, scale.shape, counts))
    offsets = tuple(at if n > 1 else 0 for at, n in zip(starts, scale.shape, strict=False))
    bits = read_box(checkpoint, scale, Box(offsets, shape))
    return scale_numbers(scale, bits).reshape(counts[axis], -1)


def _read(
    checkpoint: Checkpoint, w: QuantisedWeight, cut: BlockCut, rows: BlockRows
) -> tuple[Floats, Floats, Floats]:
    at = unravel(rows.matrix, cut.lead)
    step, high = cut.rows_of_block, cut.rows_read
    width = min(cut.codes_of_block, cut.row_elements * cut.codes.per_element)
    width = min(width, _SAMPLE) if rows.columns == 1 else width
    first, *rest = w.main.shape[len(at) + 1 :]
    elements = -(-rows.columns * width // cut.codes.per_element)
    counts = min(first, -(-elements // prod(rest))), *rest
    count = rows.end - rows.first
    heights = [high] * count if step > high else [high * count]
    starts = [(rows.first + k) * step for k in range(len(heights))]
    heights[-1] = min(heights[-1], cut.rows - starts[-1])
    raw = np.empty((sum(heights), prod(counts)), bits_dtype(w.main.dtype))
    proven, ends = checkpoint.prover.tensor(w.main.name), np.cumsum(heights)
    checkpoint.read_boxes(
        (
            proven,
            Box((*at, start, *(0 for _ in counts)), (*(1 for _ in at), height, *counts)),
            part.reshape(-1).view(np.uint8),
        )
        for start, height, part in zip(starts, heights, np.split(raw, ends[:-1]), strict=True)
    )
    numbers = cut.codes.numbers(raw)[:, : rows.columns * width]
    block = high * cut.codes.per_row, width
    return read_scales(checkpoint, w, cut, rows), *_measured(numbers, block, (count, rows.columns))


def _measured(
    numbers: NDArray[np.float32], block: tuple[int, int], grid: tuple[int, int]
) -> tuple[Floats, Floats]:
    """Half of the range and the deviation in each block of a grid, of which the last ones may not be full."""
    (high, width), (rows, columns) = block, grid
    if numbers.shape != (rows * high, columns * width):
        padded = np.full((rows * high, columns * width), np.nan, np.float32)
        padded[: len(numbers), : numbers.shape[1]] = numbers
        numbers = padded
    blocks = numbers.reshape(rows, high, columns, width)
    whole = np.ascontiguousarray(blocks.swapaxes(1, 2)).reshape(rows, columns, -1)
    if np.isnan(whole).any():  # codes that are no numbers, or none
        return np.fmax.reduce(whole, 2) / 2 - np.fmin.reduce(whole, 2) / 2, _spread(whole)
    return np.ptp(whole, 2) / 2, whole.std(2)


def _spread(blocks: NDArray[np.float32]) -> Floats:
    """The deviation of the numbers in each block."""
    there = np.isfinite(blocks)
    held = np.where(there, blocks, 0)
    count = np.maximum(there.sum(2), 1)
    square = (held**2).sum(2) / count - (held.sum(2) / count) ** 2
    return np.asarray(np.sqrt(np.maximum(square, 0)), np.float64)
