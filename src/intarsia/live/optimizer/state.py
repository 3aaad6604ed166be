"""The state of a torch optimizer by the names of its model's parameters, as it is: no step is faked.

A parameter that was never stepped has no state, and that is said; one without elements needs
none.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch

from intarsia.errors import CoverageError, UsageError, few
from intarsia.family import Param
from intarsia.format.naming.wrappers import bare
from intarsia.format.optimizer_state.optimizer_names import unnumbered_error
from intarsia.format.optimizer_state.parameter_groups import ParameterGroups
from intarsia.live.model.holding import Holding, is_dtensor
from intarsia.live.model.names import modules_in
from intarsia.live.optimizer.classes import check_kinds
from intarsia.live.optimizer.named import NamedOptimizer
from intarsia.live.optimizer.several import check_shared, each_of, held_by
from intarsia.live.optimizer.state_memory import ParameterState, PartOf, stored_whole
from intarsia.live.optimizer.values import has_axes, state_value
from intarsia.planning.manifest import Manifest
from intarsia.state.names import MASTER, SHARED_STATE, StateName, kinds_by_parameter


@dataclass(frozen=True)
class StateToFill:
    """What a load brings for an optimizer: memory to fill, counters to read, who has none and whose is lost."""

    holdings: list[Holding]
    counters: list[tuple[torch.Tensor, tuple[str, ...]]]
    fresh: dict[torch.Tensor, dict[str, Any]]
    never_stepped: tuple[str, ...]
    lost: tuple[str, ...] = ()


def unused_state(
    optimizer: NamedOptimizer, rows: Mapping[str, Param], manifest: Manifest
) -> frozenset[str]:
    """The parameters that have state in the checkpoint and that this optimizer does not step."""
    if manifest.state_unclear is not None:
        raise manifest.state_unclear
    if manifest.state_by_order:
        _check_order(optimizer, manifest)
    stored = kinds_by_parameter(map(StateName.of, manifest.logical))
    held = {param for param, kinds in stored.items() if kinds - {MASTER}}
    values = kinds_by_parameter(map(StateName.of_torch, manifest.entries)).keys()
    known = {n for each in optimizer.steps for n in _spellings(each.name, rows)}
    tensors = {n for each in optimizer.steps for n in tensors_of(each.name, rows)}
    unused = frozenset((held - tensors) | (values - known))
    _check_whole(unused - manifest.logical.keys(), known | tensors, manifest.path)
    return unused


def _check_whole(unused: Iterable[str], stepped: Collection[str], where: str) -> None:
    """Raise where state of a parameter is stored in parts, as torch flattens lists and dictionaries."""
    for name in sorted(unused):
        ends = (k for k, letter in enumerate(name) if letter == ".")
        of = next((name[:k] for k in ends if name[:k] in stepped), None)
        if of is not None:
            kind = name[len(of) + 1 :].partition(".")[0]
            raise UsageError(
                f"{where} holds `{kind}` of `{of}` in parts, as torch stores a list or a dictionary in an"
                " optimizer's state: they do not say what it was",
                hint="load it with torch and save it with intarsia.save, which keeps such a state whole;"
                " or load only the model (optimizer=None)",
            )


def tensors_of(name: str, rows: Mapping[str, Param]) -> tuple[str, ...]:
    """The logical tensors of a parameter; one without elements is made of none, and has its name."""
    row = rows.get(name)
    return () if row is None else row.layout.tensors or (row.name,)


def _spellings(name: str, rows: Mapping[str, Param]) -> tuple[str, ...]:
    """The names under which a parameter may have values among the entries of a checkpoint."""
    row = rows.get(name)
    return tuple(dict.fromkeys((bare(name), *((row.name,) if row is not None else ()))))


def _check_order(optimizer: NamedOptimizer, manifest: Manifest) -> None:
    """Refuse an optimizer in another order than its model's, where the state was saved without names."""
    params = (param for _, module in modules_in(optimizer.model) for param in module.parameters())
    place = {id(param): k for k, param in enumerate(params)}
    for one, two in pairwise(optimizer.steps):
        if one.group == two.group and place[id(one.param)] > place[id(two.param)]:
            why = (
                f"the optimizer has `{one.name}` before `{two.name}`, the model has them the other way"
                " round, and nothing says in which order the state was saved"
            )
            raise unnumbered_error(why, manifest.path)


def state_to_fill(
    optimizer: NamedOptimizer,
    rows: Mapping[str, Param],
    manifest: Manifest,
    entries: Mapping[str, bytes],
    part_of: PartOf,
    groups: ParameterGroups | None,
    settings: Sequence[Mapping[str, Any]],
    *,
    strict: bool = True,
) -> StateToFill:
    """Memory for the state that the checkpoint has of each parameter; nothing is read yet.

    `settings` are those that the optimizer's groups will have.
    A parameter without any was never stepped where the checkpoint's groups name it; otherwise its
    state is lost, which only `strict=False` allows.
    """
    kinds = kinds_by_parameter(map(StateName.of, manifest.logical))
    values = kinds_by_parameter(map(StateName.of_torch, entries))
    listed = {member for group in (groups.each if groups else ()) for member in group.members}
    if not listed and not values and not any(found - {MASTER} for found in kinds.values()):
        named = "; its parameter groups name no parameters" if groups and groups.each else ""
        raise CoverageError(
            f"{manifest.path} holds no optimizer state of this model{named}",
            hint="load only the model (optimizer=None), or give a checkpoint saved with the state of its"
            " optimizer under the names of parameters (torch's get_optimizer_state_dict)",
        )
    check_shared([key for key in entries if key.startswith(SHARED_STATE)], optimizer.held)
    _check_one_order(optimizer, rows, groups, manifest.path)
    out = StateToFill([], [], {}, ())
    never: list[str] = []
    lost: list[str] = []
    for each in optimizer.steps:
        row = rows.get(each.name)
        names = tensors_of(each.name, rows)
        held = [kinds.get(n, set()) - {MASTER} for n in names]
        spelled = next((n for n in _spellings(each.name, rows) if n in values), None)
        in_entries = values[spelled] if spelled is not None else set()
        if not any(held) and not in_entries:
            if each.param.numel():
                never.append(each.name)
                known = (listed.issuperset(names) and names) or bare(each.name) in listed
                if each.param.requires_grad and not known:
                    lost.append(each.name)
            out.fresh[each.param] = {}
            continue
        _check_alike(each.name, dict(zip(names, held, strict=True)), manifest)
        mine = held[0] if held else set()
        one = held_by(optimizer.held, each.group)
        check_kinds(each.name, mine | in_entries, one, settings[each.group], manifest.path)
        state = out.fresh[each.param] = {}
        for kind in sorted(in_entries):
            state[kind] = state_value(entries, str(spelled), kind, each.param.device)
            part = row is not None and tuple(each.param.shape) != tuple(row.layout.shape)
            if (part or is_dtensor(each.param)) and has_axes(state[kind]):
                raise stored_whole(kind, each.name, "sharded over ranks")
        for kind in sorted(mine - in_entries):
            assert row is not None
            of = ParameterState(each, row, names, manifest, optimizer.held)
            state[kind], fill = of.memory(kind, part_of)
            if isinstance(fill, Holding):
                out.holdings.append(fill)
            elif fill is not None:
                out.counters.append((state[kind], fill))
    if lost and strict:
        raise CoverageError(
            f"{manifest.path} has no optimizer state of {len(lost)} parameters, and nothing in it"
            f" says that they were never updated: {few(lost, 4)}",
            hint="load with strict=False to let them start without state",
        )
    return StateToFill(out.holdings, out.counters, out.fresh, tuple(never), tuple(lost))


def _check_one_order(
    optimizer: NamedOptimizer, rows: Mapping[str, Param], groups: ParameterGroups | None, where: str
) -> None:
    """Raise where the parameters of an LBFGS are in another order: its state is of all, laid end to end."""
    stored = [list(group.members) for group in (groups.each if groups else ())]
    for one in each_of(optimizer.held):
        if not any(base.__name__ == "LBFGS" for base in type(one).__mro__):
            continue
        names = [x.name for x in optimizer.steps if held_by(optimizer.held, x.group) is one]
        mine = [n for name in names for n in tensors_of(name, rows) or (bare(name),)]
        if mine not in stored:
            raise UsageError(
                f"{type(one).__name__} keeps one history of all its parameters in their order,"
                f" and {where} has them in another order",
                hint="give the optimizer its parameters in the order that they had when it was saved",
            )


def _check_alike(name: str, held: Mapping[str, set[str]], manifest: Manifest) -> None:
    """Raise where the tensors that a parameter is made of have not the same kinds of state."""
    first, *others = held.items() or [("", set[str]())]
    kinds = first[1]
    for lacking, some in others:
        if some != kinds:
            raise CoverageError(
                f"`{name}` is made of {len(held)} tensors, which have different optimizer state"
                f" in {manifest.path}: {sorted(kinds)}, and {sorted(some)} of {lacking}",
                hint="the checkpoint lost state: use another",
            )


def put(
    optimizer: Any, fresh: Mapping[torch.Tensor, dict[str, Any]], shared: Mapping[str, Any]
) -> None:
    """Give an optimizer the state that was filled, in the place of what it had."""
    for key in [key for key in optimizer.state if isinstance(key, str)]:
        del optimizer.state[key]
    optimizer.state.update(shared)
    for param, state in fresh.items():
        if state:
            optimizer.state[param] = state
        else:
            optimizer.state.pop(param, None)
