"""The parameter groups that Megatron asks for, out of those that a source has.

Megatron tells its groups apart by few settings: what would meet in one of them, and is trained in two ways, is
refused."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from intarsia.errors import FormatError, UsageError
from intarsia.format.megatron.optimizer.groups import EXPERTS, SCALER, groups_in, is_free
from intarsia.format.optimizer_state.learning_rates import OVERRIDES
from intarsia.format.optimizer_state.parameter_groups import (
    ParameterGroup,
    ParameterGroups,
    different_fields,
    merged_groups,
)

Row = tuple[str, int, str]
"""A parameter: Megatron's name, the number of axes, and a logical tensor of it."""


def as_megatron(
    groups: ParameterGroups | None, rows: Iterable[Row], step: int | None, chained: bool
) -> dict[Any, Any]:
    """The optimizer's part of the common state, with a group for every kind of parameter there is.

    Raise where groups of torch's that have unlike settings meet in one of Megatron's.
    """
    links: dict[bool, list[dict[str, Any]]] = {}
    for (expert, free), fields in sorted(_by_kind(groups, rows, chained).items()):
        fields |= {"wd_mult": 0.0 if free else 1.0, "lr_mult": 1.0}
        fields |= {"is_expert_parallel": expert, "is_decoupled_lr": False, "default_config": True}
        if step is not None:
            fields["step"] = step
        links.setdefault(expert, []).append(fields)
    chain = [{"optimizer": {"param_groups": links[expert]}} for expert in sorted(links)]
    return chain[0] if len(chain) == 1 else dict(enumerate(chain))


Kind = tuple[bool, bool]
"""Whether a parameter is of a parallel expert, and whether Megatron exempts it from weight decay."""


def _by_kind(
    groups: ParameterGroups | None, rows: Iterable[Row], chained: bool
) -> dict[Kind, dict[str, Any]]:
    """The settings of every kind of parameter, which all groups of torch's with such members share."""
    each = merged_groups(groups.each) if groups else ()
    of = {m: k for k, group in enumerate(each) for m in group.members}
    held: dict[Kind, dict[int, list[str]]] = {}
    for name, axes, member in rows:
        kind = (chained and EXPERTS in name, is_free(name, axes))
        places = held.setdefault(kind, {})
        # A parameter of no group is not trained; a single group needs no list of members.
        place = 0 if len(each) == 1 else of.get(member)
        if place is not None:
            places.setdefault(place, []).append(member)
    if len(each) > 1 and not any(held.values()):
        raise FormatError(
            f"the optimizer has {len(each)} parameter groups, and nothing says which parameters"
            " they hold",
            hint=_ELSEWHERE,
        )
    unlike = {kind: places for kind, places in held.items() if len(places) > 1}
    if unlike:
        raise UsageError(_unlike(each, unlike), hint=_ELSEWHERE)
    kinds = [kind for kind, places in held.items() if places or not each]
    return {kind: dict(each[next(iter(held[kind]))].fields) if each else {} for kind in kinds}


_ELSEWHERE = (
    "convert to hf, dcp or fsdp_dtensor, which keep the settings of each parameter, or take only"
    " the weights with --optimizer drop"
)


def _unlike(
    each: tuple[ParameterGroup, ...], unlike: Mapping[Kind, Mapping[int, list[str]]]
) -> str:
    """Both groupings: torch's, and the groups of Megatron's in which they meet."""
    lines = ["parameter groups with different settings would share one Megatron group: Megatron"]
    lines[0] += " groups parameters only by weight decay and expert parallelism"
    fields = [different_fields(each, g) for g in each]
    lines += [
        f"  the source's group {k}: {len(g.members)} tensors, {fields[k]}"
        for k, g in enumerate(each)
    ]
    for (expert, free), places in unlike.items():
        what = ("vectors and biases" if free else "matrices") + (" of experts" if expert else "")
        met = ", ".join(f"{len(m)} of group {k} ({m[0]})" for k, m in sorted(places.items()))
        lines.append(f"  Megatron's group of {what}: {met}")
    return "\n".join(lines)


def chained_as(optimizer: dict[Any, Any], rows: Iterable[Row], chained: bool) -> dict[Any, Any]:
    """An optimizer's part of the common state as a run has it in which experts are parallel, or are not.

    Parallel experts are trained by an optimizer of their own, the second of a chain.
    """
    groups = groups_in(optimizer)
    apart = any(g.get("is_expert_parallel") for g in groups)
    wanted = {is_free(name, axes) for name, axes, _ in rows if chained and EXPERTS in name}
    if not groups or apart == bool(wanted):
        return optimizer
    if wanted:
        held = (g for g in groups if (g.get("wd_mult") == 0.0) in wanted)
        experts = [g | {"is_expert_parallel": True} for g in held]
        # Each of a chain divides its gradients by a scale of its own, and the loss is multiplied by the first's.
        scaler = {key: optimizer[key] for key in (SCALER,) if key in optimizer}
        return {0: optimizer, 1: {"optimizer": {"param_groups": experts}, **scaler}}
    if sorted(optimizer, key=str) != [0, 1]:
        return optimizer
    found: dict[str, dict[str, Any]] = {}
    for group in groups:
        alike = group | {"is_expert_parallel": False}
        kept = found.setdefault(_identity(group) + repr([*map(group.get, OVERRIDES)]), alike)
        if repr(sorted(kept.items())) != repr(sorted(alike.items())):
            raise UsageError(
                "expert-parallel experts are trained with other settings than the rest, and"
                " without expert parallelism Megatron has one group for both\n  the rest:"
                f" {kept}\n"
                f"  experts: {group}",
                hint="keep expert parallelism with --mesh ep=2 or more, or use --optimizer drop",
            )
    together: dict[Any, Any] = dict(optimizer[0])
    together["optimizer"] = together["optimizer"] | {"param_groups": list(found.values())}
    return together


def _identity(group: Mapping[str, Any]) -> str:
    """The settings by which every Megatron distinguishes groups, except whether experts are parallel."""
    return repr([group.get(key) for key in ("wd_mult", "lr_mult", "is_decoupled_lr")])


def check_distinguishable(groups: Sequence[Mapping[str, Any]]) -> None:
    """Raise where groups have different settings that Megatron cannot distinguish."""
    found: dict[str, Mapping[str, Any]] = {}
    for group in groups:
        same = f"{_identity(group)} {bool(group.get('is_expert_parallel'))}"
        other = found.setdefault(same, group)
        unlike = [k for k in group if repr(group[k]) != repr(other.get(k))]
        if unlike:
            raise UsageError(
                "two groups of parameters differ in "
                + ", ".join(f"{k} ({other.get(k)!r} and {group[k]!r})" for k in unlike)
                + ", and in torch_dist Megatron-core before 0.19 distinguishes groups only by wd_mult, lr_mult and experts",
                hint=_ELSEWHERE,
            )
