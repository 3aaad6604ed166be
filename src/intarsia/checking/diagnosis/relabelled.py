"""The same bits under two 16-bit types: which side names the wrong one, and the files that do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from intarsia.checking.content.numbers import is_scale
from intarsia.checking.diagnosis.finding import Finding
from intarsia.checking.pair.differing import Unequal
from intarsia.checking.pair.pairs import Pair, read_windows
from intarsia.checking.survey.elements import BF16_UP_TO, FP16_FROM
from intarsia.checkpoint import Checkpoint
from intarsia.run.budget import Budget
from intarsia.state.names import kind_of
from intarsia.value.bits import bits_dtype

_FEWEST = 64
"""Fewer elements may be near one by chance."""

RELABELLED = "dtype-relabelled"


def named_otherwise(unequal: Sequence[Unequal]) -> dict[Pair, Unequal]:
    """The pairs that differ by the name of their type alone.

    Of zeros the numbers are equal as well: they are of these, unless others of their types were cast.
    """
    named = {_types(u): u for u in unequal if u.kind == RELABELLED}
    cast = {_types(u) for u in unequal if not u.same_bits}
    return {
        u.pair: replace(u, kind=RELABELLED, text=named[_types(u)].text)
        for u in unequal
        if u.kind == RELABELLED or (_types(u) in named and _types(u) not in cast)
    }


def _types(u: Unequal) -> tuple[str, str]:
    return u.pair.a.dtype.name, u.pair.b.dtype.name


def relabelled(
    a: Checkpoint, b: Checkpoint, unequal: Iterable[Unequal], budget: Budget
) -> Iterator[tuple[Pair, Finding]]:
    """A finding for each pair that differs by the name of its type alone, the side named where all that tell it agree."""
    groups: dict[tuple[str, str], list[Unequal]] = {}
    for u in unequal:
        groups.setdefault(_types(u), []).append(u)
    for group in groups.values():
        sides = {side for u in group if (side := _wrong_side(a, b, u.pair, budget))}
        (wrong,) = sides if len(sides) == 1 else ("",)
        names = [(u.pair.a if wrong == "A" else u.pair.b).name for u in group]
        held = (a if wrong == "A" else b).manifest
        files = held.files_of(names) if wrong else []
        shown = tuple(files) if len(files) < len(held.files) else ()
        for u in group:
            x, y, n = u.pair.a.dtype, u.pair.b.dtype, u.elements
            text = f"{x} in A, {y} in B; the bits are the same: {wrong} names the wrong type"
            text = text if wrong else u.text
            yield u.pair, Finding(u.pair.a.name, RELABELLED, text, text, text, n, n, files=shown)


def _wrong_side(a: Checkpoint, b: Checkpoint, pair: Pair, budget: Budget) -> str:
    """The side on which no magnitude is that of a weight, as bits of bf16 read as fp16 are all near one; empty where both may be."""
    kinds = [pair.a.dtype.name, pair.b.dtype.name]
    if {*kinds} != {"F16", "BF16"} or len(pair.a.shape) < 2 or pair.a.size < _FEWEST:
        return ""
    if kind_of(pair.a.name) or is_scale(pair.a.name):
        return ""
    least, most = 0x7FFF, 0
    for _, raw, _ in read_windows(a, b, pair, budget):
        magnitude = raw.view(bits_dtype(pair.a.dtype)) & 0x7FFF
        least, most = min(least, int(np.min(magnitude))), max(most, int(np.max(magnitude)))
    if least >= FP16_FROM:
        return "AB"[kinds.index("F16")]
    return "AB"[kinds.index("BF16")] if 0 < most <= BF16_UP_TO else ""
