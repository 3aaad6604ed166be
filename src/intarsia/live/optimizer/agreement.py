"""Do the optimizers of all ranks agree, before anything is written?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from intarsia.errors import UsageError
from intarsia.format.optimizer_state.parameter_groups import MEMBERS
from intarsia.live.entries import unpack
from intarsia.state.names import ROOT, TORCH_GROUPS, StateName

WITHOUT = f"{ROOT}without_state"
"""What a rank reports to the others and nobody writes: the parameters that it holds and never stepped."""


def agreed_entries(
    reported: Sequence[Mapping[str, bytes]], tensors: Sequence[Iterable[str]]
) -> list[dict[str, bytes]]:
    """The entries of each rank that are to be written; raise where two ranks' optimizers are not alike.

    `tensors` are the names of the tensors that each rank has.
    """
    _check_keys(reported, tensors)
    held = [
        {
            state.parameter
            for state in map(StateName.of_torch, (*entries, *names))
            if state is not None
        }
        for entries, names in zip(reported, tensors, strict=True)
    ]
    for rank, entries in enumerate(reported):
        lacking = unpack(entries[WITHOUT], WITHOUT) if WITHOUT in entries else []
        for other, names in enumerate(held if lacking else ()):
            if found := sorted(names.intersection(lacking)):
                raise UsageError(
                    f"rank {other} has optimizer state of `{found[0]}`, but rank {rank}, which"
                    " also updates it, has none",
                    hint="it received no gradient there: reduce gradients over all ranks before"
                    " the step",
                )
    return [{n: data for n, data in entries.items() if n != WITHOUT} for entries in reported]


def _check_keys(reported: Sequence[Mapping[str, bytes]], tensors: Sequence[Iterable[str]]) -> None:
    """Raise where a group has a setting on one rank that it lacks on another."""
    first: dict[str, tuple[int, set[str]]] = {}
    for rank, (entries, names) in enumerate(zip(reported, tensors, strict=True)):
        mine: dict[str, set[str]] = {}
        for name in (*entries, *names):
            if name.startswith(TORCH_GROUPS):
                group, _, key = name.removeprefix(TORCH_GROUPS).partition(".")
                mine.setdefault(group, set()).add(key)
        for group, keys in mine.items():
            if MEMBERS not in keys:
                continue
            where, known = first.setdefault(group, (rank, keys))
            for key in sorted(keys ^ known):
                has, lacks = (rank, where) if key in keys else (where, rank)
                raise UsageError(
                    f"group {group} of the optimizer has `{key}` on rank {has}, and not on rank"
                    f" {lacks}",
                    hint="give the optimizers of all ranks the same groups in the same order",
                )
