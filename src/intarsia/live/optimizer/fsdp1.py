"""The optimizer of an FSDP1 model, whose state lies in pieces of flat parameters, seen by whole parameters.

Each rank has a range of every parameter's elements, and FSDP1 knows which.  For saving, the ranges are
gathered unit by unit; for loading, each rank cuts its own out of whole tensors.  In between, a model and an
optimizer of whole tensors stand for the real ones, so that names, groups and settings go the way of any
other optimizer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
import torch.distributed as dist

from intarsia.errors import UsageError
from intarsia.live.model.module_state import equal_bytes, is_module
from intarsia.live.model.names import modules_in, own_name
from intarsia.live.model.wrapper_classes import Wrappers
from intarsia.live.optimizer.classes import UnwrappedOptimizer
from intarsia.live.optimizer.several import SeveralOptimizers, each_of
from intarsia.live.optimizer.stepped import named_members

State = dict[str, Any]


@dataclass(frozen=True)
class ShardRange:
    """The range of a parameter's elements that this rank has, and where: in `held`, `at` elements from its begin.

    `held` is what the optimizer steps: the parameter's own shard, or the flat one of a whole unit.
    """

    name: str
    held: Any
    shape: tuple[int, ...]
    at: int
    start: int
    size: int

    def of(self, value: Any) -> Any:
        """The part of a state of `held` that is this parameter's."""
        return value.reshape(-1)[self.at : self.at + self.size]


@dataclass(frozen=True)
class Fsdp1Unit:
    """The parameters that FSDP1 shards together, and the group of ranks that share them; None where each rank has all."""

    spans: Sequence[ShardRange]
    group: Any


class WholeModel:
    """The parameters of an FSDP1 model under the names and shapes of the plain one, without memory."""

    def __init__(self, units: Sequence[Fsdp1Unit]) -> None:
        self.params: dict[str, Any] = {
            span.name: torch.empty((), dtype=span.held.dtype, device="cpu").expand(span.shape)
            for unit in units
            for span in unit.spans
        }

    def named_parameters(self, remove_duplicate: bool = True) -> Iterator[tuple[str, Any]]:
        yield from self.params.items()

    def parameters(self) -> Iterator[Any]:
        yield from self.params.values()

    def named_modules(self) -> Iterator[tuple[str, Any]]:
        return iter(())


@dataclass(frozen=True)
class WholeOptimizer:
    """The optimizer of an FSDP1 model, and the model and optimizer that stand for it."""

    optimizer: Any
    units: Sequence[Fsdp1Unit]
    model: WholeModel
    stands: Any

    @staticmethod
    def of(module: Any, own: UnwrappedOptimizer, *, state: bool) -> WholeOptimizer | None:
        """The optimizer by whole parameters, with its state if asked for; None without FSDP1; collective."""
        if not any(Wrappers.of(each).fsdp1 for _, each in modules_in(module)):
            return None
        if not is_module(module):
            raise UsageError(
                "FSDP1 keeps optimizer state in pieces of its flat parameters, which can be read"
                " only for a single FSDP1 model",
                hint="give the FSDP1 model itself with its optimizers, or use FSDP2 (fully_shard)",
            )
        for held, settings in zip(each_of(own.held), each_of(own.settings), strict=True):
            if held is not settings:
                raise UsageError(
                    "FSDP1 already shards the state of an optimizer, and so does"
                    f" {type(settings).__name__}",
                    hint=f"give FSDP1 the plain {type(held).__name__}",
                )
        units = list(_units(module))
        model = WholeModel(units)
        each = [_standing_for(one, units, model) for one in each_of(own.held)]
        stands = SeveralOptimizers(each) if len(each) > 1 else each[0]
        for unit in units if state else ():
            for name, held in _gathered(unit, own.held).items():
                stands.state[model.params[name]] = held
        return WholeOptimizer(own.held, units, model, stands)

    @property
    def opened(self) -> UnwrappedOptimizer:
        return UnwrappedOptimizer(self.stands, self.stands)

    def check(self, fresh: Mapping[Any, State], where: str) -> None:
        """Raise where parts of one flat parameter are to get unlike kinds of state; none is read yet."""
        for spans in self._by_held().values():
            kinds = {s.name: sorted(fresh.get(self.model.params[s.name], {})) for s in spans}
            first, *others = kinds.items()
            for name, found in others:
                if found != first[1]:
                    raise _unlike(first, (name, found), where)

    def give(self, where: str) -> None:
        """Give the real optimizer its part of the state, and the settings, of the one that stands for it."""
        found = {}
        for spans in self._by_held().values():
            found[spans[0].held] = self._cut(spans, where)
        for real, stands in zip(each_of(self.optimizer), each_of(self.stands), strict=True):
            real.state.clear()
            real.state.update({key: x for key, x in stands.state.items() if isinstance(key, str)})
        for param, held in found.items():
            if held:
                self.optimizer.state[param] = held
        for mine, theirs in zip(self.optimizer.param_groups, self.stands.param_groups, strict=True):
            mine.update({key: x for key, x in theirs.items() if key != "params"})

    def _by_held(self) -> dict[int, list[ShardRange]]:
        """The spans of each tensor that the optimizer steps."""
        stepped = {id(p) for group in self.optimizer.param_groups for p in group["params"]}
        found: dict[int, list[ShardRange]] = {}
        for unit in self.units:
            for span in unit.spans:
                if id(span.held) in stepped:
                    found.setdefault(id(span.held), []).append(span)
        return found

    def _cut(self, spans: Sequence[ShardRange], where: str) -> State:
        """The state of what the optimizer steps, cut out of that of the whole parameters."""
        held, made = spans[0].held, State()
        states = [self.stands.state.get(self.model.params[s.name], {}) for s in spans]
        for kind, first in states[0].items():
            values = [state[kind] for state in states]
            if not getattr(first, "ndim", 0):
                for span, value in zip(spans, values, strict=True):
                    if not _same(value, first):
                        raise _unlike(
                            (spans[0].name, f"{kind}={first}"),
                            (span.name, f"{kind}={value}"),
                            where,
                        )
                made[kind] = _counter(first, held, self.optimizer)
                continue
            made[kind] = torch.zeros(held.shape, dtype=first.dtype, device=held.device)
            for span, value in zip(spans, values, strict=True):
                part = value.reshape(-1)[span.start : span.start + span.size]
                span.of(made[kind]).copy_(part)
        return made


def _standing_for(optimizer: Any, units: Sequence[Fsdp1Unit], model: WholeModel) -> Any:
    """An optimizer of the same class with the groups of another, for whole parameters and without their state."""
    stands = object.__new__(type(optimizer))
    stands.defaults = getattr(optimizer, "defaults", {})
    stands.param_groups = list(_groups(optimizer, units, model))
    stands.state = {key: x for key, x in optimizer.state.items() if isinstance(key, str)}
    return stands


def _units(module: Any) -> Iterator[Fsdp1Unit]:
    """Every unit of FSDP1's in a module, and each parameter that is in none."""
    from torch.distributed.fsdp import FullyShardedDataParallel

    clean = own_name(module)
    named = {clean(name): p for name, p in module.named_parameters()}
    managed: set[str] = set()
    for path, each in module.named_modules():
        handle = each._handle if isinstance(each, FullyShardedDataParallel) else None
        if handle is None:
            continue
        flat, start = handle.flat_param, f"{path}." if path else ""
        spans = []
        for name, shape, info in zip(
            flat._fqns, flat._shapes, flat._shard_param_infos, strict=True
        ):
            known = clean(f"{start}_fsdp_wrapped_module.{name}")
            managed.add(known)
            at = info.offset_in_shard or 0
            held = named[known] if handle._use_orig_params else flat
            where = 0 if handle._use_orig_params else at
            begin, size = info.intra_param_start_idx or 0, info.numel_in_shard or 0
            spans.append(ShardRange(known, held, tuple(shape), where, begin, size))
        managed.add(clean(f"{start}_flat_param"))
        yield Fsdp1Unit(spans, handle.process_group if handle.uses_sharded_strategy else None)
    loose = [
        ShardRange(name, p, tuple(p.shape), 0, 0, p.numel())
        for name, p in named.items()
        if name not in managed
    ]
    if loose:
        yield Fsdp1Unit(loose, None)


def _groups(
    optimizer: Any, units: Sequence[Fsdp1Unit], model: WholeModel
) -> Iterator[dict[str, Any]]:
    names: dict[int, list[str]] = {}
    for unit in units:
        for span in unit.spans:
            names.setdefault(id(span.held), []).append(span.name)
    hint = "make the optimizer from the parameters of the wrapped model, after wrapping it"
    found: dict[int, list[Any]] = {}
    for held, _, number in named_members(optimizer, names, hint):
        found.setdefault(number, []).extend(model.params[name] for name in held)
    for number, group in enumerate(optimizer.param_groups):
        yield {**group, "params": found.get(number, [])}


def _gathered(unit: Fsdp1Unit, optimizer: Any) -> dict[str, State]:
    """The state of a unit's parameters from all ranks that share it."""
    mine = {span.name: part for span in unit.spans if (part := _part(span, optimizer)) is not None}
    parts = [mine]
    if unit.group is not None and unit.group.size() > 1:
        parts = [{} for _ in range(unit.group.size())]
        dist.all_gather_object(parts, mine, group=unit.group)
    found = {}
    for span in unit.spans:
        held = [part[span.name] for part in parts if span.name in part]
        if state := _joined(span, held):
            found[span.name] = state
    return found


def _part(span: ShardRange, optimizer: Any) -> tuple[int, int, State] | None:
    """The range that this rank has of a parameter, and its state; None where it has no element."""
    if not span.size:
        return None
    found = {}
    for kind, value in optimizer.state.get(span.held, {}).items():
        if getattr(value, "ndim", 0):
            if value.numel() != span.held.numel():
                raise UsageError(
                    f"a state of `{span.name}` has shape {list(value.shape)}, FSDP1's part of"
                    f" the parameter on this rank has {list(span.held.shape)}",
                    hint="save only the model (optimizer=None), or train it with FSDP2 (fully_shard)",
                )
            value = span.of(value.detach()).cpu().clone()
        found[kind] = value
    return span.start, span.size, found


def _joined(span: ShardRange, parts: Sequence[tuple[int, int, State]]) -> State:
    """The state of a whole parameter; raise where ranks do not agree or do not make all of it."""
    if not parts:
        return {}
    ordered = sorted(parts, key=lambda part: part[0])
    ends = [0, *(start + size for start, size, _ in ordered)]
    first = ordered[0][2]
    alike = all(state.keys() == first.keys() for _, _, state in ordered)
    whole = ends[-1] == prod(span.shape) and all(
        start == end for (start, _, _), end in zip(ordered, ends, strict=False)
    )
    if not alike or not whole:
        raise UsageError(
            f"the ranks' parts of the optimizer state of `{span.name}` do not add up to the whole",
            hint="every rank must have updated it: save after a step, outside of summon_full_params",
        )
    found: State = {}
    for kind, value in first.items():
        values = [state[kind] for _, _, state in ordered]
        if getattr(value, "ndim", 0):
            found[kind] = torch.cat(values).reshape(span.shape)
            continue
        if not all(_same(x, value) for x in values):
            raise UsageError(
                f"ranks have different values of `{kind}` of `{span.name}`: {values}",
                hint="step the optimizer on all ranks alike",
            )
        found[kind] = value
    return found


def _counter(value: Any, held: Any, optimizer: Any) -> Any:
    """A state without axes, in memory of its own; torch wants that of fused steps beside the parameter."""
    if not hasattr(value, "clone"):
        return value
    group = next(g for g in optimizer.param_groups if any(p is held for p in g["params"]))
    beside = group.get("capturable") or group.get("fused")
    return value.clone().to(held.device) if beside else value.clone()


def _same(a: Any, b: Any) -> bool:
    if hasattr(a, "dtype") and hasattr(b, "dtype"):
        return equal_bytes(a, b)
    return type(a) is type(b) and repr(a) == repr(b)


def _unlike(one: tuple[str, Any], two: tuple[str, Any], where: str) -> UsageError:
    return UsageError(
        f"`{one[0]}` and `{two[0]}` are parts of one flat parameter of FSDP1, and {where} has"
        f" different optimizer state for them: {one[1]} and {two[1]}",
        hint="wrap with use_orig_params=True, or use FSDP2 (fully_shard)",
    )
