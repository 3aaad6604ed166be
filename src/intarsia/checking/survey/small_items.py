"""Small tensors that lie near each other in a file, read by one call and surveyed together.

What is done for one tensor costs more than the bytes of a small one, and threads wait for each
other at every call.  Here those of one shape and element type are one array with three axes, of
which each number is taken for all of them at once.  A tensor that shows what no sound one holds is
surveyed alone, as larger ones are, and its faults are named there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from intarsia.checking.alone.headers import is_there
from intarsia.checking.digests.sums import is_summed
from intarsia.checking.survey.compiled import is_plain, survey_in_file
from intarsia.checking.survey.item_stats import (
    ItemStats,
    first_odd_magnitude,
    has_magnitudes,
    is_variance,
    telling_bits,
)
from intarsia.checking.survey.item_survey import ChunkPlace, ItemSurvey, SurveyContext
from intarsia.checking.survey.items import Item
from intarsia.checking.survey.magnitudes import greatest, without_signed_zeros
from intarsia.checking.survey.matrix_facts import facts_of_each
from intarsia.checking.survey.matrix_sums import sums_along
from intarsia.errors import IntarsiaError
from intarsia.frozen import frozen
from intarsia.run.room import Bytes
from intarsia.run.sharing import in_steps
from intarsia.run.sums.checksum import full, remainder
from intarsia.run.sums.neighbours import Neighbours, Run
from intarsia.state.names import MASTER
from intarsia.value.bits import Bits, bits_dtype

_SUM_BYTES = 8
"""What the sum of a row or a column takes."""


@frozen
class SmallItem:
    """An item that is one whole matrix in one chunk, and its number among all items.

    Its bytes are a run of the logical tensor `tensor`, where sums for its digest are wanted; "" elsewhere.
    """

    number: int
    item: Item
    run: Run
    tensor: str

    @property
    def nbytes(self) -> int:
        return self.run.length_bytes

    @property
    def memory_bytes(self) -> int:
        """What its survey takes: its bytes and its sums."""
        unit = self.item.units[0]
        return self.nbytes + _SUM_BYTES * (unit.rows + unit.columns)


@frozen
class SmallItems:
    """Small items of one file."""

    items: Sequence[SmallItem]

    @property
    def nbytes(self) -> int:
        return sum([x.nbytes for x in self.items])


def small_item(number: int, item: Item, context: SurveyContext) -> SmallItem | None:
    """An item that is surveyed with its neighbours; None for any other."""
    if not len(item.names) == len(item.units) == len(item.chunks) == 1:
        return None
    stored, unit, chunk = item.stored, item.units[0], item.chunks[0]
    dtype, layout = stored.dtype, stored.layout
    size = chunk.box.size
    nbytes = size * dtype.itemsize
    if nbytes > context.block_bytes or size < 2 or chunk.box.shape != layout.shape:
        return None
    if not is_plain(dtype) or unit.rows + unit.columns > context.most_sums:
        return None
    if layout.mapped != size or not is_there(context.manifest, chunk):
        return None
    if MASTER in item.kinds and context.wanted:
        return None  # it may be summed as the weight that it rounds to, too
    wanted = [context.wanted[name] for name in layout.tensors if name in context.wanted]
    if not any(is_summed(stored, x) for x in wanted):
        return SmallItem(number, item, Run(0, nbytes, nbytes), "")
    piece = layout.pieces[0]
    start_bytes = piece.to * dtype.itemsize
    if piece.run != size or not stored.value.is_plain or start_bytes % 8:
        return None
    return SmallItem(number, item, Run(start_bytes, nbytes, wanted[0].nbytes), piece.tensor)


def neighbours(small: Sequence[SmallItem], most_bytes: int) -> Iterator[SmallItems]:
    """Small items of any files, those together that one call reads."""
    by_file: dict[str, list[SmallItem]] = {}
    for x in small:
        by_file.setdefault(x.item.chunks[0].file, []).append(x)
    for of_file in by_file.values():
        of_file.sort(key=lambda x: x.item.chunks[0].start_bytes)
        for some in in_steps(of_file, most_bytes, lambda x: x.memory_bytes):
            yield SmallItems(some)


def survey_together(
    small: SmallItems, context: SurveyContext, most_bytes: int
) -> list[tuple[int, ItemStats]]:
    """What small items show, each with its number."""
    try:
        found = _survey(small.items, context)
    except IntarsiaError as error:
        error.raise_unless_fault()
        found = {}
    for x in small.items:
        if x.number not in found:
            alone = ItemSurvey(x.item, context, most_bytes)
            for stretch in alone.stretches:
                alone.look(stretch)
            found[x.number] = alone.stats
    return list(found.items())


def _survey(small: Sequence[SmallItem], context: SurveyContext) -> dict[int, ItemStats]:
    """What those show, by number, that are as they should be."""
    places = {x.number: context.place_of(x.item.stored, x.item.chunks[0]) for x in small}
    placed = [(x, places[x.number]) for x in small if places[x.number].together]
    if placed and (seen := survey_in_file(placed, context.folder)) is not None:
        return seen
    groups: dict[Any, list[SmallItem]] = {}
    for x in small:
        if places[x.number].together:
            unit = x.item.units[0]
            alike = unit.rows, unit.columns, x.item.stored.dtype, frozenset(x.item.kinds)
            groups.setdefault(alike, []).append(x)
    in_order = [x for group in groups.values() for x in group]
    together = Neighbours([x.run for x in in_order])
    memory = context.room.take(together.nbytes)
    views = dict(zip([x.number for x in in_order], together.views(memory), strict=True))
    ranges = [(places[x.number].located.start_bytes, views[x.number].data) for x in in_order]
    context.folder.read_each(small[0].item.chunks[0].file, sorted(ranges, key=lambda each: each[0]))
    found: dict[int, ItemStats] = {}
    first = 0
    for group in groups.values():
        found |= _survey_group(group, together.rows(memory, first, len(group)))
        first += len(group)
    return _summed(in_order, found, places, views, together, memory)


def _survey_group(group: Sequence[SmallItem], rows: Bytes) -> dict[int, ItemStats]:
    """What the numbers show of items of one shape and element type, of which each has its bytes in a row."""
    item = group[0].item
    unit, dtype = item.units[0], item.stored.dtype
    bits: Bits = rows.view(bits_dtype(dtype))
    ordinary = np.ones(len(group), np.bool_)
    most = np.zeros(len(group), np.uint64)
    least, used = [-1] * len(group), [0] * len(group)
    if has_magnitudes(dtype):
        extreme = greatest(bits)
        most = extreme.magnitude
        ordinary = most < first_odd_magnitude(dtype)
        if is_variance(item):
            ordinary &= ~extreme.below_zero
        least, used = telling_bits(dtype, bits, most, MASTER in item.kinds)
        if extreme.signed_zero.any():
            bits = without_signed_zeros(bits)
    elif dtype.name == "U8":
        most = bits.max(axis=1)
    sums = np.empty((len(group), unit.rows + unit.columns), np.uint64)
    matrices = bits.reshape(len(group), unit.rows, unit.columns)
    sums[:, : unit.rows] = sums_along(matrices, 2)
    sums[:, unit.rows :] = sums_along(matrices, 1)
    totals = sums[:, : unit.rows].sum(axis=1).tolist()
    facts = facts_of_each([x.item.units[0] for x in group], dtype, sums)
    numbers = zip(group, ordinary.tolist(), facts, least, most.tolist(), used, totals, strict=True)
    return {
        x.number: ItemStats(
            x.item,
            (fact,),
            used_bits=bits_used,
            least=smallest,
            most=largest,
            total=total,
            zero_chunks=() if total else x.item.chunks,
        )
        for x, is_ordinary, fact, smallest, largest, bits_used, total in numbers
        if is_ordinary
    }


def _summed(
    in_order: Sequence[SmallItem],
    found: dict[int, ItemStats],
    places: Mapping[int, ChunkPlace],
    views: Mapping[int, Bytes],
    together: Neighbours,
    memory: Bytes,
) -> dict[int, ItemStats]:
    """The same, with sums for digests; those whose checksum is not the recorded one are left out."""
    crcs = {
        x.number: remainder(views[x.number])
        for x in in_order
        if x.tensor or places[x.number].crc is not None
    }
    for x in in_order:
        crc = places[x.number].crc
        if crc is not None and full(crcs[x.number], x.nbytes) != crc:
            found.pop(x.number, None)
    for number, stats in found.items():
        stats.unsealed = int(places[number].unsealed)
    if any(x.tensor for x in in_order):
        sums = together.sums(memory, [crcs.get(x.number, 0) for x in in_order])
        for x, total in zip(in_order, sums, strict=True):
            if x.tensor and x.number in found:
                found[x.number].sums = {x.tensor: total}
    return found
