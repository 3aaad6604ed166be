"""Rows of tensors that are stored as one, found again in each other's place.

A tensor alone fits several orders of its group by accident; all rows of the group fit one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import permutations
from math import gcd

import numpy as np

from intarsia.checking.diagnosis.evidence import Evidence
from intarsia.checking.diagnosis.hypotheses.groups import FusedParts
from intarsia.checking.diagnosis.hypothesis import NEARLY_ALL
from intarsia.checking.diagnosis.rearranged.fused import COMPONENTS, KINDS
from intarsia.checking.diagnosis.rearranged.keys import (
    KEY_ELEMENTS,
    MOST_ROWS,
    Ints,
    order_of_rows,
)
from intarsia.checking.diagnosis.rearranged.order import (
    ANY_ORDER,
    MOST_RUNS,
    Order,
    both_ways,
    numbers,
    of_runs,
    unmoved,
)
from intarsia.layout import concat, split
from intarsia.mesh import Box

MOST_RANKS = 64
MOST_PARTS = 3


def order_of(e: Evidence, group: FusedParts, named: Iterable[Order]) -> Order | None:
    """The order in which B holds the rows of a whole group: a named one, if one fits."""
    found = _found(e, group)
    if found is None:
        return None
    seen = found >= 0
    for order in (*named, *both_ways(_put_down(group), one_by_one(e))):
        if np.mean(numbers(order.rows)[seen] == found[seen]) >= NEARLY_ALL:
            return order
    part = np.searchsorted(np.cumsum(group.sizes), np.arange(len(found)), side="right")
    crossed = np.any(part[found[seen]] != part[seen])
    if not crossed or len(np.unique(found)) < len(found):
        return None
    # A row that is none of A's stands where the one that is left over would: what it holds is not explained.
    left_over = np.setdiff1d(np.arange(len(found)), found).max(initial=-1)
    runs = of_runs(np.where(seen, found, left_over))
    if len(runs.pieces) > MOST_RUNS:
        return None
    text = f"rows of {group.name} are in each other's place, in {len(runs.pieces)} runs"
    return Order(ANY_ORDER, text, runs, ("mixed", group.name))


def _found(e: Evidence, group: FusedParts) -> Ints | None:
    """For each row of the group in B the row of A that it is; None where most are none, or their own."""
    total, kept = sum(group.sizes), e.b.manifest.logical
    names = [n for part in group.parts for n in part.tensors]
    mine = e.a.manifest.logical
    alike = e.pair.a.dtype == e.pair.b.dtype
    alike &= all(n in kept and kept[n].shape == mine[n].shape for n in names)
    alike = alike and {x[n].dtype for n in names for x in (kept, mine)} == {e.pair.a.dtype}
    if not alike or not 2 <= total <= MOST_ROWS or e.pair.a.name != e.pair.b.name:
        return None
    front = group.fused.reshape(total, -1)
    box = Box((0, 0), (total, min(KEY_ELEMENTS, front.shape[1])))
    left, right = (e.read(front, box, side).reshape(box.shape) for side in (e.a, e.b))
    found = order_of_rows(left, right)
    moved = (found >= 0) & (found != np.arange(total))
    return found if moved.any() and 2 * np.count_nonzero(found >= 0) >= total else None


def _put_down(group: FusedParts) -> Iterator[Order]:
    """The parts in every order, whole or by the ranks of every mesh that cuts them evenly."""
    count, most = len(group.parts), gcd(*group.sizes)
    if count > MOST_PARTS:
        return
    parts = split(unmoved(sum(group.sizes)), group.sizes)
    plain = tuple(range(count))
    for n in range(1, min(most, MOST_RANKS) + 1):
        if most % n:
            continue
        shards = [x.reshape(n, -1) for x in parts]
        for way in permutations(plain):
            if n == 1 and way == plain:
                continue
            listed = ", ".join(group.labels[k] for k in way)
            text = f"{group.name} stored in the order {listed}"
            text += f" in each of {n} shards, as the ranks of tp={n} fuse them" if n > 1 else ""
            kind = KINDS.get(group.name, COMPONENTS)[way == plain]
            order = concat([shards[k] for k in way], 1).reshape(-1)
            yield Order(kind, text, order, (n, way))


def one_by_one(e: Evidence) -> str:
    """What is said of parts that only A holds in an order."""
    return f"{{}} in {e.left}, and one after the other in {e.right}"
