"""What one rank wants of a checkpoint: its model with memory, its optimizers by names, and its doubts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from intarsia.errors import SectionError
from intarsia.live.loading.demand import Demand, Doubts, RankOfMesh
from intarsia.live.loading.kept import check_adapters, check_handed
from intarsia.live.loading.materialise import is_empty, materialise, names_on_meta
from intarsia.live.loading.passing_buffers import computed_by
from intarsia.live.loading.shared_memory import set_expanded_buffers_apart
from intarsia.live.loading.wanted_state import WantedState, states_by_section
from intarsia.live.megatron.model import is_megatron, pipeline_models, refuse_optimizer
from intarsia.live.model.adapters import adapter_tensors
from intarsia.live.model.contents import ModelContents
from intarsia.live.optimizer.named import NamedOptimizer
from intarsia.planning.inventory import items_left_out
from intarsia.planning.manifest import Manifest
from intarsia.state.names import TORCH_STATE, StateName


@dataclass(frozen=True)
class Wanted:
    """What a load is asked for on this rank.

    `computed` are stored tensors that the model computes itself, and `on_meta` buffers that nothing gives memory.
    """

    demand: Demand
    doubts: Doubts
    states: tuple[WantedState, ...]
    computed: frozenset[str]
    on_meta: tuple[str, ...]

    @staticmethod
    def of(
        into: Any,
        optimizer: Any,
        manifest: Manifest,
        place: RankOfMesh | None,
        device: Any,
        read: Callable[..., Manifest] | None,
    ) -> Wanted:
        """Give a model its memory and ask it what it holds.

        `read` reads the checkpoint by the names of a model, where it was opened by its own and has others.
        """
        modules = modules_of(into)
        empty = [n for module in modules for n, x, _ in adapter_tensors(module) if is_empty(x)]
        were_on_meta = {id(module): names_on_meta(module) for module in modules}
        on_meta = tuple(name for module in modules for name in materialise(module, device))
        for module in modules:
            set_expanded_buffers_apart(module)
        contents = None if is_megatron(into) else ModelContents.of(into)
        if contents is None:
            refuse_optimizer(optimizer)
        else:
            check_handed(contents, were_on_meta, manifest.path)
        given = contents.optimizer_with(optimizer) if contents else None
        own = None if given is None else NamedOptimizer.of(into, given, state=False)
        apart = False
        if read and contents:
            manifest, apart = _as_asked(manifest, contents, own, partial(read, into))
        demand = Demand.of(into, manifest, place, contents)
        check_adapters(demand.adapters, empty, manifest.path)
        doubts = demand.doubts
        computed = frozenset(n for module in modules for n in computed_by(module, doubts.unused))
        unread, states = frozenset[str](), tuple[WantedState, ...]()
        if own is not None:
            states = (WantedState.of(own, demand),)
            if apart and read:
                states = states_by_section(into, optimizer, demand, read) or states
            unread = frozenset(n for n in demand.manifest.logical if n.startswith(TORCH_STATE))
        doubts = replace(
            doubts,
            unused=doubts.unused - computed | unread,
            unused_state=frozenset(n for state in states for n in state.unused(demand)),
        )
        return Wanted(demand, doubts, states, computed, on_meta)


def _as_asked(
    whole: Manifest,
    contents: ModelContents,
    own: NamedOptimizer | None,
    by_model: Callable[[], Manifest],
) -> tuple[Manifest, bool]:
    """All of a checkpoint where a dict asks for several sections of it, or has all that it asks for; else its model.

    Also whether the state of its optimizers has other names there, as torch gives each those of its own model.
    """
    asked, stored = contents.tensors.keys(), whole.stored
    lacks = not asked <= stored.keys()
    lacks = lacks and not asked <= {*stored, *(s.on_disk for s in stored.values())}
    state = {state.parameter for n in stored if (state := StateName.of(n))} if own else set()
    apart = own is not None and state.isdisjoint(asked)
    if not lacks and not apart:
        return whole, False
    try:
        model = by_model()
    except SectionError:
        return whole, apart
    left = (x.name for x in items_left_out(model.inventory) if x.kind == "section")
    heads = tuple(f"{name}." for name in left)
    several = any(name.startswith(heads) for name in asked)
    return (whole, apart) if several else (model, False)


def modules_of(into: Any) -> list[Any]:
    """The modules among what is filled: a model, its pipeline stages, or the values of a mapping."""
    held = into.values() if isinstance(into, Mapping) else pipeline_models(into)
    return [part for part in held if hasattr(part, "_apply")]
