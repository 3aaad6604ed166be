"""Megatron's names on disk, and the rows of a family's table that they hold.

A table has one row per layer, as `decoder.layers.3.mlp.linear_fc1.weight`.  On disk the layers
of a homogeneous model are one tensor with a layer axis, `decoder.layers.mlp.linear_fc1.weight`;
the experts of a layer are one tensor with an expert axis, or one each; a gated projection is
one tensor, or a half each (`_w` the gate, `_v` the rest); and the vocabulary may be padded.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from intarsia.errors import FamilyError
from intarsia.family import Param, Table
from intarsia.layout import Layout, concat, padding, stack
from intarsia.mesh import Mesh, Rule, Shape

DIALECTS = {"te": "megatron", "local": "megatron-local"}
"""The table's dialect for each of Megatron's layer specifications."""

_LAYER = re.compile(r"^(?P<head>(?:.+\.)?layers)\.(?P<layer>\d+)\.(?P<rest>.+)$")
_STACKED = re.compile(r"^(?P<head>(?:.+\.)?layers)\.(?P<rest>[^\d].*)$")
_EXPERT = re.compile(r"^(?P<head>.+\.experts\.experts)\.(?P<expert>\d+)\.(?P<rest>.+)$")
_HALF = re.compile(r"^(?P<whole>.+\.linear_fc1\.(?:weight|bias))_(?P<half>[wv])$")
_VOCABULARY = ("word_embeddings.weight", "output_layer.weight")


class Rows:
    """The rows of a table, found by any of the names that Megatron gives them."""

    def __init__(self, table: Table) -> None:
        self.family = table.family
        self.rows: dict[str, Param] = {}
        for dialect in reversed(DIALECTS.values()):
            self.rows |= table.dialects.get(dialect, {})
        self._layers: dict[str, int] = {}
        for name in self.rows:
            if parts := _LAYER.match(name):
                seen = self._layers.get(parts["head"], 0)
                self._layers[parts["head"]] = max(seen, int(parts["layer"]) + 1)

    def find(self, key: str, shape: Shape) -> Param | None:
        """What a stored tensor holds; None where the table has no such row."""
        row = self._row(key)
        if row is None:
            return None
        row = _padded(row, shape)
        if row.layout.shape != shape:
            raise FamilyError(
                f"`{key}` has shape {list(shape)}, the configuration of {self.family} gives"
                f" {list(row.layout.shape)}",
                hint="the configuration is another model's, or the tensor is damaged",
            )
        return replace(row, name=key)

    def knows(self, key: str) -> bool:
        """Whether a name is that of a row, in any spelling."""
        return self._row(key) is not None

    def _row(self, key: str) -> Param | None:
        if key in self.rows:
            return self.rows[key]
        if parts := _HALF.match(key):
            row = self._row(parts["whole"])
            return row and _half(row, parts["half"] == "v")
        if parts := _EXPERT.match(key):
            row = self._row(f"{parts['head']}.{parts['rest']}")
            return row and _expert(row, int(parts["expert"]))
        if parts := _STACKED.match(key):
            head, rest = parts["head"], parts["rest"]
            found = [self._row(f"{head}.{n}.{rest}") for n in range(self._layers.get(head, 0))]
            rows = [row for row in found if row is not None]
            return stacked(key, rows) if rows and len(rows) == len(found) else None
        return None


def stacked(name: str, rows: Iterable[Param]) -> Param:
    """The rows of all layers as one tensor with a layer axis in front."""
    listed = list(rows)
    rule = listed[0].rule
    shifted = Rule(
        tp=None if rule.tp is None else rule.tp + 1,
        ep=None if rule.ep is None else rule.ep + 1,
        expert=rule.expert,
    )
    return Param(name, stack([row.layout for row in listed]), shifted, listed[0].shift)


def _half(row: Param, second: bool) -> Param | None:
    axis = 1 if row.rule.ep is not None else 0
    size = row.layout.shape[axis]
    if size % 2 or axis >= len(row.layout.shape):
        return None
    lo = size // 2 if second else 0
    return replace(row, layout=row.layout.narrow(axis, lo, lo + size // 2))


def _expert(row: Param, index: int) -> Param | None:
    axis = row.rule.ep
    if axis is None or index >= row.layout.shape[axis]:
        return None
    shape, tp = row.layout.shape, row.rule.tp
    layout = row.layout.narrow(axis, index, index + 1).reshape(*shape[:axis], *shape[axis + 1 :])
    tp = tp - 1 if tp is not None and tp > axis else tp
    return Param(row.name, layout, Rule(tp, None, (index, shape[axis]), row.rule.layer), row.shift)


def _padded(row: Param, shape: Shape) -> Param:
    """A vocabulary row with the padding that the stored shape shows."""
    have = row.layout.shape
    if not row.name.endswith(_VOCABULARY) or len(shape) != len(have) or shape[0] <= have[0]:
        return row
    extra = padding(shape[0] - have[0], *have[1:])
    return replace(row, layout=concat([row.layout, extra]))


def torch_dist_rows(
    table: Table, mesh: Mesh, *, spec: str = "te", pad_to: int | None = None
) -> list[Param]:
    """The tensors of a model as Megatron stores them: layers stacked where they are alike.

    `pad_to` pads the vocabulary to a multiple of `pad_to * tp`, as Megatron-LM does in training
    (128 there); None leaves it as it is, as Megatron-Bridge does.
    """
    rows = table.dialects.get(DIALECTS[spec], {})
    if not rows:
        raise FamilyError(
            f"the family {table.family!r} has no Megatron table",
            hint="convert to hf or dcp, or add the family's Megatron rows",
        )
    listed = [_stretched(row, mesh, pad_to) for row in rows.values()]
    return list(_stack_alike(listed))


def _stretched(row: Param, mesh: Mesh, pad_to: int | None) -> Param:
    if pad_to is None or not row.name.endswith(_VOCABULARY):
        return row
    step = pad_to * mesh.tp
    rows = -(-row.layout.shape[0] // step) * step
    return _padded(row, (rows, *row.layout.shape[1:]))


def _stack_alike(rows: list[Param]) -> Iterable[Param]:
    """Rows with those of homogeneous layers put together, each at the place of its first."""
    layers: dict[str, dict[int, dict[str, Param]]] = {}
    for row in rows:
        if parts := _LAYER.match(row.name):
            of_layer = layers.setdefault(parts["head"], {}).setdefault(int(parts["layer"]), {})
            of_layer[parts["rest"]] = row
    alike = {head for head, found in layers.items() if _homogeneous(head, found)}
    for row in rows:
        parts = _LAYER.match(row.name)
        if parts is None or parts["head"] not in alike:
            yield row
        elif int(parts["layer"]) == 0:
            found = layers[parts["head"]]
            of_all = [found[n][parts["rest"]] for n in range(len(found))]
            yield stacked(f"{parts['head']}.{parts['rest']}", of_all)


def _homogeneous(head: str, layers: Mapping[int, Mapping[str, Param]]) -> bool:
    """Whether Megatron stacks these layers; those that predict further tokens stay apart."""
    if head.startswith("mtp") or sorted(layers) != [*range(len(layers))]:
        return False
    forms = [
        {rest: (row.layout.shape, row.shift) for rest, row in of_layer.items()}
        for of_layer in layers.values()
    ]
    return all(form == forms[0] for form in forms)


def renamed(layout: Layout, prefix: str) -> Layout:
    """The same layout over tensors whose names begin with `prefix`."""
    pieces = tuple(replace(piece, tensor=prefix + piece.tensor) for piece in layout.pieces)
    return Layout(layout.shape, pieces)
