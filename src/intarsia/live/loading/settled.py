"""What all ranks fill, settled from what each of them asks and doubts, and proven before the first byte is read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from intarsia.dtypes import is_lossless
from intarsia.errors import CoverageError, LayoutError, few
from intarsia.layout import Layout
from intarsia.live.loading.demand import Demand, Doubts
from intarsia.live.loading.filling.fill import Filling, prove
from intarsia.live.model.holding import Holding, memory_of, placed
from intarsia.planning.inventory import model_section
from intarsia.planning.manifest import Manifest
from intarsia.planning.whole_tensor import types_of
from intarsia.state.names import MASTER, kind_of, parameter_of


@dataclass(frozen=True)
class Settled:
    """What fills each holding as all ranks read it, the tensors read literally, and what no rank takes."""

    fillings: list[Filling]
    literal: frozenset[str]
    unused: list[str]

    @property
    def precise(self) -> list[Layout]:
        """The weights here whose main weights are taken in their place."""
        found = (each.layout for each in self.holdings)
        return [
            x.rename(parameter_of)
            for x in found
            if x.tensors and all(kind_of(name) == MASTER for name in x.tensors)
        ]

    @property
    def holdings(self) -> list[Holding]:
        return [each.holding for each in self.fillings]


def _without(unused: Iterable[str], src: Manifest) -> str:
    """How to load what the model has, and nothing of this."""
    stored, model = src.stored, model_section(src.inventory)
    if model and all(name in stored and stored[name].on_disk == name for name in unused):
        return f"load with section={model!r}, which leaves out what lies beside it"
    return "load with strict=False if they are not wanted; `report.kept` then names what of the model was not filled"


def settle(demand: Demand, doubts: Sequence[Doubts], window_bytes: int, *, strict: bool) -> Settled:
    """Decide what the ranks have to agree on, from what all of them reported."""
    unfit = frozenset[str]().union(*(d.unfit for d in doubts))
    if unfit:
        name = min(unfit)
        held = demand.tensors.get(name)
        here = "" if held is None else f": {placed(held)}, {list(memory_of(held).shape)} here"
        raise LayoutError(
            f"the placements of `{name}` do not give the shape of the memory that some rank has{here}",
            hint="give `shape=` and `stride=` to `DTensor.from_local`, the same on all ranks",
        )
    left = frozenset.intersection(*(d.unused for d in doubts))
    unused = sorted(left - demand.equal_twins(left, window_bytes))
    if unused and strict:
        raise CoverageError(
            f"{len(unused)} tensors of {demand.manifest.path} are not in the model:"
            f" {few(unused, 4)}",
            hint=_without(unused, demand.manifest),
        )
    stateful = sorted(frozenset.intersection(*(d.unused_state for d in doubts)))
    if stateful and strict:
        raise CoverageError(
            f"{demand.manifest.path} has optimizer state of {len(stateful)} parameters that the"
            f" optimizer does not update: {few(stateful, 4)}",
            hint="give an optimizer that updates all of them, or load with strict=False if their"
            " state is not wanted",
        )
    unused += [f"optimizer state of {name}" for name in stateful]
    literal = frozenset[str]().union(*(d.disputed for d in doubts))
    fillings = prove(demand.holdings(literal), demand.manifest)
    return Settled(fillings, literal, unused)


def cast_names(holdings: Iterable[Holding], manifest: Manifest, *, allowed: bool) -> list[str]:
    """The tensors whose floating-point type is not the checkpoint's; raise where that may not be."""
    found = []
    for each in holdings:
        for name, dtype in types_of(manifest.logical, each.layout.tensors).items():
            if name == each.dtype.name:
                continue
            floating = dtype.floating and each.dtype.floating
            if not (floating and allowed):
                raise LayoutError(
                    f"`{each.name}` is {each.dtype} in the model and {dtype} in {manifest.path}",
                    hint="load with cast=True to"
                    f" {'widen' if is_lossless(dtype, each.dtype) else 'round'} it,"
                    " or change the model's type"
                    if floating
                    else "make the model's tensor of the checkpoint's type",
                )
            found.append(each.name)
    return found
