"""What one rank wants of a checkpoint: its model with memory, its optimizer by names, and its doubts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from intarsia.errors import SectionError
from intarsia.family import Param
from intarsia.live.loading.demand import Demand, Doubts, RankOfMesh
from intarsia.live.loading.kept import check_adapters, check_handed
from intarsia.live.loading.materialise import is_empty, materialise, names_on_meta
from intarsia.live.loading.optimizer import rows_of_state
from intarsia.live.loading.passing_buffers import computed_by
from intarsia.live.megatron.model import is_megatron, pipeline_models, refuse_optimizer
from intarsia.live.model.adapters import adapter_tensors
from intarsia.live.model.contents import ModelContents
from intarsia.live.optimizer.named import NamedOptimizer
from intarsia.live.optimizer.state import unused_state
from intarsia.planning.inventory import items_left_out
from intarsia.planning.manifest import Manifest
from intarsia.state.names import TORCH_STATE, StateName


@dataclass(frozen=True)
class Wanted:
    """What a load is asked for on this rank.

    `rows_with_state` are those that the optimizer `own` may find state of; `computed` are stored tensors that
    the model computes itself, and `on_meta` buffers that nothing gives memory.
    """

    demand: Demand
    doubts: Doubts
    own: NamedOptimizer | None
    rows_with_state: Mapping[str, Param]
    computed: frozenset[str]
    on_meta: tuple[str, ...]

    @staticmethod
    def of(
        into: Any,
        optimizer: Any,
        manifest: Manifest,
        place: RankOfMesh | None,
        device: Any,
        by_model: Callable[[], Manifest] | None,
    ) -> Wanted:
        """Give a model its memory and ask it what it holds.

        `by_model` reads the checkpoint by the model's names, where it was opened by its own and has others.
        """
        modules = modules_of(into)
        empty = [n for module in modules for n, x, _ in adapter_tensors(module) if is_empty(x)]
        were_on_meta = {id(module): names_on_meta(module) for module in modules}
        on_meta = tuple(name for module in modules for name in materialise(module, device))
        contents = None if is_megatron(into) else ModelContents.of(into)
        if contents is None:
            refuse_optimizer(optimizer)
        else:
            check_handed(contents, were_on_meta, manifest.path)
            optimizer = contents.optimizer_with(optimizer)
        own = None if optimizer is None else NamedOptimizer.of(into, optimizer, state=False)
        if by_model and contents:
            manifest = _as_asked(manifest, contents, own, by_model)
        demand = Demand.of(into, manifest, place, contents)
        check_adapters(demand.adapters, empty, manifest.path)
        doubts = demand.doubts
        rows: Mapping[str, Param] = {}
        computed = frozenset(n for module in modules for n in computed_by(module, doubts.unused))
        unread, state = frozenset[str](), doubts.unused_state
        if own is not None:
            rows = rows_of_state(demand.rows, demand.manifest)
            unread = frozenset(n for n in demand.manifest.logical if n.startswith(TORCH_STATE))
            unused = unused_state(own, rows, demand.manifest)
            state = demand.without_prediction_layers(unused)
        doubts = replace(doubts, unused=doubts.unused - computed | unread, unused_state=state)
        return Wanted(demand, doubts, own, rows, computed, on_meta)


def _as_asked(
    whole: Manifest,
    contents: ModelContents,
    own: NamedOptimizer | None,
    by_model: Callable[[], Manifest],
) -> Manifest:
    """All of a checkpoint where it has the tensors of a dict and the state of its optimizers by name; else its model.

    Where a dict asks for several sections, the whole tells what it lacks.
    """
    asked, stored = contents.tensors.keys(), whole.stored
    lacks = not asked <= stored.keys()
    lacks = lacks and not asked <= {*stored, *(s.on_disk for s in stored.values())}
    state = {state.parameter for n in stored if (state := StateName.of(n))} if own else set()
    if not lacks and (own is None or not state.isdisjoint(asked)):
        return whole
    try:
        model = by_model()
    except SectionError:
        return whole
    left = (x.name for x in items_left_out(model.inventory) if x.kind == "section")
    heads = tuple(f"{name}." for name in left)
    return whole if lacks and any(name.startswith(heads) for name in asked) else model


def modules_of(into: Any) -> list[Any]:
    """The modules among what is filled: a model, its pipeline stages, or the values of a mapping."""
    held = into.values() if isinstance(into, Mapping) else pipeline_models(into)
    return [part for part in held if hasattr(part, "_apply")]
