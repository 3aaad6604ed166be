"""Settings that are tensors, which one side stores once for a group and the other for each parameter of it."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence

from intarsia.checkpoint import Checkpoint
from intarsia.errors import IntarsiaError
from intarsia.format.optimizer_state.parameter_groups import MEMBERS
from intarsia.format.registry import folder_of
from intarsia.format.torch_file.torch_zip import read_object
from intarsia.state.names import TORCH_GROUPS

_OF_GROUP = re.compile(re.escape(TORCH_GROUPS) + r"(?P<number>\d+)\.(?P<key>.+)", re.S)


def settings_by_parameter(
    grouped: Checkpoint, alone: Sequence[str], others: Collection[str]
) -> Iterator[tuple[str, str]]:
    """The names of settings of groups, each with those among `others` that say the same of its parameters."""
    there = {*others}
    for name in alone:
        if (found := _OF_GROUP.fullmatch(name)) is None:
            continue
        said = [
            f"{TORCH_GROUPS}{member}.{found['key']}"
            for member in _members(grouped, found["number"])
        ]
        if said and there.issuperset(said):
            yield from ((name, each) for each in said)


def _members(checkpoint: Checkpoint, number: str) -> list[str]:
    """The parameters of a group; none where the checkpoint does not name them."""
    entry = checkpoint.manifest.entries.get(f"{TORCH_GROUPS}{number}.{MEMBERS}")
    if entry is None:
        return []
    with folder_of(checkpoint.manifest) as folder:
        try:
            found = read_object(folder.read_small(*entry.place), entry.name)
        except IntarsiaError:
            return []  # reported where entries are compared
    texts = isinstance(found, list) and {*map(type, found)} <= {str}
    return found if texts else []
