"""The objects beside the tensors of a DCP checkpoint, under one spelling.

Parameter groups that give numbers are written again with names, once it is known what those mean; a
list of groups that torch saved as one object is read field by field.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from intarsia.format.dcp.metadata import Metadata
from intarsia.format.naming.sections import GIVEN, Sections
from intarsia.format.torch_file.plain import DROPPED, all_plain, plain
from intarsia.format.torch_file.torch_frame import write_object
from intarsia.format.torch_file.torch_zip import read_object
from intarsia.planning.manifest import Entry
from intarsia.state.names import TORCH_GROUPS, is_state
from intarsia.store.reading.folder import Folder

_ROOT = TORCH_GROUPS.removesuffix(".")
_STATE = re.compile(r"(?<![^.])state\.")
_PART = re.compile(r"(?<![^.])(?:state\.|param_groups$)")
_MEMBERS = re.compile(re.escape(TORCH_GROUPS) + r"\d+\.(?P<field>params|param_names)$")


def with_given(metadata: Metadata) -> Metadata:
    """With the values of an optimizer's state dict that is a part of a saved dict, under torch's names."""
    given = {n.removeprefix(GIVEN): o for n, o in metadata.objects.items() if n.startswith(GIVEN)}
    parts = {name: at for name in given if (at := _PART.search(name))}
    if not parts:
        return metadata
    roots = {name[: at.start()] for name in metadata.tensors for at in _STATE.finditer(name)}
    torchs = {
        root
        for root in roots
        for name in metadata.objects
        if name.startswith(f"{root}param_groups")
    }
    found = {
        name: replace(given[name], name=name)
        for name, at in parts.items()
        if name[: at.start()] in roots - torchs
    }
    return replace(metadata, objects=found | metadata.objects)


def entries_of(
    folder: Folder, metadata: Metadata, sections: Sections, numbers: Mapping[str, str]
) -> tuple[dict[str, Entry], dict[str, bytes]]:
    """The objects by name, and the bytes of those that no file holds as such."""
    found: dict[str, Entry] = {}
    in_memory: dict[str, bytes] = {}

    def add(name: str, value: Any) -> None:
        file = f"<{name}>"
        in_memory[file] = write_object(value)
        found[name] = Entry(name, file, 0, len(in_memory[file]))

    beside = {*metadata.objects, *sections.names.values()}
    for o in metadata.objects.values():
        name = sections.entry(o.name)
        if name is None:
            continue
        if name in beside and not is_state(name):
            name = o.name  # what has no section has that name
        param, _, field = name.removeprefix(TORCH_GROUPS).rpartition(".")
        if name.startswith(TORCH_GROUPS) and param in numbers and not param.isdecimal():
            name = f"{TORCH_GROUPS}{numbers[param]}.{field}"
        members = _MEMBERS.match(name)
        if name == _ROOT or (members and numbers):
            data = folder.read_small(*o.place)
            value = read_object(data, o.name)
            fields = {name: plain(value)} if members else _fields(value)
            for key, each in fields.items():
                if not (numbers and key.endswith(".param_names")):
                    add(key, _by_name(each, numbers) if key.endswith(".params") else each)
            if fields:
                continue
        found[name] = replace(o, name=name)
    return found, in_memory


def _fields(groups: Any) -> dict[str, Any]:
    """The fields of a list of groups; none where one of them is no plain value."""
    found: dict[str, Any] = {}
    for number, group in enumerate(groups if isinstance(groups, list) else ()):
        kept: Any = all_plain(group) if isinstance(group, dict) else {}
        if kept is DROPPED or not kept:
            return {}
        found |= {f"{_ROOT}.{number}.{field}": value for field, value in kept.items()}
    return found


def _by_name(members: Any, numbers: Mapping[str, str]) -> Any:
    if not isinstance(members, list):
        return members
    return [numbers.get(str(each), each) for each in members]
