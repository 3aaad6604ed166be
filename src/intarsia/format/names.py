"""From names on disk to logical tensors: prefixes, families, and what neither explains.

A checkpoint's tensors are matched against the table of its family.  Wrappers put prefixes
before names (`model.`, `module.`, …): the prefix that explains most names is taken off.
What the table does not know is carried name by name, and said.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from intarsia.dtypes import BY_NAME
from intarsia.errors import FamilyError
from intarsia.family import Table, table_for
from intarsia.format.complaint import Complain, Complaint, refuse
from intarsia.format.quantised_names import misfits, stood_for, with_rules
from intarsia.layout import Layout
from intarsia.mesh import Rule, Shape
from intarsia.planning.manifest import Logical, Stored
from intarsia.quantised import Quantised, find_quantised

_OPTIMIZER = re.compile(r"^(?:optim|optimizer)\.state\.(?P<param>.+)\.(?P<kind>[A-Za-z_0-9]+)$")
STEP = "step"
_VOCABULARY = ("embed_tokens.weight", "lm_head.weight", "shared_head.head.weight")
_OURS = re.compile(r"^optimizer\.(?P<kind>[A-Za-z_0-9]+)\.(?P<param>.+)$")


@dataclass(frozen=True)
class Named:
    """Stored tensors with their layouts, and what the names told."""

    stored: dict[str, Stored]
    logical: dict[str, Logical]
    family: str | None
    absent: tuple[Logical, ...]
    problems: tuple[str, ...]
    notes: tuple[str, ...]
    quantised: Quantised


def name_tensors(
    found: Iterable[Stored],
    config: Mapping[str, Any] | None,
    where: str,
    complain: Complain = refuse,
    modelopt: Mapping[str, Any] | None = None,
) -> Named:
    """Give stored tensors (each its own layout, so far) the layouts of their family."""
    listed = list(found)
    weights = {s.name: (s.dtype, s.shape) for s in listed if not _is_state(s.name)}
    quantised = find_quantised(weights, config, modelopt)
    table = table_for(config)
    model_type = str((config or {}).get("model_type") or "")[:80]
    if table is None:
        stored = _unique((_plain(_respelled(s)) for s in listed), where, complain)
        why = f"model_type {model_type!r} has no table" if model_type else "no model configuration"
        note = f"{why}: each stored tensor is carried name by name, as its own logical tensor"
        stored = with_rules(stored, quantised, {})
        notes = (note, *quantised.notes)
        return Named(stored, _logical(stored, {}), None, (), (), notes, quantised)
    return _with_table(listed, table, where, complain, quantised)


def prefix_of(names: Iterable[str], known: Mapping[str, Any]) -> str:
    """The prefix that, taken off, makes most names known; the shortest of equals."""
    votes: Counter[str] = Counter()
    for name in names:
        start = 0
        while start >= 0:
            if name[start:] in known:
                votes[name[:start]] += 1
                break
            start = name.find(".", start) + 1 or -1
    if not votes:
        return ""
    return min(votes, key=lambda prefix: (-votes[prefix], len(prefix)))


def _with_table(
    listed: list[Stored], table: Table, where: str, complain: Complain, quantised: Quantised
) -> Named:
    known = table.known
    # A parameter's state ends with its name too, and says nothing of the wrappers around it.
    prefix = prefix_of((s.name for s in listed if not _is_state(s.name)), known)
    packed = {part.name for w in quantised.weights for part in w.own_shapes}
    named = (_named(s, prefix, table, known, where, complain, packed) for s in listed)
    stored = _unique((part for s in named for part in _by_member(s, known)), where, complain)
    quantised = quantised.renamed(lambda name: name.removeprefix(prefix))
    for error, name in misfits(quantised, known, table.family, where):
        complain(Complaint(error, _files(stored[name]), (name,)))
    stored = with_rules(stored, quantised, known)
    parts = quantised.by_part
    unknown = [n for n in stored if n not in known and n not in parts and not _OURS.match(n)]
    logical = _logical(stored, table.logical)
    held = {*logical, *stood_for(quantised, known)}
    absent = tuple(
        Logical(name, shape, _common_dtype(listed))
        for name, shape in table.logical.items()
        if name not in held and name not in table.optional
    )
    problems = tuple(f"`{x.name}` {list(x.shape)} is absent" for x in absent)
    notes = []
    if unknown:
        shown = ", ".join(unknown[:4]) + (
            f", … ({len(unknown)} in all)" if len(unknown) > 4 else ""
        )
        notes.append(f"not in the table of {table.family}, carried name by name: {shown}")
    notes += quantised.notes
    return Named(stored, logical, table.family, absent, problems, tuple(notes), quantised)


def _named(
    s: Stored,
    prefix: str,
    table: Table,
    known: Mapping[str, Any],
    where: str,
    complain: Complain,
    packed: Collection[str] = (),
) -> Stored:
    name = s.name.removeprefix(prefix) if s.name.startswith(prefix) else s.name
    param = known.get(name)
    if s.name in packed:
        return _plain(replace(s, name=name))
    if param is not None:
        if param.layout.shape != s.shape:
            error = FamilyError(
                f"`{s.key or s.name}` has shape {list(s.shape)}, config.json of"
                f" {table.family} gives {list(param.layout.shape)} - at {where}",
                hint="the configuration is another model's, or the tensor is damaged",
                kind=shape_fault(name, s.shape, param.layout.shape),
            )
            complain(Complaint(error, _files(s), param.layout.tensors))
            return _plain(replace(s, name=name))
        return replace(s, name=name, layout=param.layout, rule=param.rule, shift=param.shift)
    state = _OPTIMIZER.match(s.name)
    if state is not None:
        of = _strip(state["param"], known)
        fresh = f"optimizer.{state['kind']}.{of}"
    else:
        ours = _OURS.match(s.name)
        of, fresh = (ours["param"], s.name) if ours else ("", s.name)
    twin = known.get(of)
    if twin is not None and twin.layout.shape == s.shape:
        root = fresh.removesuffix(of)
        layout = twin.layout.rename(root.__add__)
        shift = twin.shift if root == "optimizer.master." else 0.0
        return replace(s, name=fresh, layout=layout, rule=twin.rule, shift=shift)
    return _plain(replace(s, name=entry_name(fresh)))


def shape_fault(name: str, have: Shape, want: Shape) -> str:
    """What it is that a tensor has another shape than it should."""
    taller = len(have) == len(want) and have[1:] == want[1:] and have[0] > want[0]
    return "vocabulary-padded" if taller and name.endswith(_VOCABULARY) else "shape-wrong"


def _files(s: Stored) -> tuple[str, ...]:
    return tuple(dict.fromkeys(chunk.file for chunk in s.chunks))


def _by_member(s: Stored, known: Mapping[str, Any]) -> Iterator[Stored]:
    """A stored tensor; the one counter of a fused parameter once for each tensor that it counts for."""
    found = _OURS.match(s.name)
    fused = known.get(found["param"]) if found and found["kind"] == STEP and not s.shape else None
    if fused is None:
        yield s
        return
    for member in fused.layout.tensors:
        name = f"optimizer.{STEP}.{member}"
        yield replace(s, name=name, layout=Layout.of(name, ()))


def members_of(name: str, table: Table | None) -> tuple[str, ...]:
    """The logical tensors that a parameter holds, whatever wrappers put before its name."""
    if table is None:
        return (name,)
    bare = _strip(name, table.known)
    return table.known[bare].layout.tensors if bare in table.known else (name,)


def _unique(named: Iterable[Stored], where: str, complain: Complain) -> dict[str, Stored]:
    """Stored tensors by name; complain where two have the same."""
    stored: dict[str, Stored] = {}
    for s in named:
        if s.name in stored:
            error = FamilyError(
                f"{stored[s.name].key!r} and {s.key!r} are both `{s.name}` - at {where}"
            )
            complain(Complaint(error, _files(s)))
            continue
        stored[s.name] = s
    return stored


def _is_state(name: str) -> bool:
    return _OPTIMIZER.match(name) is not None or _OURS.match(name) is not None


def _respelled(s: Stored) -> Stored:
    """Optimizer state with the kind before the parameter, below one spelling of its root."""
    state = _OPTIMIZER.match(s.name)
    name = f"optimizer.{state['kind']}.{state['param']}" if state else entry_name(s.name)
    return replace(s, name=name)


def entry_name(name: str) -> str:
    """An opaque entry's name, with one spelling for the optimizer's root."""
    return re.sub(r"^optim\.", "optimizer.", name)


def _strip(name: str, known: Mapping[str, Any]) -> str:
    """A parameter's name without the prefixes of wrappers."""
    start = 0
    while start >= 0:
        if name[start:] in known:
            return name[start:]
        start = name.find(".", start) + 1 or -1
    return name


def _plain(s: Stored) -> Stored:
    """A stored tensor as its own logical tensor; a mesh cuts its first axis."""
    rule = Rule(tp=0) if len(s.shape) > 1 else Rule()
    layout = s.layout if s.layout.tensors == (s.name,) else Layout.of(s.name, s.shape)
    return replace(s, layout=layout, rule=rule)


def _logical(stored: Mapping[str, Stored], shapes: Mapping[str, Shape]) -> dict[str, Logical]:
    found: dict[str, Logical] = {}
    for s in stored.values():
        names = s.layout.tensors or (s.name,)
        for name in names:
            if name not in found:
                of = name.split(".", 2)[2] if _OURS.match(name) else name
                shape = s.shape if name == s.name else shapes.get(of, s.shape)
                found[name] = Logical(name, shape, s.dtype)
    return found


def _common_dtype(listed: list[Stored]) -> Any:
    counts = Counter(s.dtype for s in listed if s.dtype.floating)
    if counts:
        return counts.most_common(1)[0][0]
    return listed[0].dtype if listed else BY_NAME["F32"]
