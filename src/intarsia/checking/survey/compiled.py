"""Matrices surveyed by the kernel, where it is there: what its numbers say of items."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

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
from intarsia.frozen import frozen
from intarsia.kernel.surveying import (
    CRC,
    FACTS,
    PAGES,
    REPEATS,
    Asked,
    Matrix,
    Seen,
    Surveyed,
    can_survey,
    survey_memory,
)
from intarsia.run.room import Bytes
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


@frozen
class Elements:
    """The elements of an item as the kernel sees them: a sign, if they have one, and a magnitude.

    Those from `odd_from` on are no numbers or absurd ones, and those with the bit `wrong_sign` are below zero where
    none may be.
    """

    dtype: DType
    sign_bit: int
    odd_from: int
    wrong_sign: int
    of_master: bool

    @staticmethod
    def of(item: Item) -> Elements:
        dtype = item.stored.dtype
        if not has_magnitudes(dtype):
            return Elements(dtype, 0, 1 << (8 * dtype.itemsize), 0, False)
        sign = 1 << (8 * dtype.itemsize - 1)
        wrong = sign if is_variance(item) else 0
        return Elements(dtype, sign, first_odd_magnitude(dtype), wrong, MASTER in item.kinds)

    def are_ordinary(self, seen: Seen) -> bool:
        """Whether none is one that no sound item holds."""
        return seen.most < self.odd_from and not seen.used & self.wrong_sign

    def telling(self, seen: Seen) -> tuple[int, int, int]:
        """Of ordinary ones the least and the greatest magnitude, and the bits in use, as far as a fault may show."""
        if not self.sign_bit:
            return -1, seen.most if self.dtype.name == "U8" else 0, 0
        bits = seen.used | self.sign_bit if seen.signed_zero else seen.used
        least, used = telling_numbers(self.dtype, seen.least, seen.most, bits, self.of_master)
        return least, seen.most, used


@frozen
class _Alike:
    """Small items of one shape, whose elements are alike: what is wanted of them, and how their digests begin."""

    elements: Elements
    wanted: int
    head: bytes

    @staticmethod
    def of(item: Item) -> _Alike:
        elements, unit = Elements.of(item), item.units[0]
        wanted = FACTS | (REPEATS if is_wide(unit, elements.dtype) else 0)
        return _Alike(elements, wanted, head_of_digest(elements.dtype, unit))


def survey_in_file(placed: Sequence[Placed], folder: Folder) -> dict[int, ItemStats] | None:
    """What small items of one file show, by number, of those that are as they should be.

    None where the kernel does not read the file.
    """
    items, places = [x for x, _ in placed], [place for _, place in placed]
    starts = [place.located.start_bytes for place in places]
    kinds, asked = _asked(items, starts, [place.crc is not None for place in places])
    surveyed = folder.survey(items[0].item.chunks[0].file, asked)
    if surveyed is None:
        return None
    found = _shown(items, kinds, asked, surveyed)
    for x, place, seen in zip(items, places, surveyed.seen, strict=True):
        if place.crc is not None and full(seen.crc, x.nbytes) != place.crc:
            found.pop(x.number, None)
        elif place.unsealed and x.number in found:
            found[x.number].unsealed = 1
    return found


def survey_in_memory(
    items: Sequence[SmallItem], views: Sequence[Bytes]
) -> dict[int, ItemStats] | None:
    """What small items show whose bytes are these, by number, of those that are as they should be.

    None where there is no kernel.
    """
    if not can_survey():
        return None
    kinds, asked = _asked(items, [view.ctypes.data for view in views], [False] * len(items))
    return _shown(items, kinds, asked, survey_memory(asked))


def _asked(
    items: Sequence[SmallItem], starts: Sequence[int], sealed: Sequence[bool]
) -> tuple[list[_Alike], Asked]:
    """Small items that begin in these places, each with its like; checksums are wanted of those that have one."""
    known: dict[Any, _Alike] = {}
    kinds, matrices, sums_at = [], [], 0
    for x, start, is_sealed in zip(items, starts, sealed, strict=True):
        item, unit = x.item, x.item.units[0]
        key = unit.rows, unit.columns, item.names[0].dtype.name, *item.kinds
        kind = known.get(key)
        if kind is None:
            kind = known[key] = _Alike.of(item)
        kinds.append(kind)
        elements, wanted = kind.elements, kind.wanted
        if x.tensor or is_sealed:
            wanted |= PAGES if x.tensor else CRC
        shape = unit.rows, unit.columns, elements.dtype.itemsize, elements.sign_bit
        matrices.append(Matrix(start, *shape, sums_at, wanted, x.run.start_bytes))
        sums_at += unit.rows + unit.columns
    return kinds, Asked(matrices, sums_at, CUTS, FEWEST_ROWS)


def _shown(
    items: Sequence[SmallItem], kinds: Sequence[_Alike], asked: Asked, surveyed: Surveyed
) -> dict[int, ItemStats]:
    """What the numbers say of ordinary items, by their numbers."""
    found = {}
    for x, kind, at, seen in zip(items, kinds, asked.matrices, surveyed.seen, strict=True):
        if kind.elements.are_ordinary(seen):
            least, most, used = kind.elements.telling(seen)
            found[x.number] = ItemStats(
                x.item,
                (_facts(x.item, kind, at, seen, surveyed.sums),),
                used_bits=used,
                least=least,
                most=most,
                total=seen.total,
                zero_chunks=() if seen.total else x.item.chunks,
                sums={x.tensor: x.run.sum(seen.pages, seen.crc)} if x.tensor else {},
            )
    return found


def _facts(item: Item, kind: _Alike, at: Matrix, seen: Seen, sums: Sums) -> MatrixFacts:
    unit = item.units[0]
    if seen.odd:
        columns_at = at.sums_at + unit.rows
        columns = sums[columns_at : columns_at + unit.columns]
        return matrix_facts(unit, kind.elements.dtype, sums[at.sums_at : columns_at], columns)
    hashed = seen.hash_low.to_bytes(8, "little") + seen.hash_high.to_bytes(8, "little")
    return ordinary_facts(unit, kind.head + hashed)
