"""The copy of a model that a save in the background writes, and what the next such save need not do again.

The memory of the copy stays for the next save, and so does all that was found out about the model, for as
long as it is seen to be unchanged.  Both are of the model that was saved last, and go with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any
from weakref import ReferenceType, ref

from intarsia.live.entries import pack, packed
from intarsia.live.model.module_state import is_module
from intarsia.live.model.names import config_of_model
from intarsia.live.optimizer.classes import UnwrappedOptimizer, opened
from intarsia.live.optimizer.groups import settings_in
from intarsia.live.report import Counts
from intarsia.live.saving.packs import Pack, packs_of
from intarsia.live.saving.snapshot import Snapshot, snapshot
from intarsia.live.saving.unchanged import LivingObjects, Look
from intarsia.run.large_pages import ask_for_large_pages

if TYPE_CHECKING:
    import torch

Memory = Mapping[str, "torch.Tensor"]
_DEVICE = attrgetter("device")


@dataclass(frozen=True)
class KnownSnapshot:
    """A snapshot in its copy's memory, the marks of what it was of, and the place of each tensor in a look."""

    what: Snapshot
    marks: list[Any]
    watch: LivingObjects
    places: list[int]

    @staticmethod
    def of(what: Snapshot, look: Look) -> KnownSnapshot | None:
        """None where one has tensors that the other does not: some state is kept as values, which would not be new."""
        at = {id(x): place for place, x in enumerate(look.tensors)}
        if not what.identities or at.keys() != {*what.identities}:
            return None
        places = [at[number] for number in what.identities]
        return KnownSnapshot(what, look.marks, LivingObjects(look.owners), places)

    def holds(self, look: Look) -> bool:
        """Whether what is seen is what the snapshot was of."""
        return self.watch.all_alive and self.marks == look.marks


@dataclass
class Kept:
    """The memory of the last copy, by the names of its tensors, the packs that some of it is in, and what is known of
    the model."""

    memory: Memory = field(default_factory=dict)
    packs: list[Pack] = field(default_factory=list)
    model: ReferenceType[Any] | None = None
    known: KnownSnapshot | None = None


_kept = Kept()
"""Used by one save at a time."""


def copy_of(
    model: Any,
    optimizer: Any = None,
    extra: Mapping[str, Any] | None = None,
    config: Mapping[str, Any] | None = None,
) -> Snapshot:
    """A snapshot in memory of its own, which the model's next step does not change."""
    own = opened(optimizer) if optimizer is not None and is_module(model) else None
    look = Look.at(model, own)
    known = _kept.known
    if look is not None and known is not None and known.holds(look):
        now = (look.memory[k] for k in known.places)
        _copy(known.what.memory, dict(zip(known.what.memory, now, strict=True)))
        return _with_new_values(known.what, model, own, extra, config)
    what = snapshot(model, optimizer, extra, config)
    what = replace(what, memory=_copied(what.memory))
    _keep(what, model, look)
    return what


def release_copy() -> None:
    """Forget the last copy; its memory is free as soon as no save uses it."""
    global _kept
    _kept = Kept()


def _keep(what: Snapshot, model: Any, look: Look | None) -> None:
    _kept.known = KnownSnapshot.of(what, look) if look is not None else None
    _kept.model = ref(model, _forget) if is_module(model) else None


def _forget(model: ReferenceType[Any]) -> None:
    if _kept.model is model:
        release_copy()


def _copied(memory: Memory) -> Memory:
    """The same numbers in the memory of the last copy, as far as that fits; the rest of it is given back."""
    import torch

    _kept.known = None
    held, _kept.memory = _kept.memory, {}
    before = {name for pack in _kept.packs for name in pack.names}
    _kept.packs = packs_of(memory, _kept.packs)
    packed = {name: part for pack in _kept.packs for name, part in pack.parts(memory)}
    alone = {name: x for name, x in memory.items() if name not in packed}
    held = {
        name: held[name]
        for name, x in alone.items()
        if name in held and name not in before and _fits(held[name], x)
    }
    made = {
        name: torch.empty(x.shape, dtype=x.dtype, device="cpu", pin_memory=x.is_cuda)
        for name, x in alone.items()
        if name not in held
    }
    ask_for_large_pages(made.values())
    every = {**packed, **held, **made}
    copies = {name: every[name] for name in memory}
    _copy(copies, memory)
    _kept.memory = copies
    return copies


def _fits(held: torch.Tensor, x: torch.Tensor) -> bool:
    return held.shape == x.shape and held.dtype == x.dtype


def _copy(to: Memory, at: Memory) -> None:
    """Copy each tensor, and wait once for all of them: to wait for each is what makes many small ones slow."""
    import torch

    left = dict(at)
    with torch.no_grad():
        for pack in _kept.packs:
            if pack.take([at[name] for name in pack.names]):
                left = {name: x for name, x in left.items() if name not in pack.members}
        gpus = {x for x in map(_DEVICE, at.values()) if x.type == "cuda"}
        if left:
            rest = [to[name] for name in left]
            torch._foreach_copy_(rest, [*left.values()], non_blocking=bool(gpus))
    for gpu in gpus:
        torch.cuda.current_stream(gpu).synchronize()


def _with_new_values(
    what: Snapshot,
    model: Any,
    own: UnwrappedOptimizer | None,
    extra: Mapping[str, Any] | None,
    config: Mapping[str, Any] | None,
) -> Snapshot:
    """A snapshot whose tensors were copied again, with the settings and the other values of now."""
    entries, groups = dict(what.entries), own.settings.param_groups if own is not None else []
    for number, group in enumerate(groups):
        for name, value in settings_in(number, group):
            if name in entries:  # what is not is a tensor
                entries[name] = pack(value, name)
    counts = Counts.of(what.counts.tensors, iter(()), groups)
    return replace(
        what,
        cut=lambda _: what.parts,
        entries=entries,
        extra=packed(extra),
        config=config or config_of_model(model),
        counts=replace(counts, state_tensors=what.counts.state_tensors),
    )
