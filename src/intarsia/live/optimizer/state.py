"""The state of a torch optimizer by the names of its model's parameters, as it is: no step is faked.

A parameter that was never stepped has no state, and that is said; one without elements needs
none.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from intarsia.errors import CoverageError, UsageError
from intarsia.family import Param
from intarsia.format.naming.wrappers import bare
from intarsia.format.optimizer_state.optimizer_names import unnumbered_error
from intarsia.format.optimizer_state.parameter_groups import Groups
from intarsia.layout import Layout
from intarsia.live.memory.holding import Holding, cut, is_dtensor, is_present, memory_of
from intarsia.live.names import modules_in, own_name
from intarsia.live.optimizer.classes import Opened, check_kinds
from intarsia.live.optimizer.several import Together, each_of, held_by
from intarsia.live.optimizer.values import (
    has_axes,
    is_value,
    kinds_of_values,
    value_in,
    values_of,
)
from intarsia.planning.manifest import Manifest
from intarsia.state.names import MASTER, SHARED_STATE, StateName, of_kind

if TYPE_CHECKING:
    import torch


class Stepped(NamedTuple):
    """A parameter that an optimizer steps, with its name and the number of its group."""

    name: str
    param: torch.Tensor
    group: int


def stepped(model: Any, optimizer: Any) -> tuple[Stepped, ...]:
    """The parameters of an optimizer under the names that the model has for them."""
    return tuple(_stepped(model, optimizer))


@dataclass(frozen=True)
class Steps:
    """The parameters whose state this rank holds, and those that the groups of settings name."""

    held: tuple[Stepped, ...]
    settings: tuple[Stepped, ...]

    @staticmethod
    def of(model: Any, own: Opened) -> Steps:
        """The names of an optimizer's parameters, looked up once."""
        held = stepped(model, own.held)
        return Steps(held, held if own.settings is own.held else stepped(model, own.settings))


def _stepped(model: Any, optimizer: Any) -> Iterator[Stepped]:
    modules = list(modules_in(model))
    if not modules:
        raise UsageError(
            "optimizer state is stored under the names of the model's parameters",
            hint="give the module, not its state dict",
        )
    names: dict[int, str] = {}
    for prefix, module in modules:
        clean = own_name(module)
        for name, param in module.named_parameters(remove_duplicate=False):
            names.setdefault(id(param), prefix + clean(name))
    for number, group in enumerate(optimizer.param_groups):
        for at, param in enumerate(group["params"]):
            if id(param) not in names:
                raise UsageError(
                    f"parameter {at} of group {number} ({list(param.shape)}) of the optimizer is not in"
                    " the model",
                    hint="make the optimizer from the model's parameters, after a model on `meta` was"
                    " loaded or given memory",
                )
            yield Stepped(names[id(param)], param, number)


@dataclass(frozen=True)
class StateToFill:
    """What a load brings for an optimizer: memory to fill, counters to read, who has none and whose is lost."""

    holdings: list[Holding]
    counters: list[tuple[torch.Tensor, tuple[str, ...]]]
    fresh: dict[torch.Tensor, dict[str, Any]]
    never_stepped: tuple[str, ...]
    lost: tuple[str, ...] = ()


def kinds_of(manifest: Manifest) -> dict[str, set[str]]:
    """For each logical parameter, the kinds of state that a checkpoint has of it."""
    found: dict[str, set[str]] = {}
    for name in manifest.logical:
        if state := StateName.of(name):
            found.setdefault(state.parameter, set()).add(state.kind)
    return found


def unused_state(
    model: Any, steps: Sequence[Stepped], rows: Mapping[str, Param], manifest: Manifest
) -> frozenset[str]:
    """The parameters of which a checkpoint has state, and this optimizer steps none."""
    if manifest.state_unclear is not None:
        raise manifest.state_unclear
    if manifest.state_by_order:
        _check_order(model, steps, manifest)
    held = {param for param, kinds in kinds_of(manifest).items() if kinds - {MASTER}}
    values = kinds_of_values(manifest.entries).keys()
    known = {n for each in steps for n in _spellings(each.name, rows)}
    tensors = {n for each in steps for n in tensors_of(each.name, rows)}
    return frozenset((held - tensors) | (values - known))


def tensors_of(name: str, rows: Mapping[str, Param]) -> tuple[str, ...]:
    """The logical tensors of a parameter; one without elements is made of none, and has its name."""
    row = rows.get(name)
    return () if row is None else row.layout.tensors or (row.name,)


def _spellings(name: str, rows: Mapping[str, Param]) -> tuple[str, ...]:
    """The names under which a parameter may have values among the entries of a checkpoint."""
    row = rows.get(name)
    return tuple(dict.fromkeys((bare(name), *((row.name,) if row is not None else ()))))


def _check_order(model: Any, steps: Sequence[Stepped], manifest: Manifest) -> None:
    """Refuse an optimizer in another order than its model's, where the state was saved without names."""
    params = (param for _, module in modules_in(model) for param in module.parameters())
    place = {id(param): k for k, param in enumerate(params)}
    for one, two in pairwise(steps):
        if one.group == two.group and place[id(one.param)] > place[id(two.param)]:
            why = (
                f"the optimizer has `{one.name}` before `{two.name}`, the model has them the other way"
                " round, and nothing says in which order the state was saved"
            )
            raise unnumbered_error(why, manifest.path)


def state_to_fill(
    steps: Sequence[Stepped],
    optimizer: Any,
    rows: Mapping[str, Param],
    manifest: Manifest,
    entries: Mapping[str, bytes],
    literal: Collection[str],
    groups: Groups | None,
    *,
    strict: bool = True,
) -> StateToFill:
    """Memory for the state that the checkpoint has of each parameter; nothing is read yet.

    A parameter without any was never stepped where the checkpoint's groups name it; otherwise its
    state is lost, which only `strict=False` allows.
    """
    import torch

    kinds, values = kinds_of(manifest), kinds_of_values(entries)
    listed = {member for group in (groups.each if groups else ()) for member in group.members}
    if not listed and not values and not any(found - {MASTER} for found in kinds.values()):
        raise CoverageError(
            f"{manifest.path} holds no optimizer state",
            hint="load only the model (optimizer=None), or give a checkpoint saved with its optimizer",
        )
    _check_shared([key for key in entries if key.startswith(SHARED_STATE)], optimizer)
    _check_one_order(steps, optimizer, rows, groups, manifest.path)
    out = StateToFill([], [], {}, ())
    never: list[str] = []
    lost: list[str] = []
    for each in steps:
        row = rows.get(each.name)
        names = tensors_of(each.name, rows)
        held = [kinds.get(n, set()) - {MASTER} for n in names]
        spelled = next((n for n in _spellings(each.name, rows) if n in values), None)
        told = values[spelled] if spelled is not None else set()
        if not any(held) and not told:
            if each.param.numel():
                never.append(each.name)
                known = (listed.issuperset(names) and names) or bare(each.name) in listed
                if each.param.requires_grad and not known:
                    lost.append(each.name)
            out.fresh[each.param] = {}
            continue
        _check_alike(each.name, dict(zip(names, held, strict=True)), manifest)
        mine = held[0] if held else set()
        check_kinds(each.name, mine | told, held_by(optimizer, each.group), manifest.path)
        state = out.fresh[each.param] = {}
        for kind in sorted(told):
            state[kind] = value_in(entries, str(spelled), kind, each.param.device)
            if is_dtensor(each.param) and has_axes(state[kind]):
                raise UsageError(
                    f"`{kind}` of `{each.name}` was stored whole and does not have the shape of"
                    " its parameter, which is now sharded over ranks",
                    hint="load it into plain parameters, or load only the model (optimizer=None)",
                )
        old = optimizer.state.get(each.param, {})
        for kind in sorted(mine - told):
            assert row is not None
            logical = tuple(map(of_kind(kind), names))
            if all(manifest.logical[n].shape == () for n in logical) and each.param.dim():
                stored = getattr(torch, manifest.logical[logical[0]].dtype.torch)
                state[kind] = _counter(old.get(kind), stored, each, optimizer)
                out.counters.append((state[kind], logical))
                continue
            layout = row.layout.rename(of_kind(kind))
            stored = getattr(torch, manifest.logical[logical[0]].dtype.torch)
            state[kind] = _like(each.param, old.get(kind), stored)
            if is_present(each.param):
                out.holdings.append(
                    Holding(
                        f"{each.name}.{kind}",
                        cut(layout, state[kind], literal=each.name in literal),
                        memory_of(state[kind]),
                    )
                )
    if lost and strict:
        raise CoverageError(
            f"{manifest.path} has no optimizer state of {len(lost)} parameters, and nothing in"
            " it says that they were never updated:"
            f" {', '.join(lost[:4])}{', …' if len(lost) > 4 else ''}",
            hint="load with strict=False to let them start without state",
        )
    return StateToFill(out.holdings, out.counters, out.fresh, tuple(never), tuple(lost))


def _check_shared(keys: Sequence[str], optimizer: Any) -> None:
    """Raise where nothing says which of several optimizers a state that is of no parameter belongs to."""
    if keys and isinstance(optimizer, Together):
        key = keys[0].removeprefix(SHARED_STATE)
        raise UsageError(
            f"`{key}` is state of one of {len(optimizer.each)} optimizers, and belongs to no"
            " parameter that would say of which one",
            hint="keep it in the groups of its optimizer, or in `extra`",
        )


def _check_one_order(
    steps: Sequence[Stepped],
    optimizer: Any,
    rows: Mapping[str, Param],
    groups: Groups | None,
    where: str,
) -> None:
    """Raise where the parameters of an LBFGS are in another order: its state is of all, laid end to end."""
    stored = [list(group.members) for group in (groups.each if groups else ())]
    for one in each_of(optimizer):
        if not any(base.__name__ == "LBFGS" for base in type(one).__mro__):
            continue
        names = [each.name for each in steps if held_by(optimizer, each.group) is one]
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


def counter_holdings(
    manifest: Manifest, counters: Iterable[tuple[torch.Tensor, tuple[str, ...]]]
) -> dict[str, Holding]:
    """Memory for each step that the checkpoint has of the counters' parameters."""
    import torch

    found: dict[str, Holding] = {}
    for name in dict.fromkeys(name for _, names in counters for name in names):
        dtype = getattr(torch, manifest.logical[name].dtype.torch)
        found[name] = Holding(name, Layout.of(name, ()), torch.empty((), dtype=dtype))
    return found


def set_counters(
    counters: Iterable[tuple[torch.Tensor, tuple[str, ...]]], read: Mapping[str, Holding]
) -> None:
    """Set the steps that were read; those of the parts of one parameter must agree."""
    for tensor, names in counters:
        first, *others = (read[name].tensor for name in names)
        if any(not _same(x, first) for x in others):
            values = sorted({x.item() for x in (first, *others)})
            raise CoverageError(
                f"{names[0]} and {len(others)} other tensors are at steps {values}, and one"
                " parameter holds them all",
                hint="the parts of the checkpoint were saved at different steps",
            )
        tensor.copy_(first)


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.dtype == b.dtype and (a.item() == b.item() or bool(a != a and b != b))


def _counter(old: Any, stored: torch.dtype, each: Stepped, optimizer: Any) -> torch.Tensor:
    """Memory for a state without axes; torch wants that of fused steps beside the parameter."""
    import torch

    group = optimizer.param_groups[each.group]
    beside = group.get("capturable") or group.get("fused")
    device = old.device if isinstance(old, torch.Tensor) else each.param.device if beside else "cpu"
    return torch.zeros((), dtype=stored, device=device)


def _like(param: torch.Tensor, old: Any, stored: torch.dtype) -> torch.Tensor:
    """The state's own memory where it lies as its parameter does, else memory that does."""
    import torch

    if isinstance(old, torch.Tensor):
        same = old.shape == param.shape and is_dtensor(old) == is_dtensor(param)
        if same and getattr(old, "placements", None) == getattr(param, "placements", None):
            return old
        stored = old.dtype
    return torch.empty_like(param, dtype=stored, requires_grad=False).detach()


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


class State(NamedTuple):
    """One tensor of an optimizer's state that is to be saved; a counter belongs to no shard."""

    param: Stepped
    kind: str
    tensor: Any
    whole: bool


def states(steps: Sequence[Stepped], optimizer: Any) -> Iterator[State]:
    """The state that an optimizer really has, as far as it is of its parameters' shapes."""
    for each in steps:
        value: Any
        axes = each.param.dim()
        for kind, value in optimizer.state.get(each.param, {}).items():
            if is_value(value, each.param):
                continue
            if axes and value.dim() == 0:
                held = memory_of(value) if is_dtensor(value) else value
                yield State(each, kind, held if held.is_cpu else held.cpu(), whole=True)
            else:
                yield State(each, kind, _as_param(value, each), whole=False)


def never_stepped(steps: Sequence[Stepped], optimizer: Any) -> list[str]:
    """The parameters on this rank that an optimizer has no state of."""
    without = (each for each in steps if not optimizer.state.get(each.param))
    return [bare(each.name) for each in without if each.param.numel() and is_present(each.param)]


def values(steps: Sequence[Stepped], optimizer: Any) -> dict[str, bytes]:
    """The rest of the state that an optimizer has, as entries; raise where it is of no parameter."""
    import torch

    params = [(each.name, each.param) for each in steps]
    _check_shared(
        [SHARED_STATE + key for key in optimizer.state if isinstance(key, str)], optimizer
    )
    known = {id(param) for _, param in params}
    if numbers := [name for name, _ in params if name.isdecimal()]:
        raise UsageError(
            f"the parameter `{numbers[0]}` has a number as its name, like torch's numbered states",
            hint="make it a parameter of a submodule, which has a name",
        )
    for key in optimizer.state:
        if isinstance(key, torch.Tensor) and id(key) not in known:
            raise UsageError(
                f"the optimizer keeps state of a tensor of {list(key.shape)} that is in none of"
                " its groups",
                hint="remove it from `optimizer.state`, or add it to a group",
            )
    return values_of(params, optimizer.state)


_UNLIKE = (
    "state of another shape can be saved for plain parameters only, because nothing says which"
    " part of it a rank has: save only the model (optimizer=None), or train it unsharded"
)


def _as_param(value: Any, each: Stepped) -> Any:
    """A state with its parameter's shape; a plain one beside a DTensor is the rank's own part."""
    if is_dtensor(value) or not is_dtensor(each.param):
        if value.shape != each.param.shape:
            raise UsageError(
                f"a state of `{each.name}` has shape {list(value.shape)}, the parameter"
                f" {list(each.param.shape)}",
                hint=_UNLIKE,
            )
        return value
    local = memory_of(each.param)
    if tuple(value.shape) != tuple(local.shape):
        raise UsageError(
            f"a plain state of `{each.name}` has shape {list(value.shape)}, its parameter"
            f" {list(local.shape)} on this rank",
            hint=_UNLIKE,
        )
    from torch.distributed.tensor import DTensor

    param: Any = each.param
    return DTensor.from_local(
        value, param.device_mesh, param.placements, shape=param.shape, stride=param.stride()
    )
