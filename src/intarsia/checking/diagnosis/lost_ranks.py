"""Blocks of a rank that many tensors lost: they explain the few differing elements of a small tensor too."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from math import prod

from intarsia.checking.diagnosis.finding import UNEXPLAINED, Finding
from intarsia.checking.diagnosis.where.elements import DENSE, Cut, DifferingElements
from intarsia.mesh import share

KindAndKey = tuple[str, Hashable]

STALE = "rank-stale"
MANY = 3
"""Tensors that must show one rank's block before a few elements of another are explained by it."""


def with_lost_ranks(findings: Sequence[Finding]) -> list[Finding]:
    """The same findings; a block of a rank that many tensors lost is reported as that rank's."""
    blocks: Counter[KindAndKey] = Counter((f.kind, f.key) for f in findings if f.of_block)
    leading = [x for x, count in blocks.most_common() if count >= MANY]
    texts = {(f.kind, f.key): f.of_block for f in findings if f.of_block}
    return [_led(f, leading, texts) for f in findings]


def _led(f: Finding, leading: Sequence[KindAndKey], texts: Mapping[KindAndKey, str]) -> Finding:
    if f.where is None or not (f.of_block or f.kind == UNEXPLAINED):
        return f
    kind = STALE if f.kind == UNEXPLAINED else f.kind
    for leader in leading:
        cut = _block(f.where.differing, leader[1]) if leader[0] == kind else None
        if cut is not None:
            n = f.differing
            fault = f"{cut} {texts[leader]}"
            text = f"{fault} ({n:,} elements)"
            return replace(f, kind=kind, key=leader[1], fault=fault, text=text, explained=n)
    return f


def _block(elements: DifferingElements, key: Hashable) -> Cut | None:
    """The block `((parts, rank),)` that the differences fill, on some axis."""
    match key:
        case ((int(parts), int(rank)),):
            pass
        case _:
            return None
    for axis, size in enumerate(elements.shape):
        first, count = share(size, parts, rank)
        lo, n = elements.box.offsets[axis], elements.box.shape[axis]
        block = prod(elements.shape) // max(size, 1) * count
        if 0 < count < size and first <= lo and lo + n <= first + count:
            return Cut(axis, parts, rank) if elements.count >= DENSE * block else None
    return None
