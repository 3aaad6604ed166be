"""Hypotheses about places that have a name: what fusing, sharding and rotating do to rows."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from intarsia.checking.diagnosis.evidence import Evidence
from intarsia.checking.diagnosis.hypotheses.groups import FusedParts, RelatedTensors
from intarsia.checking.diagnosis.hypothesis import Hypothesis
from intarsia.checking.diagnosis.rearranged.fused import COMPONENTS, KINDS
from intarsia.checking.diagnosis.rearranged.misplaced import split_hypotheses
from intarsia.checking.diagnosis.rearranged.mixed import (
    MOST_RANKS,
    one_by_one,
    order_of,
)
from intarsia.checking.diagnosis.rearranged.order import (
    Order,
    along,
    both_ways,
    compose,
    inverse,
    unmoved,
)
from intarsia.family.verbs import by_group
from intarsia.layout import chunk, concat, split

SIZES = (2, 4, 8, 16, 32, 64, 3, 6, 12, 24, 5, 10)
"""How many ranks a mesh axis likely has: these are tried first."""

UNEVEN = (2, 3, 4, 8)
"""Of these, the ones that may leave a short last shard."""


def order_hypotheses(e: Evidence, related: RelatedTensors) -> Iterator[Hypothesis]:
    """Named rearrangements of a tensor, alone and together with its relatives."""
    if len(e.shape) > 1:
        yield from _transposed(e)
    for group in related.groups(e.name):
        mine = group.within(e.name, e.shape)
        if mine is None or not group.fused.size:
            continue
        interleaved = both_ways(_interleaved(group), one_by_one(e))
        named = (*_group_orders(group, related), *interleaved)
        whole = related.once(group, partial(order_of, e, group, named))
        for order in (whole, *named) if whole else named:
            fused = along(group.fused, 0, order.rows)
            yield Hypothesis(order.kind, order.text, compose(mine, fused), order.key)
        yield from split_hypotheses(e, group, mine)
    for order in _rotated(e, related):
        yield Hypothesis(order.kind, order.text, along(e.whole, 0, order.rows), order.key)
    if "gate_up" in e.name:
        yield from _gate_up(e, related)


def _transposed(e: Evidence) -> Iterator[Hypothesis]:
    swapped = e.whole.transpose(-2, -1)
    if swapped.shape == e.shape:
        yield Hypothesis("transposed", "transposed", swapped)
    else:
        text = f"transposed, then read with the shape of {e.left}"
        yield Hypothesis("transposed", text, swapped.reshape(*e.shape))
        turned = e.whole.reshape(*swapped.shape).transpose(-2, -1)
        yield Hypothesis("transposed", f"read with the shape of {e.left}'s transpose", turned)


def _group_orders(group: FusedParts, related: RelatedTensors) -> Iterator[Order]:
    """The parts in each other's place, or fused group by group and split as if one by one."""
    parts = split(unmoved(sum(group.sizes)), group.sizes)
    if group.name == "gate and up":
        text = "gate and up swapped"
        yield Order("gate-up-swapped", text, concat(parts[::-1]), ())
    if group.name == "query, key and value" and (groups := related.query_groups()):
        if any(n % groups for n in group.sizes):
            return
        fused = by_group(groups)(*parts)
        stored, key = f"query, key and value of {groups} groups are stored", ("group", groups)
        text = f"{stored} group by group and read one by one"
        yield Order("qkv-permuted", text, fused, key)
        text = f"{stored} one by one and read group by group"
        yield Order("qkv-permuted", text, inverse(fused), key)


def _interleaved(group: FusedParts) -> Iterator[Order]:
    """The shards of the parts in turn, as tensor-parallel ranks hold them."""
    parts = split(unmoved(sum(group.sizes)), group.sizes)
    _, kind = KINDS.get(group.name, COMPONENTS)
    row_by_row = group.sizes[:1] if len({*group.sizes}) == 1 else ()
    for n in dict.fromkeys((*SIZES, *range(2, MOST_RANKS + 1), *row_by_row)):
        if all(size >= n and (size % n == 0 or n in UNEVEN) for size in group.sizes):
            shards = [chunk(part, n) for part in parts]
            order = concat([shard[t] for t in range(n) for shard in shards])
            ranks = f"in {n} shards, as by the ranks of tp={n}"
            whose = "row by row" if n == group.sizes[0] else ranks
            title = group.name if group.name != "components" else ", ".join(group.labels)
            yield Order(kind, f"{title} interleaved {whose}", order, (n,))


def _rotated(e: Evidence, related: RelatedTensors) -> Iterator[Order]:
    """Rotary pairs side by side, or half a head apart."""
    for part in related.rotary(e.name):
        half, rest = divmod(part.size, 2)
        if rest or half < 2 or part.first + part.size > part.width:
            continue
        heads = unmoved(part.heads * part.width).reshape(part.heads, part.width)
        turned = heads.narrow(1, part.first, part.first + part.size)
        pairs = turned.reshape(part.heads, 2, half).permute(0, 2, 1).reshape(turned.shape[0], -1)
        before = heads.narrow(1, 0, part.first)
        after = heads.narrow(1, part.first + part.size, part.width)
        order = concat([before, pairs, after], 1).reshape(-1)
        size, key = f"{part.size} rows of each head of {part.width}", ("rope", part.size)
        text = f"rotary halves of {e.left} are pairs in {e.right}, {size}"
        yield Order("rope-permuted", text, order, key)
        text = f"rotary pairs of {e.left} are halves in {e.right}, {size}"
        yield Order("rope-permuted", text, inverse(order), key)


def _gate_up(e: Evidence, related: RelatedTensors) -> Iterator[Hypothesis]:
    """A tensor that holds gate and up together, half by half or in turn."""
    a, b = e.left, e.right
    for axis, n in enumerate(e.shape):
        if n % 2 or n < 4 or (axis == 0 and len(e.shape) > 2) or related.is_taken(e.shape, axis):
            continue
        halves, turns = unmoved(n).reshape(2, n // 2), unmoved(n).reshape(n // 2, 2)
        swapped = concat([halves.narrow(0, 1, 2), halves.narrow(0, 0, 1)]).reshape(n)
        crossed = concat([turns.narrow(1, 1, 2), turns.narrow(1, 0, 1)], 1).reshape(n)
        in_turn = halves.permute(1, 0).reshape(n)
        for kind, text, order in (
            ("gate-up-swapped", "gate and up swapped, as halves", swapped),
            ("gate-up-swapped", "gate and up swapped, interleaved", crossed),
            ("gate-up-interleaved", f"gate and up are halves in {a} and interleaved in {b}", in_turn),
            ("gate-up-interleaved", f"gate and up are interleaved in {a} and halves in {b}", inverse(in_turn)),
        ):  # fmt: skip
            yield Hypothesis(kind, text, along(e.whole, axis, order), (text,))
