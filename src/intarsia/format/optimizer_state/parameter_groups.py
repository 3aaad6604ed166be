"""The parameter groups of an optimizer, and torch's two spellings of them.

    optimizer.param_groups.0.lr                    by number; `params` lists the members
    optimizer.param_groups.model.norm.weight.lr    by parameter, as torch flattens them

Members are logical tensors here, so that groups outlive a change of dialect; what Megatron makes of
them is in `format/megatron/optimizer/groups.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from intarsia.errors import UsageError
from intarsia.format.torch_file.plain import DROPPED, all_plain
from intarsia.frozen import frozen
from intarsia.state.names import TORCH_GROUPS

MEMBERS = "params"


@frozen
class ParameterGroup:
    """Parameters that are trained alike, and the optimizer's settings for them."""

    members: tuple[str, ...]
    fields: Mapping[str, Any]


@frozen
class ParameterGroups:
    """The groups of an optimizer; `flat` where torch spells them by parameter."""

    each: tuple[ParameterGroup, ...]
    flat: bool = False

    def as_plain(self) -> dict[str, Any]:
        """Plain values that `of_plain` reads again."""
        each = [{MEMBERS: list(g.members), "fields": dict(g.fields)} for g in self.each]
        return {"flat": self.flat, "groups": each}

    @staticmethod
    def of_plain(said: Any) -> ParameterGroups | None:
        """The groups that `as_plain` gave; None where these are no such values."""
        try:
            each = [ParameterGroup(tuple(g[MEMBERS]), dict(g["fields"])) for g in said["groups"]]
            return ParameterGroups(tuple(each), bool(said["flat"]))
        except (TypeError, KeyError, ValueError):
            return None


_COMMON, PARAMETERS_GROUP = "common_state/", "optimizer.param_to_group_meta."
"""How entries begin that hold Megatron's groups: the common state, and what Megatron-FSDP says of each parameter's."""


def has_torch_groups(names: Iterable[str]) -> bool:
    """Whether entries of these names hold groups in one of torch's spellings."""
    return any(name.startswith(TORCH_GROUPS) for name in names)


def has_megatron_groups(names: Iterable[str]) -> bool:
    """Whether entries of these names hold the parameter groups of Megatron's optimizer."""
    return any(name.startswith((_COMMON, PARAMETERS_GROUP)) for name in names)


def megatron_groups_count(names: Iterable[str]) -> bool:
    """Whether Megatron's groups have the step; where torch's Adam is in Megatron-FSDP, only parameters do."""
    return any(
        name.startswith(_COMMON) or (name.startswith(PARAMETERS_GROUP) and name.endswith(".step"))
        for name in names
    )


def unplain_settings(entries: Mapping[str, bytes]) -> set[str]:
    """The entries of torch's groups that are no plain values: no group in another form has them."""
    from intarsia.format.torch_file.torch_zip import read_object

    groups = {name: data for name, data in entries.items() if name.startswith(TORCH_GROUPS)}
    alike = {data: name for name, data in groups.items()}
    odd = {data for data, name in alike.items() if all_plain(read_object(data, name)) is DROPPED}
    return {name for name, data in groups.items() if data in odd}


def groups_of_torch(
    entries: Mapping[str, bytes], logical: Callable[[str], tuple[str, ...]]
) -> ParameterGroups | None:
    """The groups among entries; `logical` gives the tensors that a parameter holds."""
    from intarsia.format.torch_file.torch_zip import read_object

    found: dict[str, dict[str, Any]] = {}
    listed: dict[str, Any] = {}
    flat = False
    for name, (group, field) in _fields_of(entries).items():
        flat = flat or not group.isdecimal()
        value = all_plain(read_object(entries[name], name))
        if field == MEMBERS:
            listed[group] = value
        elif value is not DROPPED:
            found.setdefault(group, {})[field] = value
    if not found and not listed:
        return None
    if flat:
        return ParameterGroups(
            merged_groups(ParameterGroup(logical(n), fields) for n, fields in found.items()),
            flat=True,
        )
    each = (
        ParameterGroup(_members(listed.get(key), logical), found.get(key, {}))
        for key in sorted({*found, *listed}, key=int)
    )
    return ParameterGroups(tuple(each))


def _fields_of(names: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Group and field of each of these names that is one of torch's groups.

    torch writes a setting that is a dictionary as one name for each of its keys, `0.mine.key`: a group's name begins
    no other group's, so what begins with one is a setting of it.
    """
    rests = {n: n.removeprefix(TORCH_GROUPS) for n in names if n.startswith(TORCH_GROUPS)}
    groups = {rest.rpartition(".")[0] for rest in rests.values()}

    def split(rest: str) -> tuple[str, str]:
        ends = (at for at, letter in enumerate(rest) if letter == "." and rest[:at] in groups)
        end = next(ends, rest.rfind("."))
        return rest[: max(end, 0)], rest[end + 1 :]

    return {name: split(rest) for name, rest in rests.items()}


class Numbered(dict[str, Any]):
    """What torch took apart under numbers: a list, or a dictionary with numbers for keys."""


def nested(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with the dictionaries that torch took apart put together again, and lists under their numbers.

    >>> nested({"lr": 0.1, "mine.a": 1, "mine.b": 2})
    {'lr': 0.1, 'mine': {'a': 1, 'b': 2}}
    """
    found: dict[str, Any] = {}
    for name, value in fields.items():
        word, _, rest = name.partition(".")
        if rest:
            found.setdefault(word, {})[rest] = value
        else:
            found[word] = value
    apart = {name.partition(".")[0] for name in fields if "." in name}
    for word in apart:
        inner = nested(found[word])
        found[word] = Numbered(inner) if any(map(str.isdecimal, inner)) else inner
    return found


def _members(listed: Any, logical: Callable[[str], tuple[str, ...]]) -> tuple[str, ...]:
    names = [name for name in listed or () if isinstance(name, str)]
    return tuple(member for name in names for member in logical(name))


def merged_groups(groups: Iterable[ParameterGroup]) -> tuple[ParameterGroup, ...]:
    """The groups, those of equal settings as one, in the order of their first."""
    found: dict[str, tuple[list[str], Mapping[str, Any]]] = {}
    for group in groups:
        # Equal values are not enough: 1, 1.0 and True are three settings.
        same = repr(sorted(group.fields.items()))
        found.setdefault(same, ([], group.fields))[0].extend(group.members)
    return tuple(ParameterGroup(tuple(members), fields) for members, fields in found.values())


def different_fields(groups: Iterable[ParameterGroup], of: ParameterGroup) -> str:
    """The settings of a group that are not the same in all, in words.

    >>> a, b = ParameterGroup(("x",), {"lr": 0.1, "eps": 1.0}), ParameterGroup(("y",), {"lr": 0.2, "eps": 1.0})
    >>> different_fields([a, b], b)
    'lr=0.2'
    """
    known = [g.fields for g in groups]
    unlike = (k for k in of.fields if len({repr(fields.get(k)) for fields in known}) > 1)
    return ", ".join(f"{k}={of.fields[k]!r}" for k in sorted(unlike)) or "the same settings"


def numbered_entries(
    groups: ParameterGroups, params: Mapping[str, tuple[str, ...]]
) -> dict[str, bytes]:
    """The entries by number; `params` are the parameters to write, with the tensors of each."""
    from intarsia.format.torch_file.torch_frame import write_object

    names = _by_group(groups, params)
    found: dict[str, bytes] = {}
    for k, group in enumerate(groups.each):
        found[f"{TORCH_GROUPS}{k}.{MEMBERS}"] = write_object(names[k])
        found |= {
            f"{TORCH_GROUPS}{k}.{field}": write_object(v) for field, v in group.fields.items()
        }
    return found


def flat_entries(
    groups: ParameterGroups, params: Mapping[str, tuple[str, ...]]
) -> dict[str, bytes]:
    """The entries by parameter; equal settings share their bytes in memory."""
    from intarsia.format.torch_file.torch_frame import write_object

    found: dict[str, bytes] = {}
    for group, names in zip(groups.each, _by_group(groups, params), strict=True):
        fields = {field: write_object(value) for field, value in group.fields.items()}
        found |= {
            f"{TORCH_GROUPS}{name}.{field}": data
            for name in names
            for field, data in fields.items()
        }
    return found


def _by_group(groups: ParameterGroups, params: Mapping[str, tuple[str, ...]]) -> list[list[str]]:
    """The parameters of each group, in the order of its members."""
    of = {member: name for name, members in params.items() for member in members}
    names: list[list[str]] = []
    seen: dict[str, int] = {}
    for k, group in enumerate(groups.each):
        # A parameter that is not written keeps the name that it came with.
        mine = dict.fromkeys(of.get(member, member) for member in group.members)
        for name in mine:
            if seen.setdefault(name, k) != k:
                raise UsageError(
                    f"`{name}` holds tensors of the parameter groups {seen[name]} and {k}",
                    hint="choose a dialect that does not fuse them, or --optimizer drop",
                )
        names.append(list(mine))
    return names
