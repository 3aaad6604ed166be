"""The parameter groups in the entries of a checkpoint, in whichever framework's form.

Entries are carried as they are through every format, so Megatron's common state may lie in any of
them.  Where torch is to read the result, the groups are spelled in its way beside.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from intarsia.family import table_for
from intarsia.format.megatron.common import common_in
from intarsia.format.megatron.optimizer.groups import FROM_TORCH
from intarsia.format.naming.spelling import logical_members
from intarsia.format.naming.wrappers import bare
from intarsia.format.optimizer_state.parameter_groups import (
    ParameterGroups,
    flat_entries,
    groups_of_torch,
    has_torch_groups,
    numbered_entries,
)
from intarsia.planning.inventory import Role, items_left_out, model_section
from intarsia.planning.manifest import Manifest


def groups_from_torch(src: Manifest, entries: Mapping[str, bytes]) -> ParameterGroups | None:
    """The groups in torch's form, or those that came from torch and are kept beside Megatron's."""
    if came := ParameterGroups.of_plain(common_in(entries).get(FROM_TORCH)):
        return came
    return torch_groups_of(src, entries) if has_torch_groups(entries) else None


def torch_groups_of(src: Manifest, entries: Mapping[str, bytes]) -> ParameterGroups | None:
    """The groups among entries in one of torch's spellings."""
    return groups_of_torch(entries, tensors_of_members(src))


def tensors_of_members(src: Manifest) -> Callable[[str], tuple[str, ...]]:
    """Gives the logical tensors that a member of a group holds; for one of another model, which is not read, its name."""
    table, section = table_for(src.config), model_section(src.inventory)
    others = (x.name for x in items_left_out(src.inventory) if x.role is Role.OTHER_MODEL)
    foreign = tuple(f"{other}." for other in others)

    def tensors(member: str) -> tuple[str, ...]:
        plain = bare(member)
        if plain.startswith(foreign):
            return (plain,)
        return logical_members(member, table, src.logical, section)

    return tensors


def groups_as_torch_entries(
    groups: ParameterGroups | None,
    entries: Mapping[str, bytes],
    params: Mapping[str, tuple[str, ...]],
    *,
    flat: bool,
) -> dict[str, bytes]:
    """Groups as torch spells them: as they once came, else by number and, if `flat`, by parameter too."""
    if groups is None:
        return {}
    if ParameterGroups.of_plain(common_in(entries).get(FROM_TORCH)):
        return (flat_entries if groups.flat else numbered_entries)(groups, params)
    by_parameter = flat_entries(groups, params) if flat else {}
    return numbered_entries(groups, params) | by_parameter
