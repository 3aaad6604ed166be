"""Tensors that frameworks store as one: gate and up, query, key and value, the parts of a GDN."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from itertools import chain

from intarsia.checking.diagnosis.rearranged.fused import Parts, parts_of
from intarsia.checking.diagnosis.rearranged.order import Order
from intarsia.family import Table
from intarsia.family.config.fields import Config, text_config
from intarsia.frozen import frozen_open
from intarsia.layout import Layout, concat
from intarsia.planning.manifest import Logical
from intarsia.state.names import like, parameter_of
from intarsia.value.cast import may_cast

WIDTHS = (128, 64, 256, 96, 80, 32, 16, 8)
"""Widths that heads may have, where no configuration gives one."""

ROLES = (
    ("gate and up", ("gate_proj", "up_proj")),
    ("gate and up", ("w1", "w3")),
    ("query, key and value", ("q_proj", "k_proj", "v_proj")),
)

_QUERY_OR_KEY = re.compile(
    r"(?:^|[._])(?:w?q|w?k|w?kv|w?qk|w?qkv|query|key)(?=[._]|$)", re.IGNORECASE
)
"""What the name has of a projection that rotary embedding turns, where no table knows it."""


@frozen_open
class FusedParts:
    """Parts that are stored one after the other, each a layout over logical tensors."""

    name: str
    labels: tuple[str, ...]
    parts: tuple[Layout, ...]

    @cached_property
    def fused(self) -> Layout:
        return concat(self.parts)

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(x.shape[0] for x in self.parts)

    def within(self, tensor: str, shape: tuple[int, ...]) -> Layout | None:
        """`tensor` as a layout over the places of the fused one, if all of it lies there."""
        pieces = tuple(p.flip() for p in self.fused.pieces if p.tensor == tensor)
        found = Layout(shape, pieces)
        return found if found.mapped == found.size else None


@frozen_open
class Heads:
    """How many heads of which width the rows (`axis` 0) or columns of a tensor fall into."""

    axis: int
    count: int
    width: int


@frozen_open
class Rotary:
    """The rows `[first, first + size)` of each head that rotary embedding turns."""

    heads: int
    width: int
    first: int
    size: int


class RelatedTensors:
    """The tensors that belong to one tensor, by the names of the checkpoint and the table of its family."""

    def __init__(
        self, logical: Mapping[str, Logical], table: Table | None, config: Config | None = None
    ) -> None:
        self.logical = logical
        self.table = table
        self.config: Config = (table.config if table else config) or {}
        self.text = text_config(self.config)
        self._orders: dict[tuple[str, ...], Order | None] = {}

    def once(self, group: FusedParts, find: Callable[[], Order | None]) -> Order | None:
        """What is found out about a group, kept for the other tensors of it."""
        names = group.fused.tensors
        if names not in self._orders:
            self._orders[names] = find()
        return self._orders[names]

    def groups(self, name: str) -> Iterator[FusedParts]:
        """The groups that a tensor is part of, and whose elements can be read in its type."""
        mine = self.logical[name].dtype
        for group in chain(self._of_roles(name), self._components(name)):
            if not all(part.shape for part in group.parts):
                continue  # counters and scales of the parts, which nothing fuses
            if all(may_cast(self.logical[n].dtype, mine) for n in group.fused.tensors):
                yield group

    def _of_roles(self, name: str) -> Iterator[FusedParts]:
        for title, roles in ROLES:
            for role in roles:
                at, _, kind = name.rpartition(f".{role}.")
                names = [f"{at}.{r}.{kind}" for r in roles]
                if kind and all(n in self.logical for n in names):
                    parts = tuple(Layout.of(n, self.logical[n].shape) for n in names)
                    if len({x.shape[1:] for x in parts}) == 1:
                        yield FusedParts(title, roles, parts)

    def heads(self, name: str) -> Heads | None:
        """The heads of an attention projection."""
        found = re.search(r"\.(q|k|v|o)_proj\.", name)
        if found is None:
            return None
        role, shape = found[1], self.logical[name].shape
        mine = self.query_groups() if role in "kv" else self.text.get("num_attention_heads")
        axis = 1 if role == "o" else 0
        if not isinstance(mine, int) or mine < 1 or axis >= len(shape) or shape[axis] % mine:
            return None
        return Heads(axis, mine, shape[axis] // mine)

    def rotary(self, name: str) -> Iterator[Rotary]:
        """The parts of a tensor's rows that may be rotary pairs or halves."""
        text = self.text
        shape = self.logical[name].shape
        turned, heads = text.get("qk_rope_head_dim"), text.get("num_attention_heads")
        if turned and heads and shape:  # latent attention turns the end of each head
            of = 1 if "kv_a_proj" in name else heads
            if re.search(r"q_b_proj|q_proj|kv_a_proj", name) and shape[0] % of == 0:
                width = shape[0] // of
                if turned <= width:  # the scales of a quantised weight have fewer rows
                    yield Rotary(of, width, width - turned, turned)
            return
        if re.search(r"\.(q|k)_norm\.", name):  # one head's, or all heads', as the family has it
            width = text.get("head_dim") or self._width()
            if width and shape and shape[0] % width == 0:
                part = int(width * (text.get("partial_rotary_factor") or 1))
                for size in dict.fromkeys((part, width)):
                    yield Rotary(shape[0] // width, width, 0, size)
            return
        found = self.heads(name)
        if found is not None and found.axis == 0:
            width = text.get("head_dim") or found.width
            part = int(width * (text.get("partial_rotary_factor") or 1))
            for size in dict.fromkeys((part, width, found.width)):
                yield Rotary(found.count, found.width, 0, size)
        elif found is None and self.table is None and shape and _QUERY_OR_KEY.search(name):
            for width in WIDTHS:
                if shape[0] % width == 0:
                    yield Rotary(shape[0] // width, width, 0, width)

    def _width(self) -> int:
        """The width of a head, where the configuration leaves it to be derived."""
        hidden, heads = (self.text.get(x) for x in ("hidden_size", "num_attention_heads"))
        if not isinstance(hidden, int) or not isinstance(heads, int) or heads < 1:
            return 0
        return hidden // heads

    def parts(self, name: str, axis: int) -> Parts | None:
        """The parts that one tensor holds on an axis, by its name."""
        shape = self.logical[name].shape
        stacked = axis == 0 and len(shape) > 2
        taken = stacked or self.is_taken(shape, axis)
        return None if taken else parts_of(name, self.text, self.config, shape[axis])

    def is_taken(self, shape: tuple[int, ...], axis: int) -> bool:
        """Whether an axis of a projection is that of what it takes: it alone has the model's width."""
        width = self.text.get("hidden_size")
        return len(shape) > 1 and shape[axis] == width and shape[-2:].count(width) == 1

    def query_groups(self) -> int | None:
        """How many groups of query heads share a key."""
        found = self.text.get("num_key_value_heads") or self.text.get("num_attention_heads")
        return found if isinstance(found, int) and found > 0 else None

    @cached_property
    def _rows_of(self) -> dict[str, list[str]]:
        """Megatron's names of the components that lie in each logical tensor."""
        found: dict[str, list[str]] = {}
        if self.table is not None:
            rows = self.table.dialects["megatron"]
            for row in rows:
                operands = rows.operands(row)
                if len(operands) == 1 and operands[0].count("linear_attn."):
                    found.setdefault(operands[0], []).append(row)
        return found

    def _components(self, name: str) -> Iterator[FusedParts]:
        mine = self._rows_of.get(parameter_of(name), [])
        base = mine[0].rpartition(".")[0] if mine else ""
        if self.table is None or not base.endswith("weight"):
            return
        rows = self.table.dialects["megatron"]
        names = [n for found in self._rows_of.values() for n in found if n.startswith(f"{base}.")]
        parts = tuple(rows[n].layout.rename(like(name)) for n in names)
        if len(parts) > 1 and all(n in self.logical for x in parts for n in x.tensors):
            yield FusedParts("components", tuple(n.rpartition(".")[2] for n in names), parts)
