"""What the content of each tensor shows: its faults, and what is worth a note."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from intarsia.checking.content.holes import hole
from intarsia.checking.content.meant_zeros import MeantZeros
from intarsia.checking.content.numbers import (
    dtype_implausible,
    far_bounds,
    negative_variance,
    not_finite,
    open_bounds,
    value_implausible,
)
from intarsia.checking.content.same_content import Content
from intarsia.checking.content.zeros import zero_block, zero_scalars, zero_tensors
from intarsia.checking.fault import Fault
from intarsia.checking.naming import tensors_in
from intarsia.checking.survey.item_stats import ItemStats
from intarsia.errors import few
from intarsia.format.base import Format


def content_faults(found: Sequence[ItemStats], format: Format, content: Content) -> Iterator[Fault]:
    """The faults of every tensor."""
    zeros = any(p.zero_rows or p.zero_columns for stats in found for p in stats.matrices)
    meant = MeantZeros(found if zeros else ())
    bounds, far = {*open_bounds(found)}, {*far_bounds(found)}
    for stats in found:
        yield from stats.faults
        if stats.faults:
            continue  # what a damaged chunk holds says nothing
        if not format.has_gaps(stats.item.stored.name):
            yield from not_finite(stats, bounds)
            yield from negative_variance(stats)
        yield from dtype_implausible(stats)
        yield from value_implausible(stats, far)
        for matrix in stats.matrices:
            yield from [*hole(stats, matrix, content)] or zero_block(
                stats, matrix, format.pads_vocabulary, meant, content
            )
    yield from zero_tensors(found, content)
    yield from zero_scalars(found)


def notes_of(found: Sequence[ItemStats], faults: Iterable[Fault]) -> Iterator[str]:
    """What is worth saying, and no fault says."""
    lost = {name for fault in faults if fault.kind == "zero-block" for name in fault.tensors}
    unsealed = sum(stats.unsealed for stats in found)
    if unsealed:
        yield f"{unsealed:,} chunks were saved without a CRC-32, so their bytes cannot be checked"
    if bounds := open_bounds(found):
        yield f"infinite ends of intervals, which are open there: {few([f'`{n}`' for n in bounds], 4)}"
    for stats in found:
        for p in stats.matrices:
            if not p.zero_rows and p.alike_at_end <= 1:
                continue
            lo, hi = next((r for r in p.zero_rows if r[1] == p.unit.rows), (0, 0))
            if not p.unit.place.is_vocabulary or p.unit.place.kind:
                continue
            name = stats.item.stored.name
            if hi > lo and lost.isdisjoint(tensors_in(stats.item.stored, p.unit)):
                yield f"`{name}` ends with {hi - lo:,} zero rows, as padding does"
            elif hi == lo and p.alike_at_end > 1:
                yield f"`{name}` ends with {p.alike_at_end:,} equal rows, as tokens never trained do"
