"""The state of a torch optimizer by the names of its model's parameters, as it is: no step is faked.

A parameter that was never stepped has no state, and that is said; one without elements needs
none.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from intarsia.errors import CoverageError, UsageError
from intarsia.family import Param
from intarsia.format.optimizer_names import not_told
from intarsia.format.parameter_groups import Group, Groups, different_fields, merged
from intarsia.format.wrappers import bare
from intarsia.live.holding import Holding, cut, is_dtensor, is_present, memory_of
from intarsia.live.names import own_name
from intarsia.planning.manifest import Manifest

if TYPE_CHECKING:
    import torch

MASTER, STEP = "master", "step"


@dataclass(frozen=True)
class Stepped:
    """A parameter that an optimizer steps, with its name and the number of its group."""

    name: str
    param: torch.Tensor
    group: int


def stepped(model: Any, optimizer: Any) -> Iterator[Stepped]:
    """The parameters of an optimizer under the names that the model has for them."""
    if not hasattr(model, "named_parameters"):
        raise UsageError(
            "the state of an optimizer goes by the names of a model's parameters",
            hint="give the module, not its state dict",
        )
    names: dict[int, str] = {}
    clean = own_name(model)
    for name, param in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(param), clean(name))
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
    """What a load brings for an optimizer: memory to fill, counters to read, and who has none."""

    holdings: list[Holding]
    counters: list[tuple[torch.Tensor, tuple[str, ...]]]
    fresh: dict[torch.Tensor, dict[str, Any]]
    never_stepped: tuple[str, ...]


def kinds_of(manifest: Manifest) -> dict[str, set[str]]:
    """For each logical parameter, the kinds of state that a checkpoint has of it."""
    found: dict[str, set[str]] = {}
    for name in manifest.logical:
        if name.startswith("optimizer."):
            kind, _, param = name.removeprefix("optimizer.").partition(".")
            found.setdefault(param, set()).add(kind)
    return found


def unused_state(
    model: Any, optimizer: Any, rows: Mapping[str, Param], manifest: Manifest
) -> frozenset[str]:
    """The parameters of which a checkpoint has state, and this optimizer steps none."""
    if manifest.state_unclear is not None:
        raise manifest.state_unclear
    if manifest.state_by_order:
        _check_order(model, optimizer, manifest)
    held = {param for param, kinds in kinds_of(manifest).items() if kinds - {MASTER}}
    steps = (each.name for each in stepped(model, optimizer) if each.name in rows)
    return frozenset(held - {n for name in steps for n in rows[name].layout.tensors})


def _check_order(model: Any, optimizer: Any, manifest: Manifest) -> None:
    """Refuse an optimizer in another order than its model's, where the state was saved without names."""
    place = {id(param): k for k, param in enumerate(model.parameters())}
    for one, two in pairwise(stepped(model, optimizer)):
        if one.group == two.group and place[id(one.param)] > place[id(two.param)]:
            why = (
                f"the optimizer has `{one.name}` before `{two.name}`, the model has them the other way"
                " round, and nothing says in which order the state was saved"
            )
            raise not_told(why, manifest.path)


def state_to_fill(
    model: Any,
    optimizer: Any,
    rows: Mapping[str, Param],
    manifest: Manifest,
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

    kinds = kinds_of(manifest)
    listed = {member for group in (groups.each if groups else ()) for member in group.members}
    if not listed and not any(found - {MASTER} for found in kinds.values()):
        raise CoverageError(
            f"{manifest.path} holds no optimizer state",
            hint="load the model alone (optimizer=None), or give a checkpoint saved with its optimizer",
        )
    out = StateToFill([], [], {}, ())
    never: list[str] = []
    lost: list[str] = []
    for each in stepped(model, optimizer):
        row = rows.get(each.name)
        names = row.layout.tensors if row is not None else ()
        held = [kinds.get(n, set()) - {MASTER} for n in names]
        if not any(held):
            if each.param.numel():
                never.append(each.name)
                known = (listed.issuperset(names) and names) or bare(each.name) in listed
                if each.param.requires_grad and not known:
                    lost.append(each.name)
            out.fresh[each.param] = {}
            continue
        assert row is not None
        _check_alike(each.name, dict(zip(names, held, strict=True)), manifest)
        state = out.fresh[each.param] = {}
        old = optimizer.state.get(each.param, {})
        for kind in sorted(held[0]):
            logical = tuple(f"optimizer.{kind}.{n}" for n in names)
            if all(manifest.logical[n].shape == () for n in logical) and each.param.dim():
                state[kind] = _counter(old.get(kind), kind)
                out.counters.append((state[kind], logical))
                continue
            layout = row.layout.rename(f"optimizer.{kind}.".__add__)
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
            f"{manifest.path} has no optimizer state of {len(lost)} parameters, and nothing in it says that"
            f" they were never stepped: {', '.join(lost[:4])}{', …' if len(lost) > 4 else ''}",
            hint="load with strict=False if they begin without state",
        )
    return StateToFill(out.holdings, out.counters, out.fresh, tuple(never))


def _check_alike(name: str, held: Mapping[str, set[str]], manifest: Manifest) -> None:
    """Raise where the tensors that a parameter is made of have not the same kinds of state."""
    (_, kinds), *others = held.items()
    for lacking, some in others:
        if some != kinds:
            raise CoverageError(
                f"`{name}` is made of {len(held)} tensors, which have unlike optimizer state in"
                f" {manifest.path}: {sorted(kinds)}, and {sorted(some)} of {lacking}",
                hint="the checkpoint lost state: take another",
            )


def read_counters(
    manifest: Manifest, counters: Sequence[tuple[torch.Tensor, tuple[str, ...]]]
) -> None:
    """Read the steps; those of the parts of one parameter must agree."""
    from intarsia.checkpoint import Checkpoint

    known: dict[str, float] = {}
    with Checkpoint(manifest) as checkpoint:
        for tensor, names in counters:
            for name in names:
                if name not in known:
                    known[name] = checkpoint[name].number()
            values = {known[name] for name in names}
            if len(values) > 1:
                raise CoverageError(
                    f"{names[0]} and its {len(names) - 1} companions are at steps {sorted(values)}, and"
                    " one parameter holds them all",
                    hint="the parts of the checkpoint were saved at different steps",
                )
            tensor.fill_(values.pop())


def _counter(old: Any, kind: str) -> torch.Tensor:
    import torch

    return torch.zeros_like(old) if isinstance(old, torch.Tensor) else torch.zeros(())


def _like(param: torch.Tensor, old: Any, stored: torch.dtype) -> torch.Tensor:
    """The state's own memory where it lies as its parameter does, else memory that does."""
    import torch

    if isinstance(old, torch.Tensor):
        same = old.shape == param.shape and is_dtensor(old) == is_dtensor(param)
        if same and getattr(old, "placements", None) == getattr(param, "placements", None):
            return old
        stored = old.dtype
    return torch.empty_like(param, dtype=stored, requires_grad=False).detach()


def put(optimizer: Any, fresh: Mapping[torch.Tensor, dict[str, Any]]) -> None:
    """Give an optimizer the state that was filled, in the place of what it had."""
    for param, state in fresh.items():
        if state:
            optimizer.state[param] = state
        else:
            optimizer.state.pop(param, None)


def agreed_groups(
    model: Any, optimizer: Any, rows: Mapping[str, Param], groups: Groups | None
) -> list[Mapping[str, Any] | None]:
    """For each group of an optimizer the settings that all of its parameters were stored with.

    None where nothing was stored; raise where parameters of one group were stored with unlike settings.
    """
    each = merged(groups.each) if groups else ()
    of = {n: k for k, g in enumerate(each) for n in g.members}
    held: dict[int, dict[int, list[str]]] = {}
    for param in stepped(model, optimizer):
        tensors = (
            *(rows[param.name].layout.tensors if param.name in rows else ()),
            bare(param.name),
        )
        for k in {of[n] for n in tensors if n in of}:
            held.setdefault(param.group, {}).setdefault(k, []).append(bare(param.name))
    found: list[Mapping[str, Any] | None] = []
    for number, mine in enumerate(optimizer.param_groups):
        stored = held.get(number, {})
        known = [{k: v for k, v in each[n].fields.items() if k in mine} for n in stored]
        if any(repr(sorted(x.items())) != repr(sorted(known[0].items())) for x in known):
            raise _regrouped(number, each, held, len(optimizer.param_groups))
        found.append(known[0] if known else None)
    return found


def _regrouped(
    number: int, each: Sequence[Group], held: Mapping[int, Mapping[int, list[str]]], count: int
) -> UsageError:
    """Both groupings, the checkpoint's and the optimizer's."""
    lines = [
        f"group {number} of the optimizer holds parameters that were stored with unlike settings"
    ]
    lines += [
        f"  the checkpoint's group {k}: {len(g.members)} tensors, {different_fields(each, g)}"
        for k, g in enumerate(each)
    ]
    for mine in range(count):
        parts = (f"{len(x)} of group {k} ({x[0]})" for k, x in sorted(held.get(mine, {}).items()))
        lines.append(f"  the optimizer's group {mine}: {', '.join(parts)}")
    return UsageError(
        "\n".join(lines),
        hint='make the optimizer with the groups of the checkpoint, or load with hyperparameters="mine",'
        " which keeps the optimizer's own",
    )


def put_groups(optimizer: Any, agreed: Sequence[Mapping[str, Any] | None]) -> list[str]:
    """Set the hyperparameters of groups; the groups of which nothing was stored."""
    lost = []
    for number, (mine, found) in enumerate(zip(optimizer.param_groups, agreed, strict=True)):
        if found is None:
            lost.append(f"group {number} of the optimizer")
            continue
        for key, value in found.items():
            if key not in ("params", "param_names"):
                mine[key] = _alike(mine[key], value)
    return lost


def check_settings(
    agreed: Sequence[Mapping[str, Any] | None], optimizer: Any, where: str, *, strict: bool
) -> None:
    """Raise where nothing was stored of a group's settings, unless that is allowed."""
    held = zip(agreed, optimizer.param_groups, strict=True)
    lost = [str(k) for k, (found, mine) in enumerate(held) if found is None and mine["params"]]
    if lost and strict:
        raise CoverageError(
            f"{where} has no hyperparameters (lr and the like) for group {', '.join(lost)} of the optimizer",
            hint='load with hyperparameters="mine" to keep those that the optimizer has',
        )


def _alike(mine: Any, value: Any) -> Any:
    """A stored value in the type that the optimizer has (tuples come back as lists, say)."""
    import torch

    if isinstance(mine, torch.Tensor) and not isinstance(value, torch.Tensor):
        return torch.full_like(mine, float(value))
    return type(mine)(value) if isinstance(mine, (tuple, list)) else value


@dataclass(frozen=True)
class State:
    """One tensor of an optimizer's state that is to be saved; a counter belongs to no shard."""

    param: Stepped
    kind: str
    tensor: Any
    whole: bool


def states(model: Any, optimizer: Any) -> Iterator[State]:
    """The state that an optimizer really has."""
    import torch

    for each in stepped(model, optimizer):
        value: Any
        for kind, value in optimizer.state.get(each.param, {}).items():
            if not isinstance(value, torch.Tensor):
                value = torch.tensor(value)
            if value.dim() == 0 and each.param.dim():
                yield State(each, kind, memory_of(value).cpu(), whole=True)
            else:
                yield State(each, kind, _as_param(value, each), whole=False)


def _as_param(value: Any, each: Stepped) -> Any:
    """A state with its parameter's shape; a plain one beside a DTensor is the rank's own part."""
    if is_dtensor(value) or not is_dtensor(each.param):
        if tuple(value.shape) != tuple(each.param.shape):
            raise UsageError(
                f"a state of `{each.name}` has shape {list(value.shape)}, the parameter"
                f" {list(each.param.shape)}"
            )
        return value
    local = memory_of(each.param)
    if tuple(value.shape) != tuple(local.shape):
        raise UsageError(
            f"a plain state of `{each.name}` has shape {list(value.shape)}, its parameter"
            f" {list(local.shape)} on this rank"
        )
    from torch.distributed.tensor import DTensor

    param: Any = each.param
    return DTensor.from_local(
        value, param.device_mesh, param.placements, shape=param.shape, stride=param.stride()
    )


def groups_of(model: Any, optimizer: Any) -> list[dict[str, Any]]:
    """The hyperparameters of an optimizer's groups, with the names of their parameters."""
    names: dict[int, list[str]] = {}
    for each in stepped(model, optimizer):
        names.setdefault(each.group, []).append(bare(each.name))
    return [
        {k: v for k, v in group.items() if k not in ("params", "param_names")}
        | {"params": names.get(number, [])}
        for number, group in enumerate(optimizer.param_groups)
    ]
