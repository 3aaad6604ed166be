"""One tensor that holds several parts, such as query, key and value, in the order of another convention."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import permutations, product
from typing import Any

import numpy as np

from intarsia.checking.diagnosis.hypothesis import NEARLY_ALL
from intarsia.checking.diagnosis.rearranged.keys import Ints
from intarsia.errors import few
from intarsia.frozen import frozen_open

_QKV = re.compile(r"(qkv|query_key_value|c_attn|attn\.in_proj_(weight|bias))(?!_?z)", re.IGNORECASE)
_TOWER = re.compile(r"vis(ion|ual)|image|audio")
RANKS = (2, 4, 8, 16, 32, 64)
MOST_WAYS = 3
"""Parts up to which every order of them is tried."""


@frozen_open
class Parts:
    """The parts of one tensor on one axis, and into how many groups of all of them they may be cut."""

    title: str
    sizes: tuple[int, ...]
    groups: int
    kinds: tuple[str, str]

    @property
    def labels(self) -> list[str]:
        return re.split(r", | and ", self.title)


@frozen_open
class Form:
    """How parts lie: in each of `cuts` the share of each part, in the order `way`."""

    cuts: int
    way: tuple[int, ...]

    def rows(self, parts: Parts) -> Ints:
        """Which row of the parts, one after the other, lies in each place."""
        every = np.split(np.arange(sum(parts.sizes)), np.cumsum(parts.sizes)[:-1])
        shares = [x.reshape(self.cuts, -1) for x in every]
        return np.concatenate([shares[k] for k in self.way], 1).reshape(-1)

    def told(self, parts: Parts) -> str:
        text = "one after the other"
        if self.cuts > 1:
            text = f"in {self.cuts} shards, as the ranks of tp={self.cuts} fuse them,"
            text = f"in {self.cuts} groups" if self.cuts == parts.groups else text
        if self.way != tuple(range(len(self.way))):
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
        return Parts("gate and up", (size // 2,) * 2, 1, ("gate-up-swapped", "gate-up-interleaved"))
    if _QKV.search(name):
        groups = groups or heads
        if not heads or size % (heads + 2 * groups):
            heads = groups = 1
        if size % (heads + 2 * groups) == 0:
            one = size // (heads + 2 * groups)
            sizes = (heads * one, groups * one, groups * one)
            return Parts("query, key and value", sizes, groups, ("qkv-permuted", "qkv-interleaved"))
    nope, value = _number(text, "qk_nope_head_dim"), _number(text, "v_head_dim")
    if ".kv_b_proj." in name and nope and size == heads * (nope + value):
        return Parts("key and value", (heads * nope, heads * value), heads, _COMPONENTS)
    if ".q_proj." in name and width and size == 2 * heads * width:
        return Parts("query and gate", (heads * width,) * 2, heads, _COMPONENTS)
    keys, values = _number(text, "linear_num_key_heads"), _number(text, "linear_num_value_heads")
    k, v = (
        _number(text, f"linear_{x}_head_dim") * n for x, n in (("key", keys), ("value", values))
    )
    if ".in_proj_qkvz." in name and keys and size == 2 * (k + v):
        return Parts("query, key, value and gate", (k, k, v, v), keys, _COMPONENTS)
    if ".in_proj_ba." in name and keys and size == 2 * values:
        return Parts("b and a", (values, values), keys, _COMPONENTS)
    return None


_COMPONENTS = ("components-interleaved", "components-interleaved")
HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads")
GROUPS = ("num_key_value_heads", "num_kv_heads", "n_head_kv")


def _number(fields: Mapping[str, Any], *names: str) -> int:
    """The first of these fields that is a positive number."""
    found = (fields.get(name) for name in names)
    return next((x for x in found if isinstance(x, int) and x > 0), 0)


def named_order(parts: Parts, found: Ints, sides: tuple[str, str], noun: str) -> FusedOrder | None:
    """The order of rows that was found, if it is that of parts in two forms; negative ones are not known."""
    seen = found >= 0
    if len(found) != sum(parts.sizes) or not seen.any():
        return None
    for before, after in _forms(parts):
        rows = np.argsort(before.rows(parts))[after.rows(parts)]
        if np.mean(rows[seen] == found[seen]) < NEARLY_ALL:
            continue
        sizes = few([f"{n:,}" for n in parts.sizes], 9)
        lie = f"{before.told(parts)} in {sides[0]} and {after.told(parts)} in {sides[1]}"
        usual = {before.cuts, after.cuts} <= {1, parts.groups} or before.cuts == after.cuts
        kind = parts.kinds[0 if usual else 1]
        return FusedOrder(kind, f"{parts.title} of {sizes} {noun} lie {lie}", rows)
    return None


def _forms(parts: Parts) -> Iterator[tuple[Form, Form]]:
    """Two forms of one tensor; one of them is usual."""
    plain = tuple(range(len(parts.sizes)))
    cuts = [n for n in dict.fromkeys((1, parts.groups, *RANKS)) if _fits(n, parts.sizes)]
    ways = [*permutations(plain)] if len(plain) <= MOST_WAYS else [plain]
    usual = [Form(n, plain) for n in cuts if n in (1, parts.groups)]
    every = [Form(n, way) for way, n in product(ways, cuts)]
    apart = [(one, other) for one in usual for other in every if one != other]
    yield from apart
    yield from ((other, one) for one, other in apart)


def _fits(n: int, sizes: Sequence[int]) -> bool:
    return all(size % n == 0 for size in sizes)
