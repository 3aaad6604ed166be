"""Rows of B found again among rows of A, and the order that they come in given a name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import gcd

import numpy as np

from intarsia.checking.diagnosis.evidence import Evidence
from intarsia.checking.diagnosis.hypotheses.groups import RelatedTensors
from intarsia.checking.diagnosis.hypothesis import Hypothesis, Shuffle
from intarsia.checking.diagnosis.rearranged.fused import named_order
from intarsia.checking.diagnosis.rearranged.keys import (
    MOST_ROWS,
    Ints,
    found_again,
    mended,
    order_of_slices,
    sign_keys_of,
)
from intarsia.checking.diagnosis.rearranged.misplaced import shift_hypotheses
from intarsia.checking.diagnosis.rearranged.order import (
    ANY_ORDER,
    MOST_RUNS,
    along,
    numbers,
    of_runs,
    unmoved,
)
from intarsia.layout import Layout

MOST_BLOCKS = 512
MOST_UNEVEN = 64
MOST_TURNED = 16
"""Blocks up to which a turn by one is one of ranks; beyond, rows are shifted around the end."""


def row_hypotheses(e: Evidence, related: RelatedTensors) -> Iterator[Hypothesis]:
    """Rearrangements that the rows themselves show: blocks, heads, any order."""
    alike = e.pair.a.dtype == e.pair.b.dtype
    for axis, n in enumerate(e.shape):
        if not 2 <= n <= MOST_ROWS or not e.whole.size:
            continue
        order = np.full(n, -1, np.int64)
        if alike:
            order = mended(order_of_slices(e, axis))
        if 2 * np.count_nonzero(order >= 0) < n:
            left, right = sign_keys_of(e, e.a, axis), sign_keys_of(e, e.b, axis)
            if left and right:
                order = mended(found_again(left, right))
        if np.all((order == np.arange(n)) | (order < 0)):
            continue
        yield from _named(e, related, axis, order)
    if alike:
        yield from shift_hypotheses(e)


def _named(e: Evidence, related: RelatedTensors, axis: int, order: Ints) -> Iterator[Hypothesis]:
    noun = "rows" if axis == 0 else "columns" if len(e.shape) == 2 else f"indices of axis {axis}"
    most = 2 * np.count_nonzero(order >= 0) >= len(order)
    gap = np.unique((order - np.arange(len(order)))[order >= 0])
    if len(gap) == 1 and most:
        text = f"{noun} shifted by {-int(gap[0])}"
        every = np.arange(len(order)) + gap[0]
        every[(every < 0) | (every >= len(order))] = -1
        layout = along(e.whole, axis, of_runs(every))
        yield Hypothesis("shifted", text, layout, ("rows", int(gap[0])))
    fused = related.parts(e.name, axis)
    if fused and most and (known := named_order(fused, order, (e.left, e.right), noun)):
        yield Hypothesis(
            known.kind, known.text, along(e.whole, axis, of_runs(known.rows)), (known.text,)
        )
        return
    turn = _turn(order)
    if turn and most:
        text = f"{noun} shifted by {turn} around the end"
        turned = np.roll(np.arange(len(order)), turn)
        yield Hypothesis("shifted", text, along(e.whole, axis, of_runs(turned)), ("turn", turn))
        return
    if (later := _shifted_from(order)) and most:
        start, by = later
        every = np.arange(len(order))
        every[start:] -= by
        every[start : start + max(by, 0)] = -1
        every[every >= len(order)] = -1
        text = f"{noun} from {start:,} on shifted by {by}"
        yield Hypothesis("shifted", text, along(e.whole, axis, of_runs(every)), (start, by))
        return
    blocks = fewest_blocks(order)
    if blocks is None or len(blocks) == len(order):
        if most:
            yield _any_order(e, axis, order, noun)
        return
    count, heads = len(blocks), related.heads(e.name)
    size = -(-len(order) // count)
    layout = along(e.whole, axis, of_runs(in_blocks(blocks, len(order))))
    what = f"{count} blocks of {size} {noun}"
    key = tuple(blocks)
    cut = strided(blocks)
    if len({*blocks}) < count:
        yield _duplicated(axis, size, blocks, layout)
    elif heads and heads.axis == axis and heads.width == size:
        text = f"heads permuted: {what} come in the order {_listed(blocks, e.left)}"
        yield Hypothesis("heads-permuted", text, layout, key)
    elif cut:
        inner, outer = cut
        text = f"{what} strided, as where a shard of fsdp={inner} over tp={outer} is read as plain in {e.right}"
        text += f", or one of fsdp={outer} over tp={inner} in {e.left}"
        yield Hypothesis("strided-shard", text, layout, key)
    else:
        text = f"shards in the wrong order: {what} come in the order {_listed(blocks, e.left)}"
        yield Hypothesis("shards-permuted", text, layout, key)


def _any_order(e: Evidence, axis: int, order: Ints, noun: str) -> Hypothesis:
    runs = of_runs(order)
    few = len(runs.pieces) <= MOST_RUNS
    moved: Layout | Shuffle = along(e.whole, axis, runs) if few else Shuffle(axis, order)
    if len(e.shape) == 3 and axis == 0 and "experts" in e.name:
        whole = len({*order.tolist()}) == len(order)
        kind = "experts-permuted" if whole else "experts-duplicated"
        text = f"experts come in the order {_listed(order, e.left)}"
        return Hypothesis(kind, text, moved, (kind,))
    how = f"in another order: {_listed(order, e.left)}"
    if np.array_equal(order, np.arange(len(order))[::-1]):
        how = "in reverse order"
    return Hypothesis(ANY_ORDER, f"{noun} {how}", moved, (axis,))


def _duplicated(axis: int, size: int, blocks: Sequence[int], layout: Layout) -> Hypothesis:
    count = len(blocks)
    moved = [r for r, b in enumerate(blocks) if b != r]
    if len({*blocks}) == 1:
        text = f"every one of {count} blocks on axis {axis} holds block {blocks[moved[0]]}"
    else:
        held = ", ".join(f"{r} holds {blocks[r]}" for r in moved[:8])
        held += ", …" if len(moved) > 8 else ""
        text = f"of {count} blocks of {size} on axis {axis}, block {held}"
    return Hypothesis("rank-duplicated", text, layout, (count, tuple(blocks)))


def fewest_blocks(order: Sequence[int] | Ints) -> list[int] | None:
    """The fewest blocks, cut as `torch.chunk` cuts, that an order moves as wholes: their order.

    Rows that were not found (-1) may be any: a block of them is the one that is left over.

    >>> fewest_blocks([4, 5, 2, 3, 0, 1])
    [2, 1, 0]
    >>> fewest_blocks([4, 5, -1, -1, 0, 1])
    [2, 1, 0]
    """
    numbered = np.asarray(order)
    n = len(numbered)
    if 2 * np.count_nonzero(numbered >= 0) < n:
        return None
    for parts in range(2, min(n, MOST_BLOCKS) + 1):
        step = -(-n // parts)
        if n % parts and (parts > MOST_UNEVEN or step * (parts - 1) >= n):
            continue
        found = _walk(numbered, step)
        if found is None or len(found) != parts or found == [*range(parts)]:
            continue
        if len(in_blocks(found, n)) == n:
            return found
    return None


def in_blocks(blocks: Sequence[int], n: int) -> Ints:
    """The order of `n` rows that an order of blocks is."""
    step = -(-n // len(blocks))
    return np.concatenate([np.arange(k * step, min((k + 1) * step, n)) for k in blocks])


def _walk(order: Ints, step: int) -> list[int] | None:
    """The blocks of `step` rows that an order consists of; the last of them may be short."""
    at, n = 0, len(order)
    found: list[int] = []
    while at < n:
        part = order[at : at + step]
        known = np.flatnonzero(part >= 0)
        if not len(known):
            found.append(-1)
            at += step
            continue
        first = int(part[known[0]] - known[0])
        count = min(step, n - first)
        if first < 0 or first % step or len(part) < count:
            return None
        inside = known[known < count]
        if not np.array_equal(part[inside], first + inside):
            return None
        found.append(first // step)
        at += count
    return _filled(found, -(-n // step))


def _filled(found: list[int], parts: int) -> list[int] | None:
    """Blocks nobody recognises are those that are left over, their own place first."""
    left = {*range(parts)} - {*found}
    for at, block in enumerate(found):
        if block < 0 and at in left:
            found[at] = at
            left.remove(at)
    for at, block in enumerate(found):
        if block < 0:
            found[at] = min(left) if left else at
            left -= {found[at]}
    return found


def _turn(order: Ints) -> int:
    """By how many rows an order is turned around the end; 0 where it is not, or by whole ranks.

    >>> _turn(np.roll(np.arange(50), 1)), _turn(np.roll(np.arange(50), 25))
    (1, 0)
    """
    n = len(order)
    gaps = np.unique((np.arange(n) - order)[order >= 0] % n)
    by = int(gaps[0]) if len(gaps) == 1 else 0
    if not by or n // gcd(n, by) <= MOST_TURNED:
        return 0
    return by if 2 * by <= n else by - n


def _shifted_from(order: Ints) -> tuple[int, int] | None:
    """The row from which on all lie later, or earlier, by one number, those before it being in place.

    >>> _shifted_from(np.array([0, 1, 2, -1, 3, 4])), _shifted_from(np.array([0, 1, 3, 4, 5, -1]))
    ((3, 1), (2, -1))
    """
    here, gaps = np.arange(len(order)), np.arange(len(order)) - order
    moved = np.flatnonzero((order >= 0) & (gaps != 0))
    kept = np.flatnonzero((order >= 0) & (gaps == 0))
    if not len(moved) or not len(kept) or kept[-1] > moved[0] or len({*gaps[moved].tolist()}) > 1:
        return None
    by, after = int(gaps[moved[0]]), int(kept[-1]) + 1
    start = after if by > 0 else int(moved[0])
    known = np.count_nonzero(order[after:] < 0)
    return (start, by) if known <= abs(by) and len(here) > start + abs(by) else None


def strided(blocks: Sequence[int]) -> tuple[int, int] | None:
    """The mesh `(fsdp, tp)` whose strided shards, read as plain ones, come in this order.

    >>> strided([0, 2, 4, 1, 3, 5])
    (2, 3)
    """
    n = len(blocks)
    for tp in range(2, n // 2 + 1):
        if n % tp == 0:
            plain = unmoved(n).reshape(tp, n // tp).permute(1, 0)
            if numbers(plain).tolist() == list(blocks):
                return n // tp, tp
    return None


def _listed(numbered: Sequence[int] | Ints, side: str) -> str:
    """The first numbers of an order; what is nowhere on the side may be zero, or anything."""
    shown = [str(int(k)) if k >= 0 else "?" for k in numbered[:12]]
    text = f"[{', '.join(shown)}{', …' if len(numbered) > 12 else ''}] of {side}"
    return f"{text}, ? for what {side} does not hold" if "?" in shown else text
