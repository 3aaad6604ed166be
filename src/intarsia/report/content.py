"""What a page shows: which checkpoints, the verdict, and which tensors are not as they should be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING

from intarsia.opened.lacking import lacking
from intarsia.opened.parameters import parameters_of
from intarsia.planning.manifest import Manifest
from intarsia.quantity import human

if TYPE_CHECKING:
    from intarsia.checking.alone.soundness import Soundness
    from intarsia.checking.fault import Fault
    from intarsia.checking.pair.comparison import Comparison, Difference

MISSING = {"tensor-missing", "layers-missing", "experts-missing"}
"""Kinds of fault whose tensors are not there."""

Facts = tuple[tuple[str, tuple[str, ...]], ...]


class State(IntEnum):
    """How a tensor fared; a group of tensors is as bad as the worst of them."""

    FINE = 0
    DIFFERENT = 1
    ABSENT = 2
    FAULTY = 3


@dataclass(frozen=True)
class PageContent:
    """Everything that a page shows.

    `facts` have a value for each of the checkpoints, `sides`.  `states` leaves fine tensors out,
    and `fine` says what that means here: equal, stored, or without a fault that names it.
    """

    title: str
    verdict: str
    good: bool
    facts: Facts
    sides: tuple[Manifest, ...]
    fine: str
    states: Mapping[str, State] = field(default_factory=dict)
    faults: tuple[Fault, ...] = ()
    different: tuple[Difference, ...] = ()
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def of_inspection(manifest: Manifest) -> PageContent:
    """What the headers of a checkpoint show."""
    lost, problems = _lost(manifest), (*map(str, manifest.problems), *lacking(manifest))
    verdict = "complete, judging by the headers"
    if lost:
        verdict = f"incomplete: {lost}"
    elif problems:
        verdict = _count(len(problems), "problem")
    return PageContent(
        title="What this checkpoint holds",
        verdict=verdict,
        good=not lost and not problems,
        facts=_facts((manifest,)),
        sides=(manifest,),
        fine="stored",
        states=dict.fromkeys(_absent(manifest), State.ABSENT),
        problems=problems,
        notes=manifest.notes,
    )


def of_soundness(found: Soundness, manifest: Manifest | None) -> PageContent:
    """What was found in one checkpoint; `manifest` is None where its headers cannot be read."""
    checked = (
        ("tensors checked", (f"{found.compared:,}",)),
        ("elements checked", (f"{found.elements:,}",)),
    )
    sides = () if manifest is None else (manifest,)
    return PageContent(
        title="Is this checkpoint sound?",
        verdict="sound: no known fault" if found.sound else _count(len(found.faults), "fault"),
        good=found.sound,
        facts=(*(_facts(sides) or (("path", (found.a,)),)), *checked),
        sides=sides,
        fine="no fault names it",
        states=_states(sides, found.faults),
        faults=found.faults,
        notes=found.notes,
    )


def of_comparison(found: Comparison, a: Manifest, b: Manifest) -> PageContent:
    """How two checkpoints compare, tensor by tensor."""
    apart = [each for each in found.beside if each.counts]
    parts = (
        (found.different, f"{_count(len(found.different), 'tensor')} different"),
        (found.only_in_a, f"{len(found.only_in_a):,} only in A"),
        (found.only_in_b, f"{len(found.only_in_b):,} only in B"),
        (found.not_comparable, f"{_count(len(found.not_comparable), 'tensor')} not comparable"),
        (found.damaged, f"{_count(len(found.damaged), 'fault')} outside of the tensors"),
        (apart, f"{_count(len(apart), 'part')} of the run's state different"),
    )
    both = f"{found.compared:,} tensors, {found.elements:,} elements"
    states = _states((a, b), found.faults)
    states |= dict.fromkeys((*found.only_in_a, *found.only_in_b), State.ABSENT)
    states |= dict.fromkeys((d.tensor for d in found.different), State.DIFFERENT)
    return PageContent(
        title="Are these checkpoints equal?",
        verdict=f"equal, {found.how}"
        if found.equal
        else "; ".join(text for held, text in parts if held),
        good=found.equal,
        facts=(*_facts((a, b)), ("compared", (both, both))),
        sides=(a, b),
        fine="equal",
        states=states,
        faults=(*found.damaged, *found.faults),
        different=found.different,
        notes=found.notes,
    )


def _count(n: int, noun: str) -> str:
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def _facts(sides: Sequence[Manifest]) -> Facts:
    columns = [list(_facts_of(m)) for m in sides]
    return tuple(
        (rows[0][0], tuple(value for _, value in rows)) for rows in zip(*columns, strict=True)
    )


def _facts_of(m: Manifest) -> Iterable[tuple[str, str]]:
    dtypes = Counter(str(s.dtype) for s in m.stored.values())
    yield "path", m.path
    yield "format", m.format
    yield "family", m.family or "unknown"
    fused = f", stored as {len(m.stored):,}" if len(m.stored) != len(m.logical) else ""
    yield "tensors", f"{len(m.logical):,}{fused}"
    yield "parameters", f"{parameters_of(m)}"
    yield "size", f"{human(m.nbytes)} in {_count(len(m.files), 'file')}"
    yield "element types", ", ".join(f"{k} × {v:,}" for k, v in dtypes.most_common()) or "none"
    yield "other objects", f"{len(m.entries):,}"
    lost = _lost(m)
    yield "complete", f"no, {lost}" if lost else "yes"


def _lost(manifest: Manifest) -> str:
    """What is not there, or not whole, in words; "" where nothing is known to be lost."""
    if absent := _absent(manifest):
        return f"{_count(len(absent), 'tensor')} absent"
    parts = len([*lacking(manifest)])
    lack = "lacks" if parts == 1 else "lack"
    return f"{_count(parts, 'tensor')} {lack} elements or scales" if parts else ""


def _absent(manifest: Manifest) -> list[str]:
    """Tensors that no chunk holds, stated by the configuration or by the metadata."""
    empty = (s for s in manifest.stored.values() if not s.chunks and s.layout.size)
    named = [x.name for x in manifest.absent] + [name for s in empty for name in s.layout.tensors]
    return list(dict.fromkeys(named))


def _states(sides: Sequence[Manifest], faults: Iterable[Fault]) -> dict[str, State]:
    """The state of each tensor that a fault names, by its logical name or its name on disk."""
    logical: dict[str, list[str]] = {}
    for m in sides:
        for s in m.stored.values():
            for known in {s.key, s.name}:  # a key that stacks layers is that of many
                logical.setdefault(known, []).extend(s.layout.tensors)
    logical |= {name: [name] for m in sides for name in m.logical}
    states = {name: State.ABSENT for m in sides for name in _absent(m)}
    for fault in faults:
        state = State.ABSENT if fault.kind in MISSING else State.FAULTY
        for named in fault.tensors:
            for name in logical.get(named, [named]):
                states.setdefault(name, state)
    return states
