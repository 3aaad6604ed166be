"""Small tensors that lie near each other in a file, read by one call and surveyed together.

What is done for one tensor costs more than the bytes of a small one, and threads wait for each
other at every call.  Those that are cut into archives are put together first.  A tensor that shows
what no sound one holds is surveyed alone, as larger ones are, and its faults are named there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from intarsia.checking.survey.block_survey import survey_in_memory
from intarsia.checking.survey.elements import Elements
from intarsia.checking.survey.item_stats import ItemStats
from intarsia.checking.survey.item_survey import ItemSurvey, SurveyContext
from intarsia.checking.survey.items import SurveyItem
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
from intarsia.checking.survey.small_items import SmallItem, SmallItems
from intarsia.checking.survey.wrapped_chunks import ItemsCutAlike, bring
from intarsia.errors import IntarsiaError, StoreError
from intarsia.frozen import frozen
from intarsia.kernel.surveying import (
    CRC,
    FACTS,
    PAGES,
    REPEATS,
    Asked,
    Matrix,
    Surveyed,
    SurveyedMatrix,
)
from intarsia.planning.manifest import Chunk
from intarsia.run.room import Bytes, in_parts
from intarsia.run.sums.checksum import full
from intarsia.value.bits import bits_dtype


@frozen
class _Alike:
    """Small items of one shape, whose elements are alike: what is wanted of them, and how their digests begin."""

    elements: Elements
    wanted: int
    head: bytes

    @staticmethod
    def of(item: SurveyItem) -> _Alike:
        elements, unit = Elements.of(item), item.units[0]
        wanted = FACTS | (REPEATS if is_wide(unit, elements.dtype) else 0)
        return _Alike(elements, wanted, head_of_digest(elements.dtype, unit))


def survey_together(
    small: SmallItems, context: SurveyContext, most_bytes: int
) -> list[tuple[int, ItemStats]]:
    """What small items show, each with its number."""
    failed: StoreError | None = None
    try:
        survey = _survey_wrapped if small.wrapped else _survey_placed
        found = survey(small.items, context)
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


def _survey_placed(small: Sequence[SmallItem], context: SurveyContext) -> dict[int, ItemStats]:
    """What items of one file show, by number, of those that are as they should be."""
    each = [(x, context.place_of(x.item.stored, x.item.chunks[0])) for x in small]
    placed = [(x, place) for x, place in each if place.together]
    if not placed:
        return {}
    items, file = [x for x, _ in placed], small[0].item.chunks[0].file
    starts = [place.located.start_bytes for _, place in placed]
    sealed = [place.crc is not None for _, place in placed]
    kinds, asked = _asked(items, starts, sealed)
    surveyed = context.folder.survey(file, asked)
    if surveyed is None:
        sizes = [x.nbytes for x in items]
        views = in_parts(context.room.take(sum(sizes)), sizes)
        ranges = sorted(zip(starts, views, strict=True), key=lambda at: at[0])
        context.folder.read_each(file, [(start, view.data) for start, view in ranges])
        surveyed = survey_in_memory(_asked(items, _addresses(views), sealed)[1])
    found = _shown(items, kinds, asked, surveyed)
    for (x, place), seen in zip(placed, surveyed.seen, strict=True):
        if place.crc is not None and full(seen.crc, x.nbytes) != place.crc:
            found.pop(x.number, None)
        elif place.unsealed and x.number in found:
            found[x.number].unsealed = 1
    return found


def _survey_wrapped(small: Sequence[SmallItem], context: SurveyContext) -> dict[int, ItemStats]:
    """What items in wrapped chunks show, by number, of those that are as they should be."""
    groups = _cut_alike(small)
    sizes = [len(group) * group[0].nbytes for group in groups]
    parts = in_parts(context.room.take(sum(sizes)), sizes)
    alike = [
        ItemsCutAlike([x.item for x in group], part.reshape(len(group), -1))
        for group, part in zip(groups, parts, strict=True)
    ]
    brought = bring(alike, context.known_chunks, context.room_for_chunks)
    items = [x for group in groups for x in group]
    views = [row for some in alike for row in some.rows]
    kinds, asked = _asked(items, _addresses(views), [False] * len(items))
    found = _shown(items, kinds, asked, survey_in_memory(asked))
    sound = [is_sound for some in brought for is_sound in some.sound.tolist()]
    unsealed = [count for some in brought for count in some.unsealed.tolist()]
    for x, kind, view, is_sound, count in zip(items, kinds, views, sound, unsealed, strict=True):
        if not is_sound:
            found.pop(x.number, None)
        elif x.number in found:
            found[x.number].unsealed = count
            found[x.number].zero_chunks = _zero_chunks(x.item, kind.elements, view)
    return found


def _cut_alike(small: Sequence[SmallItem]) -> list[list[SmallItem]]:
    """Small items in groups of one shape and element type that are cut alike."""
    groups: dict[Any, list[SmallItem]] = {}
    for x in small:
        cut = [(chunk.box, chunk.length_bytes) for chunk in x.item.chunks]
        groups.setdefault((x.item.stored.dtype, x.item.stored.shape, *cut), []).append(x)
    return list(groups.values())


def _addresses(views: Sequence[Bytes]) -> list[int]:
    return [view.ctypes.data for view in views]


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


def _facts(
    item: SurveyItem, kind: _Alike, at: Matrix, seen: SurveyedMatrix, sums: Sums
) -> MatrixFacts:
    unit = item.units[0]
    if seen.odd:
        columns_at = at.sums_at + unit.rows
        columns = sums[columns_at : columns_at + unit.columns]
        return matrix_facts(unit, kind.elements.dtype, sums[at.sums_at : columns_at], columns)
    hashed = seen.hash_low.to_bytes(8, "little") + seen.hash_high.to_bytes(8, "little")
    return ordinary_facts(unit, kind.head + hashed)


def _zero_chunks(item: SurveyItem, elements: Elements, view: Bytes) -> tuple[Chunk, ...]:
    """The chunks that hold nothing but zeros, of any sign."""
    whole = view.view(bits_dtype(elements.dtype)).reshape(item.stored.shape)
    return tuple(
        chunk
        for chunk in item.chunks
        if whole[chunk.box.offsets] in (0, elements.sign_bit)
        and np.isin(whole[chunk.box.slices], (0, elements.sign_bit)).all()
    )
