"""The settings of an optimizer's parameter groups: every key of each, by the names of its parameters.

A setting that is a tensor (a learning rate, say) is a tensor of the checkpoint, as torch stores it; one that has
tensors in it (betas, say) is an object.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from intarsia.errors import CoverageError, UsageError
from intarsia.family import Param
from intarsia.format.naming.wrappers import bare
from intarsia.format.optimizer_state.parameter_groups import (
    MEMBERS,
    ParameterGroup,
    ParameterGroups,
    different_fields,
    merged_groups,
    nested,
)
from intarsia.live.entries import check_nesting
from intarsia.live.model.module_state import of_numbers
from intarsia.live.optimizer.classes import check_class, fixed_settings
from intarsia.live.optimizer.named import NamedOptimizer
from intarsia.live.optimizer.several import each_of, held_by
from intarsia.live.optimizer.state import tensors_of
from intarsia.live.optimizer.tensor_settings import Settling, in_order, is_storable
from intarsia.state.names import TORCH_GROUPS

_NAMES = "param_names"
_NO_SETTINGS = (MEMBERS, _NAMES)


def settings_by_name(optimizer: NamedOptimizer) -> Iterator[tuple[str, Any]]:
    """Every setting of an optimizer's groups under its name in a checkpoint, with the names of their parameters."""
    names: dict[int, list[str]] = {}
    for each in optimizer.members:
        names.setdefault(each.group, []).append(bare(each.name))
    for number, group in enumerate(optimizer.settings.param_groups):
        members = names.get(number, [])
        # torch asks for the names where an optimizer was given them.
        for key in (MEMBERS, _NAMES) if _NAMES in group else (MEMBERS,):
            yield f"{TORCH_GROUPS}{number}.{key}", members
        yield from settings_in(number, group)


def settings_in(number: int, group: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Every setting of a group under its name in a checkpoint."""
    for key, value in group.items():
        if key not in _NO_SETTINGS:
            name = f"{TORCH_GROUPS}{number}.{key}"
            _check_storable(key, value, name)
            yield name, value


def _check_storable(key: Any, value: Any, name: str) -> None:
    if not isinstance(key, str) or not key.replace("_", "a").isalnum():
        raise UsageError(
            f"a setting of the optimizer has the name {key!r}",
            hint="use letters, digits and underscores",
        )
    if isinstance(value, torch.Tensor):
        of_numbers(value, name)
        return
    check_nesting([value], f"`{name}`")
    if not is_storable(value):
        raise UsageError(
            f"`{name}` is {value!r} of type {type(value).__name__}, which a checkpoint does not hold",
            hint="make it of numbers, text, tensors, and lists, tuples and dicts of these",
        )


def agreed_groups(
    optimizer: NamedOptimizer, rows: Mapping[str, Param], groups: ParameterGroups | None
) -> list[Mapping[str, Any] | None]:
    """For each group of an optimizer the settings that all of its parameters were stored with.

    None where nothing was stored; raise where parameters of one group were stored with unlike settings.
    """
    stored_groups = [
        ParameterGroup(
            g.members, nested({k: v for k, v in g.fields.items() if k not in _NO_SETTINGS})
        )
        for g in (groups.each if groups else ())
    ]
    each = merged_groups(stored_groups)
    of: dict[str, list[int]] = {}
    for k, group in enumerate(each):
        for n in dict.fromkeys(group.members):
            of.setdefault(n, []).append(k)
    held: dict[int, dict[int, list[str]]] = {}
    for param in optimizer.members:
        names = (*tensors_of(param.name, rows), bare(param.name))
        for k in {k for n in names for k in of.get(n, ())}:
            held.setdefault(param.group, {}).setdefault(k, []).append(bare(param.name))
    found: list[Mapping[str, Any] | None] = []
    count = len(optimizer.settings.param_groups)
    for number, mine in enumerate(optimizer.settings.param_groups):
        stored = held.get(number, {})
        if len(stored) > 1:
            raise _regrouped(number, each, held, count)
        fields = each[next(iter(stored))].fields if stored else None
        if not mine["params"] and len(stored_groups) == count:
            # No parameter says which group it is; the place among as many groups does.
            fields = stored_groups[number].fields
        found.append(fields and {k: in_order(x, mine.get(k), k) for k, x in fields.items()})
    _check_fixed(found, optimizer.settings)
    return found


def check_classes(
    stored: str | Sequence[str] | None,
    optimizer: NamedOptimizer,
    rows: Mapping[str, Param],
    groups: ParameterGroups | None,
    where: str,
) -> None:
    """Raise where a parameter was stepped by another class than now; several classes are stored by group."""
    if stored is None or isinstance(stored, str):
        for one in each_of(optimizer.held):
            check_class(stored, one, where)
        return
    each = groups.each if groups else ()
    if len(stored) != len(each):
        raise CoverageError(
            f"{where} names the classes of {len(stored)} parameter groups, and has {len(each)}",
            hint="the checkpoint lost some: use another",
        )
    of = {
        member: name for group, name in zip(each, stored, strict=True) for member in group.members
    }
    for param in optimizer.steps:
        for name in (*tensors_of(param.name, rows), bare(param.name)):
            check_class(of.get(name), held_by(optimizer.held, param.group), where)


def _check_fixed(agreed: Iterable[Mapping[str, Any] | None], optimizer: Any) -> None:
    """Raise where a setting that a class decides itself was stored with another value."""
    for number, fields in enumerate(agreed):
        one = held_by(optimizer, number)
        for key, value in fixed_settings(one).items():
            if fields is not None and key in fields and fields[key] != value:
                raise UsageError(
                    f"the checkpoint's groups have {key}={fields[key]!r}, and a"
                    f" {type(one).__name__} always has {value!r}: it was saved by another optimizer",
                    hint='make the optimizer that was saved, or load with hyperparameters="mine"',
                )


def _regrouped(
    number: int,
    each: Sequence[ParameterGroup],
    held: Mapping[int, Mapping[int, list[str]]],
    count: int,
) -> UsageError:
    """Both groupings, the checkpoint's and the optimizer's."""
    lines = [
        f"group {number} of the optimizer holds parameters that were stored with different settings"
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
    """Set every setting that was stored, also those that a group lacked; remarks on what was not."""
    notes, settling = [], Settling()
    for number, (mine, found) in enumerate(zip(optimizer.param_groups, agreed, strict=True)):
        if found is None:
            notes.append(f"no hyperparameters were stored for group {number} of the optimizer")
            continue
        kept = [str(key) for key in mine if key not in found and key not in _NO_SETTINGS]
        if kept:
            notes.append(f"group {number} of the optimizer keeps its own {', '.join(kept)}")
        for key, value in found.items():
            mine[key] = settling.alike(mine.get(key), value)
    return notes


def check_settings(
    agreed: Sequence[Mapping[str, Any] | None], optimizer: Any, where: str, *, strict: bool
) -> list[str]:
    """The groups of whose settings nothing was stored; raise where there are, unless that is allowed."""
    held = zip(agreed, optimizer.param_groups, strict=True)
    lost = [str(k) for k, (found, mine) in enumerate(held) if found is None and mine["params"]]
    if lost and strict:
        raise CoverageError(
            f"{where} has no hyperparameters (lr and the like) for group {', '.join(lost)} of"
            " the optimizer",
            hint='load with hyperparameters="mine" to keep those that the optimizer has',
        )
    return lost
