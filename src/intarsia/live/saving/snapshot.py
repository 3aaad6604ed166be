"""What a process has to save, at one moment: tensors, entries, extra values and a configuration."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from types import NoneType
from typing import Any

import torch

from intarsia.errors import UsageError, few
from intarsia.format.naming.section import OWN
from intarsia.live.entries import check_nesting, pack, packed
from intarsia.live.megatron import rows as megatron_rows
from intarsia.live.megatron.model import is_megatron, refuse_optimizer
from intarsia.live.megatron_settings import hub_config
from intarsia.live.model.contents import ModelContents
from intarsia.live.model.holding import memories_of
from intarsia.live.model.names import config_of_all, configs_in
from intarsia.live.optimizer.agreement import WITHOUT
from intarsia.live.optimizer.classes import classes_of, opened
from intarsia.live.optimizer.groups import settings_by_name
from intarsia.live.optimizer.named import NamedOptimizer
from intarsia.live.optimizer.several import each_of
from intarsia.live.optimizer.state_to_save import never_stepped, states, values
from intarsia.live.report import Counts
from intarsia.live.saving.parts import HeldPart, SeenTensor, parts_of
from intarsia.live.values import packed_with
from intarsia.state.names import CLASS


@dataclass
class Snapshot:
    """What this process has to save, at one moment: its memory or a copy of that, and how to cut it."""

    memory: Mapping[str, torch.Tensor]
    cut: Callable[[Mapping[str, torch.Tensor]], Iterable[HeldPart]]
    entries: dict[str, bytes]
    extra: dict[str, bytes]
    config: Mapping[str, Any] | None
    counts: Counts = Counts()
    identities: tuple[int, ...] = ()
    """The identity of the live tensor that each of `memory` is of, where all of them have one."""
    nesting: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The keys above each tensor that lay in a dict of the one that was given."""
    sent: Mapping[str, int] = field(default_factory=dict)
    """The rank of the whole job whose numbers of a tensor are those of all."""

    @cached_property
    def parts(self) -> list[HeldPart]:
        """The boxes of all tensors; worked out when they are asked for, not while training waits."""
        return list(self.cut(self.memory))


def snapshot(
    model: Any,
    optimizer: Any = None,
    extra: Mapping[str, Any] | None = None,
    config: Mapping[str, Any] | None = None,
) -> Snapshot:
    """Everything that this process holds, by the names that torch gives it; nothing is copied."""
    given = packed(extra)
    if is_megatron(model):
        refuse_optimizer(optimizer)
        boxes, changed = megatron_rows.parts_of_megatron(model, config)
        parts = {f"{k} {p.name}{p.box}": p for k, p in enumerate(boxes)}
        memory_here = {key: p.memory for key, p in parts.items()}
        return Snapshot(
            memory_here,
            lambda memory: (replace(p, memory=memory[key]) for key, p in parts.items()),
            {}, given, hub_config(config), Counts(len({p.name for p in boxes}), changed=changed),
        )  # fmt: skip
    contents = ModelContents.of(model)
    tensors = dict(contents.tensors)
    if not tensors:
        raise UsageError(
            "there is no tensor to save",
            hint="give a module, or a dict of modules and tensors; `extra` goes beside them",
        )
    contents.check_names()
    if lost := contents.left_out:
        raise UsageError(
            f"{len(lost)} tensors of the module are not in its state_dict(): {few(lost, 4)}",
            hint="make its state_dict() return them, or save only what it returns: save(path,"
            " module.state_dict())",
        )
    counts = Counts(len(tensors))
    given = packed_with(contents, given)
    entries: dict[str, bytes] = {}
    optimizer = contents.optimizer_with(optimizer)
    if optimizer is not None:
        own = NamedOptimizer.of(_stepped_model(model, contents, optimizer), optimizer, state=True)
        entries = values(own)
        entries[CLASS] = pack(classes_of(own.held), CLASS)
        entries[WITHOUT] = pack(never_stepped(own), WITHOUT)
        tensors.update(states(own))
        for name, value in settings_by_name(own):
            if hasattr(value, "dtype"):
                tensors[name] = value
            else:
                entries[name] = pack(value, name)
        held = (x for key, x in own.held.state.items() if not isinstance(key, str))
        counts = Counts.of(counts.tensors, held, own.settings.param_groups)
    seen = {name: SeenTensor.of(tensor, name) for name, tensor in tensors.items()}
    cut = partial(parts_of, seen)
    configs = {} if config else configs_in(model)
    if not (lent := config or config_of_all(configs)):
        counts = replace(counts, without_config=[key for key, held in configs.items() if held])
    identities = tuple(map(id, tensors.values()))
    memory = memories_of(tensors)
    if empty := [name for name, x in memory.items() if x.is_meta and x.numel()]:
        raise UsageError(
            f"{len(empty)} tensors are on `meta`, so there is nothing to save of them: {few(empty, 4)}",
            hint="load the model, or give it memory and initialise it",
        )
    return Snapshot(
        memory, cut, entries, given, lent, counts, identities, contents.nesting, contents.sent
    )


def check_config(config: Any) -> None:
    """Raise where what is given as a configuration is none."""
    if not isinstance(config, (Mapping, NoneType)):
        raise UsageError(
            f"`config` is a {type(config).__name__}",
            hint="give a dict, for example model.config.to_dict()",
        )
    check_nesting(config or {}, "`config`")


def _stepped_model(given: Any, contents: ModelContents, optimizer: Any) -> Any:
    """What gives an optimizer's parameters their names: as in torch, the dict's model alone where it steps nothing else.

    That is the one with a framework's own name, of whose optimizer every reader takes such state.
    """
    own = {name.partition(".")[0] for name in (*contents.modules, *contents.loose)} & OWN
    if own != {"model"} or "model." not in contents.modules:
        return given
    model = contents.modules["model."].module
    held = {id(param) for param in model.parameters()}
    groups = (group for one in each_of(opened(optimizer).settings) for group in one.param_groups)
    return model if all(id(p) in held for group in groups for p in group["params"]) else given
