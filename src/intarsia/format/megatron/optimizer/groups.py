"""The parameter groups and the steps of Megatron's optimizers, which its common state keeps.

    optimizer.optimizer.param_groups      one optimizer: settings of each group, and its step
    optimizer.{0,1}.optimizer...          a chain of two, where experts are parallel
    optimizer.distributed.dp_group_idx_0.optimizer/shard_0_1    the same beside buckets
    optimizer.grad_scaler                 the scale of the loss in fp16, a tensor, and its counters

Which parameters a group is for is not written: Megatron's rule tells.  Experts that are parallel have
groups of their own, vectors do not decay, and arguments of the run may add to that.  Groups that came from torch are kept beside, as they
were, since that rule cannot always tell them again.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable, Mapping
from sys import intern
from typing import Any, TypeGuard

from intarsia.dtypes import BY_NAME
from intarsia.errors import FormatError
from intarsia.format.megatron.keys import Key
from intarsia.format.optimizer_state.learning_rates import OVERRIDES
from intarsia.format.optimizer_state.parameter_groups import (
    ParameterGroup,
    ParameterGroups,
    merged_groups,
)
from intarsia.format.torch_file.plain import number_in, plain, wholly_plain
from intarsia.format.torch_file.torch_zip import read_object
from intarsia.layout import Layout
from intarsia.mesh import Box
from intarsia.planning.manifest import Chunk, Logical, Stored
from intarsia.state.names import MASTER, SETTING, STEP, kind_of, parameter_of, step_of

FROM_TORCH = "torch_param_groups"
"""Where the common state keeps groups that came from torch."""

SHARED = re.compile(
    r"^(?:chained_(?P<link>\d{1,9})\.)?optimizer\.distributed\.dp_group_idx_0\.(?P<part>optimizer|grad_scaler)/"
)
"""The objects that hold an optimizer's groups, and the scale of its loss, where its state is in buckets."""

SCALER = "grad_scaler"
_OF_BUCKETS = re.compile(
    r"^(?P<link>(?:chained_\d+\.)?optimizer\.distributed\.dp_group_idx_)\d+"
    r"\.(?:per_bucket_numel\w*|(?P<part>optimizer|grad_scaler))/(?P<shard>.*)$"
)

STEPS = "common state"
"""The file that chunks of steps give: numbers in a pickle are no elements at a place in a file."""

EXPERTS = ".experts.experts."
_ENDS = ("embedding.", "output_layer.")
"""Parameters that Megatron may train at a rate of their own (`--decoupled-lr`)."""

_QK_NORMS = re.compile(r"\.[qk]_layernorm\.")
"""Vectors that Megatron may have decay (`--no-weight-decay-cond-type apply_wd_to_qk_layernorm`)."""

_NUMBER = BY_NAME["F32"]
_OURS = frozenset(
    {
        "wd_mult", "lr_mult", "pre_wd_mult", "pre_lr_mult", "is_expert_parallel", "is_decoupled_lr",
        "default_config", *OVERRIDES, "step", "bias_correction",
    }
)  # fmt: skip
"""Settings that only Megatron's groups have."""

_ADAM = {
    "amsgrad": False, "maximize": False, "foreach": None, "capturable": False,
    "differentiable": False, "fused": None, "decoupled_weight_decay": True,
}  # fmt: skip
"""What torch's AdamW has settings for, and the fused Adam of Megatron always does."""


def optimizer_of(common: Mapping[str, Any], entries: Mapping[str, bytes]) -> dict[Any, Any]:
    """The optimizer's part of a common state, with the groups that lie beside buckets and the step beside groups."""
    said = plain(common.get("optimizer") or {})
    found: dict[Any, Any] = said if isinstance(said, dict) else {}
    for name, data in entries.items():
        if parts := SHARED.match(name):
            held = read_object(data, name)
            if not isinstance(held, list) or len(held) != 1:
                raise FormatError(f"`{name}` is no list of one")
            link = parts["link"]
            into = found if link is None else found.setdefault(int(link), {})
            if not isinstance(into, dict):
                raise FormatError(f"the optimizer's state {link} is no dictionary", at=name)
            # A pickle writes equal keys once where they are one object, as texts in the code are.
            part = intern(parts["part"])
            into[part] = plain(held[0])
            _take_tensors(into, {part: held[0]})
    _take_tensors(found, common.get("optimizer"))
    return found


def repeats(entries: Mapping[str, bytes], name: str) -> bool:
    """Whether an entry only says how buckets are cut, or of another rank what is said of the first."""
    found = _OF_BUCKETS.match(name)
    if found is None or found["part"] is None:
        return found is not None
    first = entries.get(f"{found['link']}0.{found['part']}/{found['shard']}")
    data = entries[name]
    return first is not None and (
        first == data
        or wholly_plain(read_object(first, name)) == wholly_plain(read_object(data, name))
    )


def groups_in(optimizer: Any) -> list[dict[str, Any]]:
    """The parameter groups of an optimizer's state, those of every one in a chain."""
    found: list[dict[str, Any]] = []
    for key, value in optimizer.items() if isinstance(optimizer, dict) else ():
        listed = key == "param_groups" and isinstance(value, list)
        found += [g for g in value if isinstance(g, dict)] if listed else groups_in(value)
    return found


def group_for(
    groups: list[dict[str, Any]], name: str, axes: int, args: Mapping[str, Any] | None = None
) -> int | None:
    """The place of the group that Megatron puts a parameter in; None where that is not one group.

    `args` are those of the run that saved them.
    """
    args = args or {}
    free = is_free(name, axes)
    if args.get("apply_wd_to_qk_layernorm") and _QK_NORMS.search(name):
        free = False
    found = _fitting(groups, EXPERTS in name)
    if len(found) > 1:
        found = [i for i in found if (groups[i].get("wd_mult") == 0.0) == free]
    if len(found) > 1:
        ends = any(word in name for word in _ENDS)
        rate = args.get("decoupled_lr")
        found = [i for i in found if _is_decoupled(groups[i], rate) == ends]
    return found[0] if len(found) == 1 else None


def is_free(name: str, axes: int) -> bool:
    """Whether Megatron exempts a parameter from weight decay, where no argument says otherwise."""
    return axes < 2 or name.endswith(".bias")


def _is_decoupled(group: Mapping[str, Any], rate: Any) -> bool:
    """Whether a group is that of embedding and head; Megatron-core has long known it by its rate alone."""
    return bool(group.get("is_decoupled_lr")) or (rate is not None and group.get("max_lr") == rate)


def _fitting(groups: list[dict[str, Any]], expert: bool) -> list[int]:
    """The groups that may hold an expert's parameters, or any others."""
    # Without expert parallelism, experts are trained with the others.
    expert = expert and any(g.get("is_expert_parallel") for g in groups)
    return [i for i, g in enumerate(groups) if bool(g.get("is_expert_parallel")) == expert]


_MAX_STEP = 1 << 63
"""Beyond it, a number is no count of steps."""


def step_for(groups: list[dict[str, Any]], name: str) -> float | None:
    """The step that a parameter is at, by the groups that may hold it; None where they disagree."""
    fitting = (groups[i].get("step") for i in _fitting(groups, EXPERTS in name))
    steps = {float(step) for step in fitting if _is_step(step)}
    return steps.pop() if len(steps) == 1 else None


def _is_step(step: Any) -> TypeGuard[float]:
    return isinstance(step, int | float) and type(step) is not bool and abs(step) <= _MAX_STEP


def _take_tensors(optimizer: Any, said: Any) -> None:
    """Give groups and scaler what is a tensor of one number, and groups the step that undistributed optimizers keep beside.

    `said` is the optimizer as it is stored, with its tensors.
    """
    if not isinstance(optimizer, dict) or not isinstance(said, dict):
        return
    state, groups = said.get("state"), groups_in({"param_groups": optimizer.get("param_groups")})
    stored = groups_in({"param_groups": said.get("param_groups")})
    pairs = [*zip(groups, stored, strict=False), (optimizer.get(SCALER), said.get(SCALER))]
    for one, other in pairs:
        if isinstance(one, dict) and isinstance(other, dict):
            numbers = {key: number_in(value) for key, value in other.items()}
            one |= {k: x for k, x in numbers.items() if k not in one and type(x) in (int, float)}
    step: Any = number_in(state.get("common_step")) if isinstance(state, dict) else None
    for group in groups if _is_step(step) else ():
        # As Megatron writes it, where it is a whole number.
        group.setdefault("step", int(step) if step == int(step) else step)
    for key, value in optimizer.items():
        _take_tensors(value, said.get(key))


def steps_of(
    groups: list[dict[str, Any]],
    stored: Iterable[Stored],
    logical: Mapping[str, Logical],
    args: Mapping[str, Any],
) -> tuple[dict[str, Stored], bytes]:
    """The step of every parameter that has moments, as torch keeps it, and the bytes that hold them."""

    def step(s: Stored) -> Any:
        found = step_for(groups, s.name)
        if found is None and (group := _group_of(groups, s, logical, args)) is not None:
            return group.get("step")
        return found

    return counters(stored, step)


def counters(
    stored: Iterable[Stored], step_of_state: Callable[[Stored], Any]
) -> tuple[dict[str, Stored], bytes]:
    """A counter for every parameter that has moments, and the bytes that hold them."""
    held: dict[float, int] = {}
    found: dict[str, Stored] = {}
    for s in stored:
        if kind_of(s.name) in ("", MASTER, SETTING, STEP) or not s.layout.tensors:
            continue
        step = step_of_state(s)
        if not _is_step(step):
            continue
        for state in s.layout.tensors:
            name = step_of(parameter_of(state))
            at = held.setdefault(float(step), len(held)) * _NUMBER.itemsize
            chunk = Chunk(Box.whole(()), STEPS, at, _NUMBER.itemsize)
            found[name] = Stored(name, _NUMBER, Layout.of(name, ()), (chunk,), key=name)
    return found, struct.pack(f"<{len(held)}f", *held)


def torch_groups(
    groups: list[dict[str, Any]],
    stored: Iterable[Stored],
    logical: Mapping[str, Logical],
    args: Mapping[str, Any] | None = None,
) -> ParameterGroups | None:
    """Megatron's groups with their members, in torch's terms; None where the rule does not decide."""

    def settings(s: Stored) -> dict[str, Any] | None:
        return _group_of(groups, s, logical, args)

    return groups_by_settings(stored, logical, settings) if groups else None


def _group_of(
    groups: list[dict[str, Any]],
    s: Stored,
    logical: Mapping[str, Logical],
    args: Mapping[str, Any] | None,
) -> dict[str, Any] | None:
    """The group of what is stored: by the axes of the parameter, since states may be stored flat."""
    first = s.layout.tensors[0]
    key = Key.parse(
        parameter_of(first)
    )  # under Megatron's own names axes may count layers and experts
    axes = len(logical[first].shape) - key.stacked - key.of_experts
    place = group_for(groups, s.name, axes, args)
    return None if place is None else groups[place]


def groups_by_settings(
    stored: Iterable[Stored],
    logical: Mapping[str, Logical],
    settings: Callable[[Stored], Mapping[str, Any] | None],
) -> ParameterGroups | None:
    """The parameters that have moments, put together by their settings; None where some are unknown."""
    trained = {
        parameter_of(name) for name in logical if kind_of(name) not in ("", MASTER, STEP, SETTING)
    }
    found: list[ParameterGroup] = []
    for s in stored:
        members = tuple(name for name in s.layout.tensors if name in trained)
        if not members:
            continue
        fields = settings(s)
        if fields is None:
            return None
        found.append(ParameterGroup(members, _fields_of_torch(fields)))
    return ParameterGroups(merged_groups(found)) if found else None


def _fields_of_torch(group: Mapping[str, Any]) -> dict[str, Any]:
    fields = {k: v for k, v in group.items() if k not in _OURS}
    if {"betas", "eps"} <= fields.keys():
        fields = {k: v for k, v in _ADAM.items() if k not in fields} | fields
    return fields
