"""Optimizer state that is numbered, not named: which parameter each number means.

    optimizer.state.7.exp_avg                 the state of parameter 7, wherever that is
    optimizer.param_groups.0.params           the numbers of a group
    optimizer.param_groups.0.param_names      their names, where torch was given them

torch numbers parameters as its optimizer was given them.  Without names, one order is certain: that of
a single group with every parameter of the model, whose section of the checkpoint is in the same order.
The shapes of all states must then be those of their parameters.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from intarsia.errors import FormatError, few
from intarsia.format.dcp.metadata import Metadata
from intarsia.format.torch_file.plain import plain
from intarsia.format.torch_file.torch_zip import read_object
from intarsia.frozen import frozen
from intarsia.mesh import Shape
from intarsia.store.reading.folder import Folder

_LIST = re.compile(r"^param_groups\.(?P<group>\d+)\.(?P<field>params|param_names)$")
_BUFFERS = (
    "expert_bias", "_extra_state", "local_tokens_per_expert", "inv_freq", "running_mean",
    "running_var", "num_batches_tracked",
)  # fmt: skip


@frozen
class NumberedState:
    """A state that belongs to a number."""

    key: str
    number: str
    shape: Shape


def parameters_by_number(
    states: Iterable[NumberedState],
    groups: Sequence[Mapping[str, Any]],
    order: Mapping[str, Shape],
    named: Callable[[str], str],
    tied: Collection[str] = (),
    beside: Collection[str] = (),
) -> dict[str, str]:
    """The parameter of every number; raise where that cannot be known.

    `order` are the model's floating-point tensors in the order of its state dict, `named` gives the
    model's own name for one in `param_names`, `tied` need not be parameters of their own, nor need single
    numbers that were saved `beside` the model: a matrix there may be another one of the optimizer's.
    """
    numbers = {number: named(name) for number, name in names_of_numbers(groups).items()}
    numbers = numbers or _by_order(groups, order, tied, beside)
    for state in states:
        name = numbers.get(state.number)
        if name is None or name not in order:
            raise FormatError(
                f"`{state.key}` has no parameter among {len(order)} of the model",
                tensors=(state.key,),
            )
        if state.shape and state.shape != order[name]:
            raise FormatError(
                f"`{state.key}` has shape {list(state.shape)}, the model's parameter of that"
                f" number, `{name}`, {list(order[name])}",
                tensors=(state.key,),
            )
    return numbers


def group_lists(folder: Folder, metadata: Metadata, root: str) -> list[dict[str, Any]]:
    """The members of each group of an optimizer, by number and by name as far as they are known."""
    found: dict[int, dict[str, Any]] = {}
    for o in metadata.objects.values():
        if not o.name.startswith(root):
            continue
        rest = o.name[len(root) :]
        parts = _LIST.match(rest)
        if parts is None and rest != "param_groups":
            continue
        value = plain(read_object(folder.read_small(*o.place), o.name))
        if parts and isinstance(value, list):
            found.setdefault(int(parts["group"]), {})[parts["field"]] = value
        elif isinstance(value, list) and all(isinstance(group, dict) for group in value):
            return value
    return [found[k] for k in sorted(found)]


def is_buffer(name: str) -> bool:
    """Whether a tensor of floating point has a name that only buffers have."""
    return name.endswith(_BUFFERS)


def names_of_numbers(groups: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The names that the groups give their numbers; none where one group gives none."""
    if any(len(g.get("param_names") or ()) != len(g.get("params") or ()) for g in groups):
        return {}
    return {
        str(number): str(name)
        for group in groups
        for number, name in zip(
            group.get("params") or (), group.get("param_names") or (), strict=True
        )
    }


def _by_order(
    groups: Sequence[Mapping[str, Any]],
    order: Mapping[str, Shape],
    tied: Collection[str],
    beside: Collection[str],
) -> dict[str, str]:
    """The numbers of one group of all parameters, in the order of the model's section."""
    if len(groups) != 1:
        raise FormatError(
            f"{len(groups)} parameter groups give numbers, and none gives `param_names`"
        )
    numbers = groups[0].get("params") or []
    ordered = [name for name in order if not is_buffer(name)]
    own = [name for name in ordered if name not in beside or order[name]]
    for every in (ordered, own):
        for names in ([name for name in every if name not in tied], every):
            if numbers == [*range(len(names))]:
                return {str(number): name for number, name in enumerate(names)}
    more = [name for name in own if name in beside]
    counted = f", counting {few(more)}, saved beside it (--section leaves that out)" if more else ""
    raise FormatError(
        f"the parameter group has {len(numbers)} numbers and no `param_names`, the model has"
        f" {len(own)} parameters{counted}"
    )
