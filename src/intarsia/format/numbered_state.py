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
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from intarsia.errors import FormatError
from intarsia.format.dcp_metadata import Metadata, TensorRecord
from intarsia.format.megatron_common import plain
from intarsia.format.megatron_fsdp_keys import Section, section_of
from intarsia.format.torch_zip import read_object
from intarsia.store.local import Folder

_LIST = re.compile(r"^optimizer\.param_groups\.(?P<group>\d+)\.(?P<field>params|param_names)$")
_BUFFERS = ("expert_bias", "_extra_state", "local_tokens_per_expert", "inv_freq")


def is_numbered(section: Section | None) -> bool:
    """Whether a state belongs to a number."""
    return section is not None and bool(section.kind) and section.name.isdecimal()


def parameters_by_number(folder: Folder, metadata: Metadata) -> dict[str, str]:
    """The parameter of every number that has state; raise where that cannot be known."""
    states = dict(_numbered(metadata.tensors))
    if not states:
        return {}
    lists = _lists(folder, metadata)
    names = _named(lists) or _in_order(lists, metadata)
    shapes = {
        section.name: record.shape
        for record in metadata.tensors.values()
        if (section := section_of(record.name)) and not section.kind
    }
    for record, section in states.values():
        name = names.get(section.name)
        if name not in shapes:
            raise FormatError(f"`{record.name}` has no parameter among {len(shapes)} of the model")
        if record.shape and record.shape != shapes[name]:
            raise FormatError(
                f"`{record.name}` has shape {list(record.shape)}, the model's parameter of that"
                f" number, `{name}`, {list(shapes[name])}"
            )
    return names


def _numbered(
    tensors: Mapping[str, TensorRecord],
) -> Iterator[tuple[str, tuple[TensorRecord, Section]]]:
    for name, record in tensors.items():
        section = section_of(name)
        if section is not None and is_numbered(section):
            yield name, (record, section)


def _lists(folder: Folder, metadata: Metadata) -> dict[int, dict[str, list[Any]]]:
    """What the groups say of their parameters."""
    found: dict[int, dict[str, list[Any]]] = {}
    for o in metadata.objects.values():
        if parts := _LIST.match(o.name):
            data = folder.read_small(o.file, o.start_bytes, o.length_bytes)
            value = plain(read_object(data, o.name))
            if isinstance(value, list):
                found.setdefault(int(parts["group"]), {})[parts["field"]] = value
    return found


def _named(lists: Mapping[int, Mapping[str, list[Any]]]) -> dict[str, str]:
    """The numbers by the names that the groups give; none where one group gives none."""
    found: dict[str, str] = {}
    for group in lists.values():
        numbers, names = group.get("params", []), group.get("param_names")
        if names is None or len(names) != len(numbers):
            return {}
        for number, name in zip(numbers, names, strict=True):
            section = section_of(f"model.{name}")
            found[str(number)] = section.name if section else str(name)
    return found


def _in_order(lists: Mapping[int, Mapping[str, list[Any]]], metadata: Metadata) -> dict[str, str]:
    """The numbers of one group of all parameters, in the order of the model's section."""
    groups = [group.get("params", []) for group in lists.values()]
    if len(groups) != 1:
        raise FormatError(
            f"{len(groups)} parameter groups give numbers, and none gives `param_names`"
        )
    ordered = _ordered(metadata)
    if groups[0] != [*range(len(ordered))]:
        raise FormatError(
            f"the parameter group has {len(groups[0])} numbers and no `param_names`, the model"
            f" {len(ordered)} parameters"
        )
    return {str(number): name for number, name in enumerate(ordered)}


def _ordered(metadata: Metadata) -> Sequence[str]:
    """The model's parameters in the order of its state dict, which the saved paths have."""
    found = []
    for name in metadata.paths:
        section = section_of(name)
        record = metadata.tensors.get(name)
        if section is None or section.kind or record is None or not record.dtype.floating:
            continue
        if not section.name.endswith(_BUFFERS):
            found.append(section.name)
    return found
