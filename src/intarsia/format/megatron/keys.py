"""Megatron's names on disk, taken apart, and the rows of a family's table that they hold.

A table has one row per layer, as `decoder.layers.3.mlp.linear_fc1.weight`.  On disk the layers
of a homogeneous model are one tensor with a layer axis, `decoder.layers.mlp.linear_fc1.weight`,
the experts of a layer are one tensor with an expert axis, and a gated projection is one tensor
of two halves.  Other checkpoints of the same model keep each layer, each expert
(`experts.experts.7.linear_fc1.weight`) and each half (`_w` the gate, `_v` the rest) apart.

We always plan in the smallest parts, each named in the second way.  A stack is then nothing
but parts whose chunks are listed under one name, so it costs no more than they do.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from math import prod

from intarsia.errors import FamilyError
from intarsia.family import Param, RowsOfDialects, Table
from intarsia.frozen import frozen
from intarsia.layout import Layout, Piece, concat, padding, renaming, stack
from intarsia.mesh import Rule, Shape

DIALECTS = {"te": "megatron", "local": "megatron-local"}
"""The table's dialect for each of Megatron's layer specifications."""

_LAYER = re.compile(r"^(?P<head>(?:.+\.)?layers)\.(?P<layer>\d{1,9})\.(?P<rest>.+)$")
_STACKED = re.compile(r"^(?P<head>(?:.+\.)?layers)\.(?P<rest>[^\d].*)$")
_EXPERT = re.compile(r"^(?P<head>.+\.experts\.experts)\.(?P<expert>\d{1,9})\.(?P<rest>.+)$")
_HALF = re.compile(r"^(?P<whole>.+\.linear_fc1\.(?:weight|bias))_(?P<half>[wv])$")
_EXPERTS = ".experts.experts."
VOCABULARY = ("word_embeddings.weight", "output_layer.weight")
_WRAPPERS = ("module.", "model.")
_LANGUAGE_MODEL = re.compile(r"(^|\.)(decoder|embedding|output_layer|mtp|optimizer)\.")


@frozen
class Key:
    """A name taken apart; `head` is set where it belongs to a layer, or to all of them."""

    rest: str
    head: str = ""
    layer: int | None = None
    expert: int | None = None
    half: int | None = None

    @staticmethod
    def parse(name: str) -> Key:
        """The parts of a name.

        >>> Key.parse("decoder.layers.3.mlp.experts.experts.7.linear_fc1.weight_v")
        Key(rest='mlp.experts.experts.linear_fc1.weight', head='decoder.layers', layer=3, expert=7, half=1)
        """
        half = expert = None
        if parts := _HALF.match(name):
            name, half = parts["whole"], "wv".index(parts["half"])
        if parts := _EXPERT.match(name):
            name, expert = f"{parts['head']}.{parts['rest']}", int(parts["expert"])
        if parts := _LAYER.match(name):
            return Key(parts["rest"], parts["head"], int(parts["layer"]), expert, half)
        if parts := _STACKED.match(name):
            return Key(parts["rest"], parts["head"], None, expert, half)
        return Key(name, "", None, expert, half)

    @property
    def kind(self) -> str:
        """The name without wrappers, layer, expert and half."""
        name = str(Key(self.rest, self.head))
        while name.startswith(_WRAPPERS):
            name = name.partition(".")[2]
        return name

    @property
    def stacked(self) -> bool:
        """Whether the first axis counts layers."""
        return bool(self.head) and self.layer is None

    @property
    def of_experts(self) -> bool:
        """Whether the next axis counts experts."""
        return _EXPERTS in f".{self.rest}" and self.expert is None

    def __str__(self) -> str:
        rest = self.rest
        if self.expert is not None:
            rest = rest.replace("experts.experts.", f"experts.experts.{self.expert}.", 1)
        if self.half is not None:
            rest += "_" + "wv"[self.half]
        layer = "" if self.layer is None else f"{self.layer}."
        return f"{self.head}.{layer}{rest}" if self.head else rest


def is_megatron_name(name: str) -> bool:
    """Whether a name is one of Megatron's language model, which a family's table must know."""
    return _LANGUAGE_MODEL.search(name) is not None


class MegatronRows:
    """The rows of a table, found by any of the names that Megatron gives them."""

    def __init__(self, table: Table) -> None:
        self.family = table.family
        self.rows = RowsOfDialects(table.dialects[dialect] for dialect in DIALECTS.values())
        self.layers: dict[str, int] = {}
        for name in self.rows:
            key = Key.parse(name)
            if key.layer is not None:
                self.layers[key.head] = max(self.layers.get(key.head, 0), key.layer + 1)
        self._experts: dict[Key, list[Param]] = {}

    def bare(self, name: str) -> str:
        """A name without the prefixes of wrappers."""
        while self.row(Key.parse(name)) is None:
            prefix = next((p for p in _WRAPPERS if name.startswith(p)), None)
            if prefix is None:
                break
            name = name.removeprefix(prefix)
        return name

    def find(self, key: Key, shape: Shape) -> Param | None:
        """What a stored tensor of this name and shape holds; None where no row has the name."""
        row = self.row(key)
        return None if row is None else self.shaped(row, str(key), shape)

    def shaped(self, row: Param, name: str, shape: Shape) -> Param:
        """A row with the shape of the tensor that is stored, its vocabulary padded where that is."""
        row = padded(row, shape)
        if row.layout.shape != shape:
            raise FamilyError(
                f"`{name}` has shape {list(shape)}, the configuration of {self.family} gives"
                f" {list(row.layout.shape)}",
                hint="the configuration is another model's, or the tensor is damaged",
                kind="shape-wrong",
                tensors=(name,),
            )
        return row

    def row(self, key: Key) -> Param | None:
        """The row of a name, before any padding."""
        if key.half is not None:
            row = self.row(replace(key, half=None))
            return row and half_of(row, key.half)
        if key.expert is not None:
            together = replace(key, expert=None)
            if together not in self._experts:
                row = self.row(together)
                self._experts[together] = experts_of_row(row) if row else []
            found = self._experts[together]
            return found[key.expert] if key.expert < len(found) else None
        if not key.stacked:
            return self.rows.get(str(key))
        found_ = [self.row(replace(key, layer=n)) for n in range(self.layers.get(key.head, 0))]
        rows = [row for row in found_ if row is not None]
        return _stacked(str(key), rows) if rows and len(rows) == len(found_) else None


def _stacked(name: str, rows: list[Param]) -> Param:
    rule = rows[0].rule
    tp = None if rule.tp is None else rule.tp + 1
    ep = None if rule.ep is None else rule.ep + 1
    return Param(name, stack([r.layout for r in rows]), Rule(tp, ep, rule.expert), rows[0].value)


def half_of(row: Param, half: int) -> Param:
    """The first or second half of a gated projection."""
    axis = 1 if row.rule.ep is not None else 0
    middle = row.layout.shape[axis] // 2
    layout = row.layout.narrow(axis, middle * half, middle * (half + 1))
    return Param(row.name, layout, row.rule, row.value)


def experts_of_row(row: Param) -> list[Param]:
    """Each expert of a row that stacks them on its first axis, in one pass over its pieces."""
    if row.rule.ep != 0:
        return []
    (count, *rest), tp = row.layout.shape, row.rule.tp
    size = prod(rest)
    held: list[list[Piece]] = [[] for _ in range(count)]
    for piece in row.layout.aligned(size):
        held[piece.at // size].append(Piece(piece.tensor, piece.at % size, piece.to, piece.loops))
        assert piece.at % size + piece.span < size, "a piece that is aligned stays in its expert"
    tp = None if tp is None else tp - 1
    found = []
    for e, pieces in enumerate(held):
        layout = Layout(tuple(rest), tuple(pieces))
        rule = Rule(tp, None, (e, count), row.rule.layer)
        found.append(Param(row.name, layout, rule, row.value))
    return found


def padded(row: Param, shape: Shape) -> Param:
    """A vocabulary row with the padding that a stored shape shows."""
    have = row.layout.shape
    if not row.name.endswith(VOCABULARY) or len(shape) != len(have) or shape[0] <= have[0]:
        return row
    return replace(row, layout=concat([row.layout, padding(shape[0] - have[0], *have[1:])]))


def torch_dist_rows(table: Table, spec: str = "te") -> list[Param]:
    """The tensors of a model as Megatron stores them, in the smallest parts."""
    found: list[Param] = []
    first: dict[tuple[str, Rule], tuple[Param, list[Param]]] = {}
    for row in rows_of_spec(table, spec):
        key = Key.parse(row.name)
        kind = key.rest, replace(row.rule, layer=None)
        like = first.get(kind) if key.of_experts else None
        names = renaming(like[0].layout, row.layout) if like else None
        if like and names:
            found += _renamed(row, *like, names)
            continue
        parts = [
            Param(str(k), part.layout, part.rule, part.value)
            for k, part in smallest_parts(row, _halves)
        ]
        first[kind] = row, parts
        found += parts
    return found


def _renamed(
    row: Param, first: Param, parts: Iterable[Param], names: Mapping[str, str]
) -> Iterator[Param]:
    """The parts of a row that differs from the first by names and layer alone, from those of the first."""
    old, new = (str(replace(Key.parse(x.name), rest="")) for x in (first, row))
    name_of, layer, before, rule = names.__getitem__, row.rule.layer, None, row.rule
    for part in parts:
        if part.rule is not before:  # the halves of a projection share theirs
            before = part.rule
            rule = Rule(before.tp, before.ep, before.expert, layer, before.grid)
        layout = part.layout.rename(name_of)
        yield Param(new + part.name[len(old) :], layout, rule, row.value)


def rows_of_spec(table: Table, spec: str) -> Iterable[Param]:
    """The rows of a family under one of Megatron's layer specifications."""
    rows = table.dialects[DIALECTS[spec]]
    if not rows:
        raise FamilyError(
            f"the family {table.family!r} has no Megatron table",
            hint="convert to hf or dcp, or add the family's Megatron rows",
        )
    return rows.values()


def smallest_parts(
    row: Param, halves_of: Callable[[Param, Key], list[Param]]
) -> Iterator[tuple[Key, Param]]:
    """The smallest parts of a row: each expert, and each half of those that `halves_of` finds gated."""
    key = Key.parse(row.name)
    experts = experts_of_row(row) if key.of_experts else []
    for expert, one in enumerate(experts) if experts else ((None, row),):
        whole = Key(key.rest, key.head, key.layer, expert)
        halves = halves_of(one, whole)
        for half, part in enumerate(halves):
            yield Key(key.rest, key.head, key.layer, expert, half), part
        if not halves:
            yield whole, one


def _halves(row: Param, key: Key) -> list[Param]:
    gated = is_fc1(key) and row.layout.shape[0] % 2 == 0
    return [half_of(row, half) for half in (0, 1)] if gated else []


def is_fc1(key: Key) -> bool:
    """Whether a key is the first projection of a feed-forward part."""
    return key.rest.endswith(("linear_fc1.weight", "linear_fc1.bias"))
