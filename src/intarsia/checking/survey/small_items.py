"""Small tensors that lie near each other in a file, read by one call and surveyed together.

What is done for one tensor costs more than the bytes of a small one, and threads wait for each
other at every call.  Here those of one shape and element type are one array with three axes, of
which each number is taken for all of them at once; those that are cut into archives are put together
first.  A tensor that shows what no sound one holds is surveyed alone, as larger ones are, and its
faults are named there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any

import numpy as np

from intarsia.checking.alone.headers import is_there
from intarsia.checking.digests.sums import is_summed
from intarsia.checking.survey.compiled import (
    Elements,
    is_plain,
    survey_in_file,
    survey_in_memory,
)
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
from intarsia.checking.survey.wrapped_chunks import GAP_BYTES, Alike, bring, slices_of
from intarsia.errors import IntarsiaError, StoreError
from intarsia.frozen import frozen
from intarsia.run.room import Bytes
from intarsia.run.sharing import in_steps
from intarsia.run.sums.checksum import crc32, remainder
from intarsia.run.sums.neighbours import Neighbours, Run
from intarsia.state.names import MASTER
from intarsia.value.bits import Bits, as_float64, bits_dtype

_SUM_BYTES = 8
"""What the sum of a row or a column takes."""


@frozen
class SmallItem:
    """An item that is one whole matrix in one chunk, or in some that are `wrapped`, and its number among all.

    Its bytes are a run of the logical tensor `tensor`, where sums for its digest are wanted; "" elsewhere.
    """

    number: int
    item: Item
    run: Run
    tensor: str
    wrapped: bool

    @property
    def nbytes(self) -> int:
        return self.run.length_bytes

    @property
    def memory_bytes(self) -> int:
        """What its survey takes: its bytes and its sums, and its chunks with all that is in them."""
        unit, chunks = self.item.units[0], self.item.chunks if self.wrapped else ()
        sums = _SUM_BYTES * (unit.rows + unit.columns)
        return self.nbytes + sums + sum([GAP_BYTES + x.length_bytes for x in chunks])


@frozen
class SmallItems:
    """Small items that one thread surveys together: of one file, or with their first chunks in it."""

    items: Sequence[SmallItem]
    wrapped: bool

    @property
    def nbytes(self) -> int:
        return sum([x.nbytes for x in self.items])


def small_item(number: int, item: Item, context: SurveyContext) -> SmallItem | None:
    """An item that is surveyed with its neighbours; None for any other."""
    if not len(item.names) == len(item.units) == 1:
        return None
    stored, unit = item.stored, item.units[0]
    dtype, layout, chunks = stored.dtype, stored.layout, item.chunks
    size = layout.size
    nbytes = size * dtype.itemsize
    if nbytes > context.block_bytes or unit.rows + unit.columns > context.most_sums:
        return None
    if not layout.mapped == size == unit.rows * unit.columns or not is_plain(dtype):
        return None
    if context.wanted and MASTER in item.kinds:
        return None  # it may be summed as the weight that it rounds to, too
    in_memory = context.manifest.in_memory_files
    wrapped = context.format.front_kind(stored) is not None
    wrapped = wrapped and not (in_memory and any(x.file in in_memory for x in chunks))
    if not wrapped and (len(chunks) > 1 or size < 2):
        return None
    # Chunks that do not tile it would leave some of its memory as it was.
    if context.links.stored_fault(stored) is not None:
        return None
    if not all(is_there(context.manifest, chunk) for chunk in chunks):
        return None
    wanted = [context.wanted[name] for name in layout.tensors if name in context.wanted]
    if not any(is_summed(stored, x) for x in wanted):
        return SmallItem(number, item, _whole(nbytes), "", wrapped)
    piece = layout.pieces[0]
    start_bytes = piece.to * dtype.itemsize
    if piece.run != size or not stored.value.is_plain or start_bytes % 8:
        return None
    run = Run(start_bytes, nbytes, wanted[0].nbytes)
    return SmallItem(number, item, run, piece.tensor, wrapped)


@lru_cache(maxsize=1 << 10)
def _whole(nbytes: int) -> Run:
    """All of a tensor, the same object for all of its length."""
    return Run(0, nbytes, nbytes)


def neighbours(
    small: Sequence[SmallItem], most_bytes: int, most_wrapped_bytes: int
) -> Iterator[SmallItems]:
    """Small items of any files, those together that few calls read."""
    by_file: dict[tuple[str, bool], list[SmallItem]] = {}
    for x in small:
        by_file.setdefault((x.item.chunks[0].file, x.wrapped), []).append(x)
    for (_, wrapped), of_file in by_file.items():
        of_file.sort(key=lambda x: x.item.chunks[0].start_bytes)
        most = most_wrapped_bytes if wrapped else most_bytes
        for some in in_steps(of_file, most, lambda x: x.memory_bytes):
            yield SmallItems(some, wrapped)


def survey_together(
    small: SmallItems, context: SurveyContext, most_bytes: int
) -> list[tuple[int, ItemStats]]:
    """What small items show, each with its number."""
    failed: StoreError | None = None
    try:
        found = _survey(small, context)
    except IntarsiaError as error:
        error.raise_unless_fault()
        found, failed = {}, error if isinstance(error, StoreError) else None
    for x in small.items:
        if x.number not in found:
            alone = ItemSurvey(x.item, context, most_bytes)
            for stretch in alone.stretches:
                alone.look(stretch)
            found[x.number] = alone.stats
    if failed is not None and not any(stats.faults for stats in found.values()):
        raise failed  # a disk that answers when it is asked again has failed all the same
    return list(found.items())


def _survey(small: SmallItems, context: SurveyContext) -> dict[int, ItemStats]:
    """What those show, by number, that are as they should be."""
    places = {}
    if not small.wrapped:
        places = {x.number: context.place_of(x.item.stored, x.item.chunks[0]) for x in small.items}
        placed = [(x, places[x.number]) for x in small.items if places[x.number].together]
        if placed and (seen := survey_in_file(placed, context.folder)) is not None:
            return seen
    groups = _alike([x for x in small.items if small.wrapped or places[x.number].together])
    in_order = [x for group in groups for x in group]
    together = Neighbours([x.run for x in in_order])
    memory = context.room.take(together.nbytes)
    views = together.views(memory)
    ends = accumulate(map(len, groups))
    rows = [
        together.rows(memory, end - len(x), len(x)) for x, end in zip(groups, ends, strict=True)
    ]
    if small.wrapped:
        unsealed = _read_wrapped(groups, rows, context)
    else:
        unsealed = _read(in_order, [places[x.number] for x in in_order], views, context)
    found = survey_in_memory(in_order, views)
    if found is None:
        found = {}
        for group, held in zip(groups, rows, strict=True):
            found |= _survey_group(group, held)
        _add_sums(found, in_order, together, memory, views)
    found = {number: stats for number, stats in found.items() if number in unsealed}
    for number, stats in found.items():
        stats.unsealed = unsealed[number]
    for group, held in zip(groups, rows, strict=True):
        _add_what_chunks_show(found, group, held)
    return found


def _alike(small: Iterable[SmallItem]) -> list[list[SmallItem]]:
    """Small items in groups of one shape and element type, those in several chunks being cut alike."""
    groups: dict[Any, list[SmallItem]] = {}
    for x in small:
        unit, stored = x.item.units[0], x.item.stored
        alike = unit.rows, unit.columns, stored.dtype, frozenset(x.item.kinds)
        cut = [(chunk.box, chunk.length_bytes) for chunk in x.item.chunks] if x.wrapped else ()
        groups.setdefault((alike, stored.shape, *cut), []).append(x)
    return list(groups.values())


def _read(
    in_order: Sequence[SmallItem],
    places: Sequence[ChunkPlace],
    views: Sequence[Bytes],
    context: SurveyContext,
) -> dict[int, int]:
    """Put items of one file into memory: by number, of those whose checksum is right, how many have none."""
    if not in_order:
        return {}
    ranges = [(x.located.start_bytes, view.data) for x, view in zip(places, views, strict=True)]
    file = in_order[0].item.chunks[0].file
    context.folder.read_each(file, sorted(ranges, key=lambda each: each[0]))
    return {
        x.number: int(place.unsealed)
        for x, place, view in zip(in_order, places, views, strict=True)
        if place.crc is None or crc32(view) == place.crc
    }


def _read_wrapped(
    groups: Sequence[Sequence[SmallItem]], rows: Sequence[Bytes], context: SurveyContext
) -> dict[int, int]:
    """Put items in wrapped chunks into memory: by number, of those that are as they were saved, how many
    chunks have no checksum."""
    alike = [Alike([x.item for x in some], to) for some, to in zip(groups, rows, strict=True)]
    brought = bring(alike, context.known_chunks, context.room_for_chunks)
    return {
        x.number: unsealed
        for group, each in zip(groups, brought, strict=True)
        for x, sound, unsealed in zip(
            group, each.sound.tolist(), each.unsealed.tolist(), strict=True
        )
        if sound
    }


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
            x.item, (fact,), used_bits=bits_used, least=smallest, most=largest, total=total
        )
        for x, is_ordinary, fact, smallest, largest, bits_used, total in numbers
        if is_ordinary
    }


def _add_sums(
    found: Mapping[int, ItemStats],
    in_order: Sequence[SmallItem],
    together: Neighbours,
    memory: Bytes,
    views: Sequence[Bytes],
) -> None:
    """Add the sums for digests."""
    if any(x.tensor for x in in_order):
        crcs = [remainder(view) if x.tensor else 0 for x, view in zip(in_order, views, strict=True)]
        for x, total in zip(in_order, together.sums(memory, crcs), strict=True):
            if x.tensor and x.number in found:
                found[x.number].sums = {x.tensor: total}


def _add_what_chunks_show(
    found: Mapping[int, ItemStats], group: Sequence[SmallItem], rows: Bytes
) -> None:
    """Add which chunks hold nothing but zeros, of any sign, and the value of a single element."""
    stored = group[0].item.stored
    bits: Bits = rows.view(bits_dtype(stored.dtype))
    sign = Elements.of(group[0].item).sign_bit
    unsigned = bits.dtype.type((1 << 8 * stored.dtype.itemsize) - 1 - sign)
    whole = bits.reshape(len(group), *stored.shape)
    shown = {k: found[x.number] for k, x in enumerate(group) if x.number in found}
    for stats in shown.values():
        stats.zero_chunks = ()
        if stored.layout.size == 1:
            only = np.array([stats.total], np.uint64).astype(bits.dtype)
            stats.value = float(as_float64(only, stored.dtype).real[0])
    for number, chunk in enumerate(group[0].item.chunks):
        first: Any = (slice(None), *chunk.box.offsets)
        maybe = np.flatnonzero(whole[first] & unsigned == 0)
        inside: Any = (maybe, *slices_of(chunk.box))
        held = whole[inside].reshape(len(maybe), chunk.box.size) & unsigned
        for k in maybe[~held.any(axis=1)].tolist():
            if k in shown:
                shown[k].zero_chunks = (*shown[k].zero_chunks, group[k].item.chunks[number])
