"""Whether a model and its optimizer are still what the last save found: a check of about a microsecond per tensor.

A save names, checks and cuts every tensor, which costs ten times as much.  Where every module and every
tensor is the same object, with the same shape and type, all of that holds again, and only numbers are new.
Modules that compute what they hand out (hooks, a `state_dict` of their own, FSDP1, PEFT) and optimizers
that keep more than tensors are not looked at: whoever asks takes the long way.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any
from weakref import ref

import torch
from torch.nn import Module

from intarsia.live.model.wrapper_classes import is_pefts
from intarsia.live.optimizer.classes import UnwrappedOptimizer
from intarsia.live.optimizer.several import each_of

_OWN = ("state_dict", "_save_to_state_dict", "get_extra_state", "named_modules")
"""Methods that decide what a module hands out, and under which names."""
_SHAPE, _DTYPE = attrgetter("shape"), attrgetter("dtype")
_CUTS = attrgetter("mesh", "placements", "tensor_meta")
_PLAIN = {torch.Tensor, torch.nn.Parameter}


@dataclass
class Look:
    """What there is at one moment: marks of everything but numbers, and each tensor with its memory here.

    Nothing is done per tensor that a list can do for all: there are thousands, and training waits.
    """

    marks: list[Any] = field(default_factory=list)
    tensors: list[Any] = field(default_factory=list)
    memory: list[Any] = field(default_factory=list)
    owners: list[Any] = field(default_factory=list)

    @staticmethod
    def at(model: Any, own: UnwrappedOptimizer | None) -> Look | None:
        """A look at a module and its optimizer; None where it would not see all that these hold."""
        found = Look()
        seen = found._see_modules(model) and found._see_optimizers(own) and found._see_tensors()
        return found if seen else None

    def _see_modules(self, model: Any) -> bool:
        """Walk as `state_dict` does: what prepares a module for it first, then what the module holds."""
        if not isinstance(model, Module):
            return False
        marks, tensors, owners = self.marks, self.tensors, self.owners
        to_see, classes, prepared = [model], set[type](), set[Any]()
        while to_see:
            module = to_see.pop()
            owners.append(module)
            classes.add(type(module))
            held = module.__dict__
            hooks = held["_state_dict_hooks"]
            if not held.keys().isdisjoint(_OWN) or (hooks and not _only_rename(hooks)):
                return False
            for hook in held["_state_dict_pre_hooks"].values():
                if hook not in prepared:
                    if not _shows_shards(hook):
                        return False
                    hook(module, "", True)
                    prepared.add(hook)
            params, buffers, children = held["_parameters"], held["_buffers"], held["_modules"]
            marks += (id(module), len(hooks), len(params), len(buffers), len(children), *params)
            for x in params.values():
                tensors.append(x) if x is not None else marks.append(len(tensors))
            if buffers:
                passing = held["_non_persistent_buffers_set"]
                marks += (*buffers, len(passing), *passing)
                for name, x in buffers.items():
                    if name not in passing:
                        tensors.append(x) if x is not None else marks.append(len(tensors))
            if children:
                marks += (*children, *map(id, children.values()))
                to_see += [x for x in children.values() if x is not None]
            marks.append(len(tensors))
        return all(map(_hands_out_what_it_holds, classes))

    def _see_optimizers(self, own: UnwrappedOptimizer | None) -> bool:
        if own is None:
            return True
        marks, tensors = self.marks, self.tensors
        for optimizer in {id(x): x for x in (*each_of(own.held), *each_of(own.settings))}.values():
            self.owners.append(optimizer)
            marks += (id(optimizer), len(optimizer.param_groups))
            for group in optimizer.param_groups:
                marks += (*group, *map(id, group["params"]))
                tensors += [x for x in group.values() if isinstance(x, torch.Tensor)]
                marks.append(len(tensors))
        for optimizer in each_of(own.held):
            for param, state in optimizer.state.items():
                if not isinstance(state, dict):
                    return False
                marks += (id(param), *state)
                tensors += state.values()
            marks.append(len(tensors))
        return True

    def _see_tensors(self) -> bool:
        """Mark what the tensors are; False where one's class may keep its numbers in another way."""
        tensors, dtensor = self.tensors, _dtensor()
        kinds = list(map(type, tensors))
        if not {*kinds} <= {*_PLAIN, dtensor}:
            return False
        specs = [x._spec for x in tensors if type(x) is dtensor]
        memory = [x._local_tensor if type(x) is dtensor else x for x in tensors]
        self.memory = memory
        if not {*map(type, memory)} <= _PLAIN:
            return False
        marked: tuple[tuple[list[Any], Callable[[Any], Any]], ...]
        marked = (tensors, id), (memory, id), (memory, _SHAPE), (memory, _DTYPE)
        for things, mark in marked:
            self.marks.append(list(map(mark, things)))
        self.marks += (kinds, specs, list(map(_CUTS, specs)))
        return True


class LivingObjects:
    """Objects of which it is known that none is gone, so that no other has come to have its identity.

    Not for tensors: torch does not swap one that has a weak reference, so that `to()` of a module of DTensors
    would fail.  Nor need they be: a tensor with the identity, the shape, the type and the place of one that
    is gone is copied as that was.
    """

    def __init__(self, objects: Iterable[Any]) -> None:
        self._gone: list[Any] = []
        self._refs = [ref(x, self._gone.append) for x in objects]

    @property
    def all_alive(self) -> bool:
        return not self._gone


def _hands_out_what_it_holds(kind: type) -> bool:
    """Whether modules of a class hand out their own tensors under their own names, and nothing else."""
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import ActivationWrapper

    names = getattr(kind, "named_parameters", None)
    return (
        all(getattr(kind, name, None) is getattr(Module, name) for name in _OWN)
        and names in (Module.named_parameters, ActivationWrapper.named_parameters)
        and not is_pefts(kind)
    )


def _only_rename(hooks: Mapping[Any, Any]) -> bool:
    """Whether hooks do no more than take an activation wrapper's word out of names."""
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import ActivationWrapper

    return all(hook is ActivationWrapper._post_state_dict_hook for hook in hooks.values())


def _shows_shards(hook: Any) -> bool:
    """Whether a hook has FSDP2 put the shards of its parameters back in their places, whatever it is given."""
    module: str = getattr(hook, "__module__", "")
    return module.startswith("torch.distributed.fsdp._fully_shard.")


def _dtensor() -> Any:
    """The class of DTensors, where any can be: importing it takes a second."""
    return getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", None)
