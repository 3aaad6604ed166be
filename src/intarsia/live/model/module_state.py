"""The state dict of a module, and whether its tensors are the module's own memory.

A state dict mostly holds the module's parameters themselves.  FSDP1, `state_dict` hooks and some
quantised modules hand out copies: filling those would leave the module as it was.  So everything is
read into a state dict apart, given to the module's `load_state_dict`, and looked for once more.  The
same is done for modules with hooks of their own (see `load_hooks`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import Module
from torch.nn.parameter import is_lazy

from intarsia.errors import CoverageError, LayoutError, UsageError, few
from intarsia.live.model.adapters import adapter_tensors, refuse_merged
from intarsia.live.model.holding import is_dtensor, memory_of
from intarsia.live.model.load_hooks import modules_with_hooks
from intarsia.live.model.names import own_name
from intarsia.live.model.own_tensors import every_tensor, full_name, named_tensors
from intarsia.live.model.wrapper_classes import Wrappers

EXTRA_STATE = "_extra_state"
"""The last word under which `get_extra_state` stands in a state dict."""


def is_extra_state(name: str) -> bool:
    """Whether a name of a state dict is that of what a module gave by `get_extra_state`."""
    return name.rpartition(".")[2] == EXTRA_STATE


def is_module(x: Any) -> bool:
    """Whether something is a torch module, known by what it offers."""
    return hasattr(x, "state_dict") and hasattr(x, "named_modules")


@dataclass(frozen=True)
class ModuleState:
    """The state dict of a module, with the name that each of its keys has without wrappers."""

    module: Any
    state: Mapping[str, Any]
    names: Mapping[str, str]
    clean: Callable[[str], str]
    """Removes the words of wrappers from a name."""
    wrappers: Wrappers

    @staticmethod
    def by(module: Any) -> ModuleState:
        """The state dict of a module now; with FSDP1, collective."""
        wrappers = Wrappers.of(module)
        if wrappers.peft:
            refuse_merged(module)
        with whole_state(module, wrappers):
            state = module.state_dict(keep_vars=True)
        clean = own_name(module, wrappers=wrappers)
        names = {key: clean(key) for key in state}
        first: dict[str, str] = {}
        for key, name in names.items():
            if (other := first.setdefault(name, key)) != key:
                raise UsageError(
                    f"`{other}` and `{key}` of the model have the name `{name}` after wrapper names are removed",
                    hint="rename the submodule whose name is a wrapper's",
                )
        return ModuleState(module, state, names, clean, wrappers)

    @cached_property
    def tensors(self) -> dict[str, Any]:
        """The tensors, by name; raise where something is neither a tensor nor extra state."""
        found = {}
        for key, x in self.state.items():
            if is_extra_state(key):
                continue
            if not isinstance(x, torch.Tensor):
                raise UsageError(
                    f"`{self.names[key]}` in the module's state dict is not a tensor but of type"
                    f" {type(x).__name__}",
                    hint="give it as `extra`, or by `get_extra_state` of its module",
                )
            found[self.names[key]] = of_numbers(x, self.names[key])
        return found

    @property
    def extra(self) -> dict[str, Any]:
        """What modules gave by `get_extra_state`, by name."""
        return {self.names[key]: x for key, x in self.state.items() if is_extra_state(key)}

    @property
    def adapters(self) -> dict[str, bool]:
        """The names of the tensors that PEFT added, and whether one is a second name of the model's own."""
        return {self.clean(name): again for name, _, again in adapter_tensors(self.module)}

    @property
    def names_of_peft(self) -> dict[str, str]:
        """For each name the one that PEFT's own state dict has, where PEFT is at work."""
        if not self.wrappers.peft:
            return {}
        spelled = own_name(self.module, with_peft=True)
        return {name: spelled(key) for key, name in self.names.items()}

    @property
    def sent(self) -> dict[str, int]:
        """The buffers that DDP sends from one rank to all others before each step, and that rank."""
        found: dict[str, int] = {}
        for path, each in self.module.named_modules() if self.wrappers.data_parallel else ():
            # With a hook, it is the hook that says what becomes of them.
            if getattr(each, "broadcast_buffers", False) and not hasattr(each, "buffer_hook"):
                first = dist.get_global_rank(each.process_group, 0)
                for name, _ in each.module.named_buffers(remove_duplicate=False):
                    if name not in each.parameters_to_ignore:
                        found[self.clean(full_name(path, f"module.{name}"))] = first
        return found

    def set_extra(self, name: str, value: Any) -> None:
        """Give the module of that name its extra state."""
        for path, each in self.module.named_modules():
            given = self.clean(full_name(path, EXTRA_STATE))
            if given == name and type(each).get_extra_state is not Module.get_extra_state:
                each.set_extra_state(value)

    @cached_property
    def copies(self) -> list[str]:
        """The names of tensors whose memory is no parameter's and no buffer's of the module."""
        held = [*_held(self.module)]
        same = {id(x) for x in held}
        others = {n: x for n, x in self.tensors.items() if id(x) not in same}
        own = {place for x in held for place in places_of(x)} if others else set()
        return [n for n, x in others.items() if not own.issuperset(places_of(x))]

    @property
    def left_out(self) -> list[str]:
        """The parameters and lasting buffers whose memory the state dict does not have."""
        if self.wrappers.fsdp1:
            return []  # its flat parameters are what the tensors are made of
        named = {self.clean(n): x for n, x in named_tensors(self.module)}
        unnamed = {n: x for n, x in named.items() if n not in self.tensors}
        if not unnamed:
            return []
        handed = {place for x in self.tensors.values() for place in places_of(x)}
        # A module that hands out copies may give them other names.
        within = {name.rpartition(".")[0] for name in self.copies}
        return sorted(
            n
            for n, x in unnamed.items()
            if n.rpartition(".")[0] not in within and not handed.issuperset(places_of(x))
        )

    def apart(self) -> ModuleState:
        """The same in memory of its own."""
        copied: Any = copy(self.state)  # with the versions of modules, which some of them look at
        for key, x in copied.items():
            copied[key] = x.detach().clone() if isinstance(x, torch.Tensor) else x
        return replace(self, state=copied)

    def run_hooks(self, where: str) -> None:
        """Have the modules inside that do something of their own on loading do it with what they hold now."""
        for each in modules_with_hooks(self.module):
            ModuleState.by(each).apart().give(
                where, because="loads its state dict by code of its own"
            )

    def give(
        self, where: str, because: str = "returns copies of its tensors in state_dict()"
    ) -> None:
        """Give the module this state by its `load_state_dict`, and see that it has it; with FSDP1, collective."""
        try:
            with whole_state(self.module, self.wrappers):
                self.module.load_state_dict(copy(self.state))  # some change it
        except Exception as error:
            if not self._given_with_what_parameters_keep():
                raise CoverageError(
                    f"{type(self.module).__name__} {because}, and its load_state_dict does not accept"
                    f" the tensors: {error}",
                    hint=_HINT,
                ) from error
        now = ModuleState.by(self.module).tensors
        lost = [n for n, x in self.tensors.items() if n not in now or not equal_bytes(x, now[n])]
        if lost:
            raise CoverageError(
                f"{type(self.module).__name__} {because}, and after its load_state_dict {len(lost)}"
                f" tensors differ from {where}: {few(lost, 4)}",
                hint=_HINT,
            )

    def _given_with_what_parameters_keep(self) -> bool:
        """Give the module all but what its parameters themselves keep (scales, in bitsandbytes), and fill that in place.

        False where there is nothing of that kind, or the rest is not accepted either.
        """
        params = {name for name, _ in self.module.named_parameters(remove_duplicate=False)}
        kept = [key for key in self.state if not params.isdisjoint(_above(key))]
        rest: Any = copy(self.state)
        for key in kept:
            del rest[key]
        try:
            with whole_state(self.module, self.wrappers):
                if kept:
                    self.module.load_state_dict(rest)
        except Exception:
            return False
        now = self.module.state_dict(keep_vars=True) if kept else {}
        for key in kept:
            if key in now and now[key].shape == self.state[key].shape:
                memory_of(now[key]).copy_(memory_of(self.state[key]))
        return bool(kept)


def _above(key: str) -> Iterator[str]:
    """The names that a key lies below.

    >>> [*_above("up.weight.absmax")]
    ['up.weight', 'up']
    """
    while key := key.rpartition(".")[0]:
        yield key


_HINT = "load into the inner module, before it is wrapped or quantised"


def whole_state(module: Any, wrappers: Wrappers) -> AbstractContextManager[Any]:
    """Have FSDP1 hand out and take whole tensors on every rank, whatever kind was set."""
    if not wrappers.fsdp1:
        return nullcontext()
    from torch.distributed.fsdp import (
        FullOptimStateDictConfig,
        FullStateDictConfig,
        FullyShardedDataParallel,
        StateDictType,
    )

    found: AbstractContextManager[Any] = FullyShardedDataParallel.state_dict_type(
        module,
        StateDictType.FULL_STATE_DICT,
        FullStateDictConfig(offload_to_cpu=False, rank0_only=False),
        FullOptimStateDictConfig(offload_to_cpu=False, rank0_only=False),
    )
    return found


def _held(module: Any) -> Iterator[Any]:
    yield from every_tensor(module)
    # FSDP1 with `use_orig_params` has views of its flat parameter in their place.
    yield from module.parameters()


def places_of(x: Any) -> set[tuple[str, int]]:
    """Where a tensor's memory is; nowhere, if it has no elements here."""
    held = memory_of(x)
    if not held.numel() or held.device.type == "meta":
        return set()
    return {(str(held.device), held.untyped_storage().data_ptr())}


def of_numbers(x: Any, name: str) -> Any:
    """A tensor that is its memory; raise where its numbers are elsewhere, or there are none."""
    if is_lazy(x) or x.is_nested or x.layout is not torch.strided:
        what = "of a lazy module" if is_lazy(x) else f"a tensor of layout {x.layout}"
        raise LayoutError(
            f"`{name}` is {what}, which can be neither filled nor saved",
            hint="run a lazy module on a batch first; give others as plain tensors: x.to_dense()",
        )
    if not is_dtensor(x) and (hasattr(x, "__tensor_flatten__") or not _has_memory(x)):
        raise LayoutError(
            f"`{name}` is a {type(x).__name__}, which keeps its numbers in several tensors",
            hint=_OF_TRANSFORMER_ENGINE
            if type(x).__module__.startswith("transformer_engine")
            else "load or save the model before it is quantised, or give those tensors in a dict",
        )
    return x


_OF_TRANSFORMER_ENGINE = (
    "its stacked weights have memory after intarsia.live.transformer_engine.set_device_mesh; load or save"
    " others before they are quantised"
)


def _has_memory(x: Any) -> bool:
    """Whether a tensor has memory of its own: that of some classes is only in the tensors inside."""
    if type(x) in (torch.Tensor, torch.nn.Parameter):
        return True
    try:
        x.untyped_storage().data_ptr()
    except RuntimeError:
        return bool(x.is_meta)
    return True


def equal_bytes(a: Any, b: Any) -> bool:
    """Whether two tensors hold the same bytes."""
    x, y = memory_of(a), memory_of(b)
    if x.shape != y.shape or x.dtype != y.dtype:
        return False
    x, y = (t.to("cpu").resolve_conj().resolve_neg().reshape(-1) for t in (x, y))
    return not x.numel() or torch.equal(x.view(torch.uint8), y.view(torch.uint8))
