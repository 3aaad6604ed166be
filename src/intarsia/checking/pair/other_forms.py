"""State that one side stores as tensors, and the other in another form.

Steps may be plain numbers: of parameters, as torch before 1.12 and bitsandbytes have them, or of groups, as the
Adam of TransformerEngine and of Apex do.  Settings may be stored once for a group, or for each parameter of it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence

from intarsia.checkpoint import Checkpoint
from intarsia.errors import IntarsiaError
from intarsia.format.optimizer_state.parameter_groups import MEMBERS
from intarsia.format.registry import folder_of
from intarsia.format.torch_file.plain import number_in
from intarsia.format.torch_file.torch_zip import read_object
from intarsia.mesh import Box
from intarsia.planning.manifest import Entry
from intarsia.state.names import STEP, TORCH_GROUPS, StateName, kind_of, parameter_of, state_among
from intarsia.value.bits import as_float64, bits_dtype

_OF_GROUP = re.compile(re.escape(TORCH_GROUPS) + r"(?P<number>\d+)\.(?P<key>.+)", re.S)


def steps_in_numbers(lacking: Checkpoint, having: Checkpoint, names: Sequence[str]) -> list[str]:
    """The steps among `names` that plain numbers of the side which lacks them are, too.

    A number counts for the parameter that its key names; where all are one, as those of groups are, for every one.
    """
    steps = [name for name in names if kind_of(name) == STEP]
    if not steps or any(kind_of(name) == STEP for name in state_among(lacking.manifest.logical)):
        return []
    found = _numbers_of(lacking)
    said = {*found.values()}
    of_all = said.pop() if len(said) == 1 else None
    return [n for n in steps if found.get(str(parameter_of(n)), of_all) == _number(having, n)]


def _numbers_of(checkpoint: Checkpoint) -> dict[str, float]:
    """The steps among the objects of a checkpoint, by what its keys say has them."""
    entries, said = checkpoint.manifest.entries, dict[str, Entry]()
    for name, entry in entries.items():
        state = StateName.of_torch(name)
        if state is not None and state.kind == STEP:
            said[state.parameter] = entry
        elif name.startswith(TORCH_GROUPS) and name.endswith(f".{STEP}"):
            said[name] = entry
    with folder_of(checkpoint.manifest) as folder:
        try:
            values = {
                of: number_in(read_object(folder.read_small(*e.place), e.name))
                for of, e in said.items()
            }
        except IntarsiaError:
            return {}  # reported where entries are compared
    return {of: float(x) for of, x in values.items() if type(x) in (int, float)}


def _number(checkpoint: Checkpoint, name: str) -> float:
    dtype = checkpoint.manifest.logical[name].dtype
    bits = checkpoint.read_box(checkpoint.prover.tensor(name), Box.whole(()))
    return float(as_float64(bits.view(bits_dtype(dtype)), dtype)[0])


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
