"""Blocks of a rank that many tensors lost: they explain the few differing elements of a small tensor too."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from math import prod

from intarsia.checking.diagnosis.finding import UNEXPLAINED, Finding
from intarsia.checking.diagnosis.where.places import DENSE, Place
from intarsia.checking.diagnosis.where.whereabouts import Cut
from intarsia.mesh import share

KindAndKey = tuple[str, Hashable]

STALE = "rank-stale"
MANY = 3
"""Tensors that must show one rank's block before a few elements of another are explained by it."""


def with_lost_ranks(findings: Sequence[Finding]) -> list[Finding]:
    """The same findings; a block of a rank that many tensors lost is reported as that rank's."""
    seen: Counter[KindAndKey] = Counter(
        (f.kind, f.key) for f in findings if f.place is not None and f.kind != UNEXPLAINED
    )
    leading = [x for x, count in seen.most_common() if count >= MANY]
    told = {(f.kind, f.key): f.of_block for f in findings if f.of_block}
    return [_led(f, leading, told) for f in findings]


def _led(f: Finding, leading: Sequence[KindAndKey], told: Mapping[KindAndKey, str]) -> Finding:
    kind = STALE if f.kind == UNEXPLAINED else f.kind
    for leader in leading:
        cut = _block(f.place, leader[1]) if f.place is not None and leader[0] == kind else None
        if cut is not None:
            n = f.differing
            fault = f"{cut} {told[leader]}"
            text = f"{fault} ({n:,} elements)"
            return replace(f, kind=kind, key=leader[1], fault=fault, text=text, explained=n)
    return f


def _block(place: Place, key: Hashable) -> Cut | None:
    """The block `((parts, rank),)` that the differences fill, on some axis."""
    match key:
        case ((int(parts), int(rank)),):
            pass
        case _:
            return None
    for axis, size in enumerate(place.shape):
        first, count = share(size, parts, rank)
        lo, n = place.box.offsets[axis], place.box.shape[axis]
        block = prod(place.shape) // max(size, 1) * count
        if 0 < count < size and first <= lo and lo + n <= first + count:
            return Cut(axis, parts, rank) if place.differing >= DENSE * block else None
    return None
