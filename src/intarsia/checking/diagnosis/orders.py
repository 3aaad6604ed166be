"""Hypotheses about places that have a name: what fusing, sharding and rotating do to rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from intarsia.checking.diagnosis.evidence import Evidence
from intarsia.checking.diagnosis.groups import Group, Kin
from intarsia.checking.diagnosis.hypothesis import Hypothesis
from intarsia.checking.diagnosis.rearrange import along, compose, inverse, rows
from intarsia.family.verbs import by_group
from intarsia.layout import Layout, chunk, concat, split

SIZES = (2, 4, 8, 16, 32, 64, 3, 6, 12, 24, 5, 10)
"""How many ranks a mesh axis may have, the likely ones first."""


@dataclass(frozen=True)
class Order:
    """An order of rows, and what it would mean."""

    kind: str
    text: str
    rows: Layout
    key: tuple[object, ...]


def order_hypotheses(e: Evidence, kin: Kin) -> Iterator[Hypothesis]:
    """Named rearrangements of a tensor, alone and together with its relatives."""
    if len(e.shape) > 1:
        yield from _transposed(e)
    for group in kin.groups(e.name):
        mine = group.within(e.name, e.shape)
        if mine is None:
            continue
        width = group.fused.size // max(sum(group.sizes), 1)
        for order in (*_group_orders(group, kin), *_both_ways(_interleaved(group))):
            fused = along(group.fused, 0, order.rows)
            if width:
                yield Hypothesis(order.kind, order.text, compose(mine, fused), order.key)
    for axis, order in _rotated(e, kin):
        yield Hypothesis(order.kind, order.text, along(e.whole, axis, order.rows), order.key)


def _transposed(e: Evidence) -> Iterator[Hypothesis]:
    swapped = e.whole.transpose(-2, -1)
    if swapped.shape == e.shape:
        yield Hypothesis("transposed", "transposed", swapped)
    else:
        text = "transposed, then read with the shape of A"
        yield Hypothesis("transposed", text, swapped.reshape(*e.shape))
        turned = e.whole.reshape(*swapped.shape).transpose(-2, -1)
        yield Hypothesis("transposed", "read with the shape of A's transpose", turned)


def _group_orders(group: Group, kin: Kin) -> Iterator[Order]:
    """The parts in each other's place, or fused group by group and split as if one by one."""
    parts = split(rows(sum(group.sizes)), group.sizes)
    if group.name == "gate and up":
        text = "gate and up swapped"
        yield Order("gate-up-swapped", text, concat(parts[::-1]), ())
    if group.name == "query, key and value" and (groups := kin.query_groups()):
        if any(n % groups for n in group.sizes):
            return
        fused = by_group(groups)(*parts)
        told = f"query, key and value of {groups} groups"
        key = ("group", groups)
        yield Order(
            "qkv-permuted", f"{told} are stored group by group and read one by one", fused, key
        )
        text = f"{told} are stored one by one and read group by group"
        yield Order("qkv-permuted", text, inverse(fused), key)


def _interleaved(group: Group) -> Iterator[Order]:
    """The shards of the parts in turn, as tensor-parallel ranks hold them."""
    parts = split(rows(sum(group.sizes)), group.sizes)
    kind = {
        "gate and up": "gate-up-interleaved",
        "query, key and value": "qkv-interleaved",
    }.get(group.name, "components-interleaved")
    for n in (*SIZES, *([group.sizes[0]] if len({*group.sizes}) == 1 else [])):
        if all(size % n == 0 and size >= n for size in group.sizes):
            shards = [chunk(part, n) for part in parts]
            order = concat([shard[t] for t in range(n) for shard in shards])
            whose = "row by row" if n == group.sizes[0] else f"by the ranks of tp={n}"
            title = group.name if group.name != "components" else ", ".join(group.labels)
            yield Order(kind, f"{title} interleaved {whose}", order, (n,))


def _both_ways(orders: Iterable[Order]) -> Iterator[Order]:
    for order in orders:
        yield order
        text = f"{order.text} in A, and one after the other in B"
        yield Order(order.kind, text, inverse(order.rows), order.key)


def _rotated(e: Evidence, kin: Kin) -> Iterator[tuple[int, Order]]:
    """Rotary pairs side by side, or half a head apart."""
    heads = kin.heads(e.name)
    widths = [heads.width] if heads else _widths(e.shape[0] if e.shape else 0)
    axis = heads.axis if heads else 0
    if len(e.shape) <= axis or not e.shape[axis]:
        return
    for width in widths:
        if width % 2 or width < 4:
            continue
        n = e.shape[axis]
        halves = rows(n).reshape(n // width, 2, width // 2).permute(0, 2, 1).reshape(n)
        told = f"in each head of {width}"
        key = ("rope",)
        yield (
            axis,
            Order(
                "rope-permuted", f"rotary halves made pairs {told} (half-split in A)", halves, key
            ),
        )
        text = f"rotary pairs made halves {told} (interleaved in A)"
        yield axis, Order("rope-permuted", text, inverse(halves), key)


def _widths(n: int) -> list[int]:
    """Widths that heads may have, where no configuration tells."""
    return [w for w in (128, 64, 256, 96, 80, 32, 16, 8) if n and n % w == 0]
