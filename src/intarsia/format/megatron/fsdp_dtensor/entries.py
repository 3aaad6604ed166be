"""What a Megatron-FSDP checkpoint carries beside its tensors, and where `torch_dist` keeps it.

Arguments, counters, parameter groups and random states are objects of DCP, one per value; the
tensors of a random state are carried as the archives that they are stored in.  `torch_dist`
keeps the same things in one common state.  Nothing here is executed.
"""

from __future__ import annotations

import re
from argparse import Namespace
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from intarsia.errors import FormatError
from intarsia.format.dcp.metadata import Metadata
from intarsia.format.megatron.common import arguments_of, common_in
from intarsia.format.megatron.frame import COUNTERS, SCHEDULER
from intarsia.format.megatron.fsdp_dtensor.keys import group_of, section_of
from intarsia.format.megatron.optimizer.groups import counters, groups_by_settings
from intarsia.format.optimizer_state.parameter_groups import PARAMETERS_GROUP, ParameterGroups
from intarsia.format.torch_file.plain import number_in, plain
from intarsia.format.torch_file.torch_zip import Payload, read_object, read_payload
from intarsia.planning.manifest import Entry, Logical, Stored
from intarsia.state.names import parameter_of, step_of
from intarsia.store.reading.folder import Folder

_RANDOM = re.compile(r"^rng_state\.(?P<place>\([^)]*\))\.(?P<index>\d{1,9})\.(?P<rest>.+)$")
_NESTED = re.compile(
    r"^(?P<root>optimizer)\.(?P<part>state|param_to_group_meta)\.(?P<name>.+)\.(?P<leaf>\w+)$"
)


def is_entry(name: str) -> bool:
    """Whether a stored tensor belongs to no model and no optimizer."""
    return not name.startswith(("model.", "optimizer.state."))


def entries_of(metadata: Metadata) -> dict[str, Entry]:
    """The objects, and the tensors of random states, as bytes of their files."""
    found = dict(metadata.objects)
    for record in metadata.tensors.values():
        if is_entry(record.name) and len(record.chunks) == 1:
            (chunk,) = record.chunks
            found[record.name] = Entry(
                record.name, chunk.file, chunk.start_bytes, chunk.length_bytes
            )
    return found


def saved_arguments(folder: Folder, metadata: Metadata) -> Mapping[str, Any]:
    """The arguments of the run that saved a checkpoint; empty where it holds none."""
    found = metadata.objects.get("args")
    if found is None:
        return {}
    data = folder.read_small(*found.place)
    return arguments_in(data, f"{folder.root / found.file} (`args`)")


def arguments_in(data: bytes, where: str = "args") -> Mapping[str, Any]:
    """The fields of an `args` entry."""
    return arguments_of({"args": read_object(data, where)})


def arguments_among(entries: Mapping[str, bytes]) -> dict[str, Any]:
    """The arguments that entries hold, in an object of their own or in the common state, as plain values."""
    args = arguments_in(entries["args"]) if "args" in entries else arguments_of(common_in(entries))
    return dict(plain(args))


def plain_entries(entries: Mapping[str, bytes]) -> dict[str, Any]:
    """The entries that are numbers, texts or containers of them, ready for JSON."""
    found = {}
    for name, data in entries.items():
        try:
            value = plain(number_in(read_object(data, name)))
        except FormatError:
            continue
        if type(value) in (type(None), bool, int, float, str, list, tuple, dict):
            found[name] = value
    return found


def tensor_in(name: str, data: bytes) -> Payload | None:
    """The tensor that an entry is; only random states, counters and settings are carried as such."""
    if not name.startswith(("rng_state.", "optimizer.state.", PARAMETERS_GROUP)):
        return None
    try:
        return read_payload(lambda start, size: data[start : start + size], len(data), name)
    except FormatError:
        return None


def path_of(name: str) -> tuple[str | int, ...]:
    """The path in the nested state dict that DCP flattens to a name.

    >>> path_of("rng_state.(0, 1).0.rng_tracker_states.model-parallel-rng")
    ('rng_state', '(0, 1)', 0, 'rng_tracker_states', 'model-parallel-rng')
    """
    if name.startswith("model."):
        return ("model", name.removeprefix("model."))
    if found := _NESTED.match(name):
        return (found["root"], found["part"], found["name"], found["leaf"])
    if found := _RANDOM.match(name):
        return ("rng_state", found["place"], int(found["index"]), *found["rest"].split("."))
    if name.startswith(f"{SCHEDULER}."):
        return (SCHEDULER, name.removeprefix(f"{SCHEDULER}."))
    return (name,)


def common_of(entries: Mapping[str, bytes]) -> dict[str, Any]:
    """The common state of `torch_dist` that entries of Megatron-FSDP amount to."""
    state: dict[str, Any] = {}
    if "args" in entries:
        state["args"] = Namespace(**plain(arguments_in(entries["args"])))
    held = plain_entries({k: v for k, v in entries.items() if k != "args"})
    state |= {name: held[name] for name in COUNTERS if name in held}
    start = f"{SCHEDULER}."
    scheduler = {k.removeprefix(start): v for k, v in held.items() if k.startswith(start)}
    if scheduler:
        state[SCHEDULER] = scheduler
    groups = _groups(held)
    experts = [g for g in groups if g.get("is_expert_parallel")]
    dense = [g for g in groups if not g.get("is_expert_parallel")]
    chain = [{"optimizer": {"param_groups": part}} for part in (dense, experts) if part]
    if chain:
        state["optimizer"] = chain[0] if len(chain) == 1 else dict(enumerate(chain))
    return state


def _of_param(held: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The settings of every parameter's group."""
    of_param: dict[str, dict[str, Any]] = {}
    for name, value in held.items():
        if found := group_of(name):
            of_param.setdefault(found[0], {})[found[1]] = value
    return of_param


def groups_by_parameter(
    entries: Mapping[str, bytes], stored: Iterable[Stored], logical: Mapping[str, Logical]
) -> ParameterGroups | None:
    """The groups in torch's terms; None where the entries do not tell every parameter's."""
    held = _of_param(plain_entries({n: d for n, d in entries.items() if group_of(n)}))

    def settings(s: Stored) -> dict[str, Any] | None:
        name = _parameter(s)
        return None if name is None else held.get(name)

    return groups_by_settings(stored, logical, settings) if held else None


def _parameter(s: Stored) -> str | None:
    section = section_of(s.key)
    return section.parameter if section else None


def steps_in_groups(
    folder: Folder, metadata: Metadata, stored: Mapping[str, Stored]
) -> tuple[dict[str, Stored], bytes]:
    """The steps of parameters that have none of their own: TransformerEngine's Adam counts by group."""
    said = {
        of[0]: x for n, x in entries_of(metadata).items() if (of := group_of(n)) and of[1] == "step"
    }

    @cache  # each of a parameter's moments asks
    def number(parameter: str) -> Any:
        entry = said[parameter]
        return plain(number_in(read_object(folder.read_small(*entry.place), entry.name)))

    def step(s: Stored) -> Any:
        parameter = _parameter(s)
        if parameter is None or parameter not in said:
            return None
        counted = any(step_of(parameter_of(n)) in stored for n in s.layout.tensors)
        return None if counted else number(parameter)

    return counters(stored.values(), step)


def _groups(held: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The different groups of parameters, each once, those whose weights decay first.

    Megatron-FSDP has one optimizer for all; `torch_dist` keeps the experts' groups apart.
    """
    groups: list[dict[str, Any]] = []
    for name, fields in _of_param(held).items():
        expert = {"is_expert_parallel": True} if ".experts.experts." in name else {}
        ordered = dict(sorted((fields | expert).items()))
        if ordered not in groups:
            groups.append(ordered)
    return sorted(groups, key=lambda group: not group.get("wd_mult"))
