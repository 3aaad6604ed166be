"""Which tensors a destination holds, from what the source has and what was asked for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from intarsia.dtypes import DType
from intarsia.errors import UsageError
from intarsia.family import table_for
from intarsia.layout import Layout
from intarsia.mesh import Box, Mesh, Rule
from intarsia.planning.manifest import Manifest, Target

DIALECTS = ("same", "hf", "hf-module")


@dataclass(frozen=True, slots=True)
class Wish:
    """What a destination should be."""

    to: str
    mesh: Mesh = Mesh()
    dialect: str = "same"
    dtype: DType | None = None
    optimizer: str = "keep"


@dataclass(frozen=True, slots=True)
class Wanted:
    """The tensors to write, the logical tensors to leave out with the reason, and remarks."""

    targets: tuple[Target, ...]
    drop: Mapping[str, str]
    entries: bool
    notes: tuple[str, ...]


def targets_for(src: Manifest, wish: Wish) -> Wanted:
    """The tensors of the destination that a wish asks for."""
    if wish.dialect not in DIALECTS:
        raise UsageError(f"unknown dialect {wish.dialect!r}", hint=f"one of: {', '.join(DIALECTS)}")
    if wish.optimizer not in ("keep", "drop"):
        raise UsageError(f"optimizer is {wish.optimizer!r}", hint="keep or drop")
    if wish.dtype is not None and not wish.dtype.floating:
        raise UsageError(
            f"weights cannot be cast to {wish.dtype}", hint="choose a floating-point element type"
        )
    drop = {}
    if wish.optimizer == "drop":
        drop = {n: "optimizer state, dropped as asked" for n in src.logical if is_state(n)}
    rows = list(_rows(src, wish.dialect))
    targets = tuple(
        Target(
            _spelled(name, wish.to),
            _dtype(name, layout, dtype, src, wish.dtype),
            layout,
            wish.mesh.boxes(layout.shape, rule) if wish.to != "hf" else (Box.whole(layout.shape),),
            rule,
            shift,
        )
        for name, layout, dtype, rule, shift in rows
        if name not in drop
    )
    notes = []
    if wish.to == "hf" and wish.mesh != Mesh():
        notes.append(f"hf is not sharded by mesh: {wish.mesh} has no effect")
    return Wanted(targets, drop, wish.optimizer == "keep", tuple(notes))


def is_state(name: str) -> bool:
    """Whether a logical tensor is optimizer state."""
    return name.startswith("optimizer.")


Row = tuple[str, Layout, "DType | None", Rule, float]


def _rows(src: Manifest, dialect: str) -> Iterable[Row]:
    """Names, layouts and rules of what is to be written; the family's absent tensors included."""
    if dialect == "same":
        for s in src.stored.values():
            yield s.name, s.layout, s.dtype, s.rule, s.shift
        for x in src.absent:
            yield x.name, Layout.of(x.name, x.shape), x.dtype, Rule(), 0.0
        return
    table = table_for(src.config)
    if table is None:
        raise UsageError(
            f"dialect {dialect!r} needs a known model family, {src.path} has none",
            hint="use --dialect same, or give the model's config.json with --config",
        )
    covered: set[str] = set()
    for param in table.dialects[dialect].values():
        names = param.layout.tensors
        if all(n in table.optional and n not in src.logical for n in names):
            continue
        covered.update(names)
        yield param.name, param.layout, None, param.rule, param.shift
    for s in src.stored.values():
        if not covered.issuperset(s.layout.tensors):
            yield s.name, s.layout, s.dtype, s.rule, s.shift


def _dtype(
    name: str, layout: Layout, dtype: DType | None, src: Manifest, asked: DType | None
) -> DType:
    """The element type of a destination tensor: the source's, or the one asked for."""
    if dtype is None:
        found = {src.logical[n].dtype for n in layout.tensors if n in src.logical}
        if len(found) > 1:
            raise UsageError(
                f"`{name}` would hold {', '.join(sorted(d.name for d in found))}",
                hint="choose one element type with --dtype",
            )
        dtype = found.pop() if found else src.absent[0].dtype
    if asked is not None and dtype.floating and not is_state(name) and dtype.itemsize > 1:
        return asked
    return dtype


def _spelled(name: str, to: str) -> str:
    """A tensor's name on disk: torch spells optimizer state by parameter first."""
    if to == "hf" or not is_state(name):
        return name
    kind, _, param = name.removeprefix("optimizer.").partition(".")
    if not param or kind in ("state", "param_groups"):
        return name
    return f"optimizer.state.{param}.{kind}"
