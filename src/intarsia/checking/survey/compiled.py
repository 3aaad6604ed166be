"""Matrices surveyed by the kernel, where it is there: what its numbers say of items."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from intarsia.checking.survey.item_stats import (
    ItemStats,
    first_odd_magnitude,
    has_magnitudes,
    is_variance,
    telling_numbers,
)
from intarsia.checking.survey.items import Item
from intarsia.checking.survey.matrix_facts import (
    CUTS,
    FEWEST_ROWS,
    MatrixFacts,
    Sums,
    head_of_digest,
    is_wide,
    matrix_facts,
    ordinary_facts,
)
from intarsia.dtypes import DType
from intarsia.kernel.surveying import CRC, FACTS, PAGES, REPEATS, Asked, Matrix, Seen
from intarsia.run.sums.checksum import full
from intarsia.state.names import MASTER
from intarsia.store.reading.folder import Folder

if TYPE_CHECKING:
    from intarsia.checking.survey.item_survey import ChunkPlace
    from intarsia.checking.survey.small_items import SmallItem

Placed = tuple["SmallItem", "ChunkPlace"]


def is_plain(dtype: DType) -> bool:
    """Whether elements are whole numbers, or a sign and a magnitude."""
    return has_magnitudes(dtype) or not (dtype.floating or dtype.name == "C64")


def sign_bit(dtype: DType) -> int:
    """The bit of an element that is its sign, where the others are a magnitude; 0 elsewhere."""
    return 1 << (8 * dtype.itemsize - 1) if has_magnitudes(dtype) else 0


def survey_in_file(placed: Sequence[Placed], folder: Folder) -> dict[int, ItemStats] | None:
    """What small items of one file show, by number, of those that are as they should be.

    None where the kernel does not read the file.
    """
    matrices: list[Matrix] = []
    sums_at = 0
    for x, place in placed:
        stored, unit = x.item.stored, x.item.units[0]
        dtype = stored.dtype
        wanted = FACTS | (REPEATS if is_wide(unit, dtype) else 0)
        wanted |= PAGES if x.tensor else CRC if place.crc is not None else 0
        matrices.append(
            Matrix(
                place.located.start_bytes,
                unit.rows,
                unit.columns,
                dtype.itemsize,
                sign_bit(dtype),
                sums_at,
                wanted,
                x.run.start_bytes,
            )
        )
        sums_at += unit.rows + unit.columns
    asked = Asked(matrices, sums_at, CUTS, FEWEST_ROWS)
    surveyed = folder.survey(placed[0][0].item.chunks[0].file, asked)
    if surveyed is None:
        return None
    found = {}
    for (x, place), at, seen in zip(placed, matrices, surveyed.seen, strict=True):
        if place.crc is not None and full(seen.crc, x.nbytes) != place.crc:
            continue
        if is_ordinary(x.item, seen):
            stats = _stats(x.item, seen, _facts(x.item, at, seen, surveyed.sums))
            stats.unsealed = int(place.unsealed)
            if x.tensor:
                stats.sums = {x.tensor: x.run.sum(seen.pages, seen.crc)}
            found[x.number] = stats
    return found


def is_ordinary(item: Item, seen: Seen) -> bool:
    """Whether an item holds no element that no sound one holds."""
    dtype = item.stored.dtype
    if not has_magnitudes(dtype):
        return True
    if seen.most >= first_odd_magnitude(dtype):
        return False
    return not (seen.used & sign_bit(dtype) and is_variance(item))


def telling_of(item: Item, seen: Seen) -> tuple[int, int, int]:
    """The least and the greatest magnitude of ordinary elements and the bits in use, as far as a fault may show in them."""
    dtype = item.stored.dtype
    if not has_magnitudes(dtype):
        return -1, seen.most if dtype.name == "U8" else 0, 0
    bits = seen.used | (sign_bit(dtype) if seen.signed_zero else 0)
    least, used = telling_numbers(dtype, seen.least, seen.most, bits, MASTER in item.kinds)
    return least, seen.most, used


def _stats(item: Item, seen: Seen, facts: MatrixFacts) -> ItemStats:
    least, most, used = telling_of(item, seen)
    return ItemStats(
        item,
        (facts,),
        used_bits=used,
        least=least,
        most=most,
        total=seen.total,
        zero_chunks=() if seen.total else item.chunks,
    )


def _facts(item: Item, at: Matrix, seen: Seen, sums: Sums) -> MatrixFacts:
    unit, dtype = item.units[0], item.stored.dtype
    if seen.odd:
        columns_at = at.sums_at + unit.rows
        columns = sums[columns_at : columns_at + unit.columns]
        return matrix_facts(unit, dtype, sums[at.sums_at : columns_at], columns)
    hashed = seen.hash_low.to_bytes(8, "little") + seen.hash_high.to_bytes(8, "little")
    return ordinary_facts(unit, head_of_digest(dtype, unit) + hashed)
