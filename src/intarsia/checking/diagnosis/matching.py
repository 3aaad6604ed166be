"""Rows of B found again among rows of A, by a few elements of each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from intarsia.checking.diagnosis.evidence import Evidence
from intarsia.checking.diagnosis.groups import Kin
from intarsia.checking.diagnosis.hypothesis import Hypothesis
from intarsia.checking.diagnosis.rearrange import along, numbers, of_runs, rows
from intarsia.checkpoint import Checkpoint
from intarsia.layout import Layout, concat, padding
from intarsia.mesh import Box

ANY_ORDER = "rows-permuted"
KEY_ELEMENTS = 16
MOST_ROWS = 1 << 20
AHEAD = 8
"""How far a row among several alike is followed to tell which of them it is."""

MOST_BLOCKS = 512
MOST_UNEVEN = 64

REACH = 1 << 16
"""How many elements a flat range may have moved."""

Ints = NDArray[np.int64]


def row_hypotheses(e: Evidence, kin: Kin) -> Iterator[Hypothesis]:
    """Rearrangements that the rows themselves show: blocks, heads, any order."""
    if e.pair.a.dtype != e.pair.b.dtype:
        return
    for axis, n in enumerate(e.shape):
        if not 2 <= n <= MOST_ROWS:
            continue
        order = _mended(found_again(_keys(e, e.a, axis), _keys(e, e.b, axis)))
        if np.all((order == np.arange(n)) | (order < 0)):
            continue
        yield from _named(e, kin, axis, order)
    yield from _shifted(e)


def found_again(left: Sequence[bytes], right: Sequence[bytes]) -> Ints:
    """For each row of B the row of A that it is, or -1.

    Of several that look alike, the one whose followers look alike the longest.

    >>> found_again([b"a", b"b", b"a", b"c"], [b"a", b"c", b"x"]).tolist()
    [2, 3, -1]
    """
    where: dict[bytes, list[int]] = {}
    for j, key in enumerate(left):
        where.setdefault(key, []).append(j)
    out = np.full(len(right), -1, np.int64)
    for i, key in enumerate(right):
        alike = where.get(key, ())
        if len(alike) == 1:
            out[i] = alike[0]
        elif alike:
            follows = int(out[i - 1]) + 1 if i and out[i - 1] >= 0 else -1
            near = (follows, i)
            out[i] = next((j for j in near if 0 <= j < len(left) and left[j] == key), -1)
            if out[i] != follows:
                out[i] = max(alike[:256], key=lambda j: (_run(left, right, j, i), j == i))
    return out


def _run(left: Sequence[bytes], right: Sequence[bytes], j: int, i: int) -> int:
    n = 0
    while n < AHEAD and i + n < len(right) and j + n < len(left) and left[j + n] == right[i + n]:
        n += 1
    return n


def _mended(order: Ints) -> Ints:
    """The order with its few gaps closed: a row that is wrong itself lies where its neighbours do."""
    lost = np.flatnonzero(order < 0)
    out, n = order.copy(), len(order)
    if not len(lost) or len(lost) * 20 > n:
        return out
    for i in lost:
        if i and out[i - 1] >= 0 and out[i - 1] + 1 < n:
            out[i] = out[i - 1] + 1
    for i in lost[::-1]:
        if i + 1 < n and out[i + 1] > 0 and (i == 0 or out[i] < 0 or out[i] + 1 != out[i + 1]):
            out[i] = out[i + 1] - 1
    return out


def _keys(e: Evidence, side: Checkpoint, axis: int) -> list[bytes]:
    """The first few elements of every slice on an axis, as bytes."""
    n = e.shape[axis]
    pair = e.pair.a if side is e.a else e.pair.b
    axes = [axis, *[k for k in range(len(e.shape)) if k != axis]]
    front = Layout.of(pair.name, e.shape).permute(*axes).reshape(n, -1)
    width = min(KEY_ELEMENTS, front.shape[1])
    raw = e.read(front, Box((0, 0), (n, width)), side).tobytes()
    step = len(raw) // n
    return [raw[k : k + step] for k in range(0, len(raw), step)]


def _named(e: Evidence, kin: Kin, axis: int, order: Ints) -> Iterator[Hypothesis]:
    noun = "rows" if axis == 0 else "columns" if len(e.shape) == 2 else f"indices of axis {axis}"
    layout = along(e.whole, axis, of_runs(order))
    gap = np.unique((order - np.arange(len(order)))[order >= 0])
    if len(gap) == 1 and 2 * np.count_nonzero(order >= 0) >= len(order):
        text = f"{noun} shifted by {-int(gap[0])}"
        yield Hypothesis("shifted", text, layout, ("rows", int(gap[0])))
    blocks = blocks_of(order)
    if blocks is None or len(blocks) == len(order):
        if 2 * np.count_nonzero(order >= 0) >= len(order) and len(of_runs(order).pieces) < 4096:
            yield _any_order(e, axis, order, noun, layout)
        return
    count, heads = len(blocks), kin.heads(e.name)
    size = -(-len(order) // count)
    what = f"{count} blocks of {size} {noun}"
    key = tuple(blocks)
    cut = strided(blocks)
    if len({*blocks}) < count:
        yield _duplicated(axis, size, blocks, layout)
    elif heads and heads.axis == axis and heads.width == size:
        text = f"heads permuted: {what} come in the order {_listed(blocks)} of A"
        yield Hypothesis("heads-permuted", text, layout, key)
    elif cut:
        text = f"{what} strided: a shard of fsdp={cut[0]} over tp={cut[1]} read as a plain one"
        yield Hypothesis("strided-shard", text, layout, key)
    else:
        text = f"shards in the wrong order: {what} come in the order {_listed(blocks)} of A"
        yield Hypothesis("shards-permuted", text, layout, key)


def _any_order(e: Evidence, axis: int, order: Ints, noun: str, layout: Layout) -> Hypothesis:
    if len(e.shape) == 3 and axis == 0 and "experts" in e.name:
        whole = len({*order.tolist()}) == len(order)
        kind = "experts-permuted" if whole else "experts-duplicated"
        return Hypothesis(kind, f"experts come in the order {_listed(order)} of A", layout, (kind,))
    return Hypothesis(ANY_ORDER, f"{noun} in another order: {_listed(order)} of A", layout, (axis,))


def _duplicated(axis: int, size: int, blocks: Sequence[int], layout: Layout) -> Hypothesis:
    count = len(blocks)
    moved = [r for r, b in enumerate(blocks) if b != r]
    if count == 1 + len(moved):
        text = f"every one of {count} blocks on axis {axis} holds block {blocks[moved[0]]}"
    else:
        told = ", ".join(f"{r} holds {blocks[r]}" for r in moved[:8])
        text = f"of {count} blocks of {size} on axis {axis}, block {told}"
    return Hypothesis("rank-duplicated", text, layout, (count, tuple(blocks)))


def blocks_of(order: Sequence[int] | Ints) -> list[int] | None:
    """The fewest blocks, cut as `torch.chunk` cuts, that an order moves as wholes: their order.

    >>> blocks_of([4, 5, 2, 3, 0, 1])
    [2, 1, 0]
    """
    numbered = np.asarray(order)
    n = len(numbered)
    for parts in range(2, min(n, MOST_BLOCKS) + 1):
        step = -(-n // parts)
        if n % parts and (parts > MOST_UNEVEN or step * (parts - 1) >= n):
            continue
        found = _walk(numbered, step)
        if found is not None and found != [*range(parts)]:
            return found
    return None


def _walk(order: Ints, step: int) -> list[int] | None:
    """The blocks of `step` rows that an order consists of; the last of them may be short."""
    at, found, n = 0, [], len(order)
    while at < n:
        first = int(order[at])
        count = min(step, n - first)
        part = order[at : at + count]
        if first < 0 or first % step or not np.array_equal(part, first + np.arange(len(part))):
            return None
        if len(part) < count:
            return None
        found.append(first // step)
        at += count
    return found


def strided(blocks: Sequence[int]) -> tuple[int, int] | None:
    """The mesh `(fsdp, tp)` whose strided shards, read as plain ones, come in this order.

    >>> strided([0, 2, 4, 1, 3, 5])
    (2, 3)
    """
    n = len(blocks)
    for tp in range(2, n // 2 + 1):
        if n % tp == 0:
            plain = rows(n).reshape(tp, n // tp).permute(1, 0)
            if numbers(plain).tolist() == list(blocks):
                return n // tp, tp
    return None


def _shifted(e: Evidence) -> Iterator[Hypothesis]:
    """A flat range that begins some elements too early or too late."""
    n = e.whole.size
    flat = e.whole.reshape(n)
    if n < 4 * KEY_ELEMENTS or not e.first:
        return
    start = 0
    for i, size in zip(e.first, e.shape, strict=True):
        start = start * size + i
    for place in (start + (n - start) // 2, start):
        lo = max(0, min(place, n - KEY_ELEMENTS))
        here = Layout.of(e.pair.b.name, (n,))
        needle = e.read(here, Box((lo,), (KEY_ELEMENTS,)), e.b).tobytes()
        first, last = max(0, lo - REACH), min(n, lo + KEY_ELEMENTS + REACH)
        hay = e.read(flat, Box((first,), (last - first,))).tobytes()
        for at in _found(hay, needle, e.pair.a.dtype.itemsize):
            k = lo - (first + at)
            if k and len({*needle}) > 2:
                yield from _moved(e, flat, k)
                return


def _moved(e: Evidence, flat: Layout, k: int) -> Iterator[Hypothesis]:
    n = flat.size
    kept = flat.narrow(0, max(0, -k), n - max(0, k))
    told = f"content shifted by {k} element{'s' if abs(k) > 1 else ''}"
    around = flat.narrow(0, n - k, n) if k > 0 else flat.narrow(0, 0, -k)
    for rest, more in ((padding(abs(k)), ""), (around, " around the end")):
        parts = [rest, kept] if k > 0 else [kept, rest]
        layout = concat(parts).reshape(*e.shape)
        yield Hypothesis("shifted", told + more, layout, ("flat", k, more))


def _found(hay: bytes, needle: bytes, itemsize: int) -> Iterator[int]:
    at = hay.find(needle)
    while at >= 0:
        if at % itemsize == 0:
            yield at // itemsize
        at = hay.find(needle, at + 1)


def _listed(numbered: Sequence[int] | Ints) -> str:
    shown = [str(int(k)) for k in numbered[:12]]
    return f"[{', '.join(shown)}{', …' if len(numbered) > 12 else ''}]"
