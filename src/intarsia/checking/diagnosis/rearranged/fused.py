"""One tensor that holds several parts, such as query, key and value, in the order of another convention."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import permutations, product
from math import gcd
from typing import Any

import numpy as np

from intarsia.checking.diagnosis.hypothesis import NEARLY_ALL
from intarsia.checking.diagnosis.rearranged.keys import Ints
from intarsia.errors import few
from intarsia.frozen import frozen_open

_QKV = re.compile(r"(qkv|query_key_value|c_attn|attn\.in_proj_(weight|bias))(?!_?z)", re.IGNORECASE)
_TOWER = re.compile(r"vis(ion|ual)|image|audio")
MOST_RANKS = 64
MOST_WAYS = 3
"""Parts up to which every order of them is tried."""

KINDS = {
    "gate and up": ("gate-up-swapped", "gate-up-interleaved"),
    "query, key and value": ("qkv-permuted", "qkv-interleaved"),
}
"""What parts in another order are called, and what shards of them in turn."""

COMPONENTS = ("components-interleaved", "components-interleaved")


@frozen_open
class Parts:
    """The parts of one tensor on one axis, and into how many groups of all of them they may be cut."""

    labels: tuple[str, ...]
    sizes: tuple[int, ...]
    groups: int

    @property
    def title(self) -> str:
        return f"{', '.join(self.labels[:-1])} and {self.labels[-1]}"


@frozen_open
class Form:
    """How parts lie: in each of `cuts` the share of each part, in the order `way`."""

    cuts: int
    way: tuple[int, ...]

    @property
    def is_in_order(self) -> bool:
        return self.way == tuple(range(len(self.way)))

    def is_usual(self, parts: Parts) -> bool:
        """Whether models store parts so: one after the other, or group by group."""
        return self.is_in_order and self.cuts in (1, parts.groups)

    def rows(self, parts: Parts) -> Ints:
        """Which row of the parts, one after the other, lies in each place."""
        every = np.split(np.arange(sum(parts.sizes)), np.cumsum(parts.sizes)[:-1])
        shares = [x.reshape(self.cuts, -1) for x in every]
        return np.concatenate([shares[k] for k in self.way], 1).reshape(-1)

    def told(self, parts: Parts) -> str:
        text = "one after the other"
        if self.cuts > 1:
            text = f"in {self.cuts} shards, as the ranks of tp={self.cuts} fuse them,"
            text = "row by row" if {self.cuts} == {*parts.sizes} else text
            text = f"in {self.cuts} groups" if self.cuts == parts.groups else text
        if not self.is_in_order:
            text = f"{text.rstrip(',')} in the order {', '.join(parts.labels[k] for k in self.way)}"
        return text


@frozen_open
class FusedOrder:
    """An order of the rows of parts that has a name."""

    kind: str
    text: str
    rows: Ints


def parts_of(
    name: str, text: Mapping[str, Any], config: Mapping[str, Any], size: int
) -> Parts | None:
    """The parts that the name of a tensor, its size and the configuration say that it holds."""
    heads, groups, width = _number(text, *HEADS), _number(text, *GROUPS), _number(text, "head_dim")
    if _TOWER.search(name):
        vision = config.get("vision_config")
        heads = _number(vision, *HEADS, "num_heads") if isinstance(vision, Mapping) else 0
        groups = 0
    if "gate_up" in name and size % 2 == 0:
        return Parts(("gate", "up"), (size // 2,) * 2, 1)
    if _QKV.search(name):
        groups = groups or heads
        if not heads or size % (heads + 2 * groups):
            heads = groups = 1
        if size % (heads + 2 * groups) == 0:
            one = size // (heads + 2 * groups)
            sizes = (heads * one, groups * one, groups * one)
            return Parts(("query", "key", "value"), sizes, groups)
    nope, value = _number(text, "qk_nope_head_dim"), _number(text, "v_head_dim")
    if ".kv_b_proj." in name and nope and size == heads * (nope + value):
        return Parts(("key", "value"), (heads * nope, heads * value), heads)
    if ".q_proj." in name and width and size == 2 * heads * width:
        return Parts(("query", "gate"), (heads * width,) * 2, heads)
    keys, values = _number(text, "linear_num_key_heads"), _number(text, "linear_num_value_heads")
    k, v = (
        _number(text, f"linear_{x}_head_dim") * n for x, n in (("key", keys), ("value", values))
    )
    if ".in_proj_qkvz." in name and keys and size == 2 * (k + v):
        return Parts(("query", "key", "value", "gate"), (k, k, v, v), keys)
    if ".in_proj_ba." in name and keys and size == 2 * values:
        return Parts(("b", "a"), (values, values), keys)
    return None


HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads")
GROUPS = ("num_key_value_heads", "num_kv_heads", "n_head_kv")


def _number(fields: Mapping[str, Any], *names: str) -> int:
    """The first of these fields that is a positive number."""
    found = (fields.get(name) for name in names)
    return next((x for x in found if isinstance(x, int) and x > 0), 0)


def named_order(parts: Parts, found: Ints, sides: tuple[str, str], noun: str) -> FusedOrder | None:
    """The order of rows that was found, if it is that of parts in two forms; negative ones are not known."""
    if len(found) != sum(parts.sizes) or not (found >= 0).any():
        return None
    forms = _forms(parts)
    usual = [form for form in forms if form.is_usual(parts)]
    fits = _fitting(parts, usual, forms, found) + _fitting(parts, forms, usual, found)
    if not fits:
        whole = [form for form in forms if form.is_in_order]
        fits = _fitting(parts, whole, whole, found)
    if not fits:
        return None
    before, after = fits[0]
    one, other = (form.told(parts) for form in fits[0])
    if (after, before) in fits:
        lie = f"{one} on one side and {other} on the other"
    else:
        left, right = sides
        each = ((x.told(parts), y.told(parts)) for x, y in dict.fromkeys(fits))
        lie = ", or ".join(f"{x} in {left} and {y} in {right}" for x, y in each)
    sizes = few([f"{n:,}" for n in parts.sizes], 9)
    plain = {before.cuts, after.cuts} <= {1, parts.groups} or before.cuts == after.cuts
    kind = KINDS.get(parts.title, COMPONENTS)[0 if plain else 1]
    rows = np.argsort(before.rows(parts))[after.rows(parts)]
    return FusedOrder(kind, f"{parts.title} of {sizes} {noun} lie {lie}", rows)


def _forms(parts: Parts) -> list[Form]:
    """Every form of one tensor, those that are usual first."""
    plain = tuple(range(len(parts.sizes)))
    most = gcd(*parts.sizes)
    ranks = [n for n in range(2, min(most, MOST_RANKS) + 1) if most % n == 0]
    row_by_row = [most] if {*parts.sizes} == {most} else []
    cuts = dict.fromkeys((1, parts.groups, *ranks, *row_by_row))
    ways = [*permutations(plain)] if len(plain) <= MOST_WAYS else [plain]
    return [Form(n, way) for way, n in product(ways, cuts)]


def _fitting(
    parts: Parts, left: Sequence[Form], right: Sequence[Form], found: Ints
) -> list[tuple[Form, Form]]:
    """The forms of A and of B between which rows lie as they were found."""
    seen = np.flatnonzero(found >= 0)
    right_rows = [(form, form.rows(parts)[seen]) for form in right]
    fits = []
    for before in left:
        held = before.rows(parts)[found[seen]]
        fits += [
            (before, after)
            for after, rows in right_rows
            if before != after and np.mean(held == rows) >= NEARLY_ALL
        ]
    return fits
