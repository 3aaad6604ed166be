"""Optimizer state that should be there and is not, or is of another shape than its parameter."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from intarsia.checking.fault import Fault
from intarsia.checking.naming import place_of
from intarsia.errors import IntarsiaError, few
from intarsia.planning.manifest import Manifest
from intarsia.state.names import (
    MASTER,
    SHAPED,
    STEP,
    TORCH_GROUPS,
    StateName,
    kinds_by_parameter,
    of_kind,
    parameter_of,
)
from intarsia.store.reading.folder import MAX_SMALL_BYTES

_MOMENTS = ("exp_avg", "exp_avg_sq")
_ADAMAX = ("exp_avg", "exp_inf")
_LION = ("exp_avg",)
_OF_ADAM = (*SHAPED, STEP)
"""Kinds of state of Adam, of optimizers like it, and of those that step matrices beside it; any other kind is another optimizer's."""

_FEW = 10
"""Of ten parameters that are alike at most one is lost; more were left out on purpose."""

KindsByParameter = dict[str, set[str]]
"""The kinds of state that each parameter has."""


def missing_state(manifest: Manifest, known: Collection[str] = ()) -> Iterator[Fault]:
    """Parameters that lack state that parameters like them have.

    What is in `known` cannot be read and is not reported again.
    """
    held = _state_held(manifest)
    moving = {of: kinds for of, kinds in held.items() if not kinds.isdisjoint(_MOMENTS)}
    if not moving:
        return
    every = set().union(*held.values())
    another = not every.issubset(_OF_ADAM)
    moments = () if another else _kept(set().union(*moving.values()))
    moving = held if another else moving
    bare = [*_bare_experts(manifest, moving), *_bare_parameters(manifest, moving)]
    lost = [
        *(of_kind(kind)(of) for of, kinds in moving.items() for kind in moments
          if kind not in kinds),
        *_without_a_part(manifest, moving, sorted(every) if another else (MASTER, STEP)),
        *_state_of_like(moving, _stepped(manifest, moving, bare)),
    ]  # fmt: skip
    lost = [name for name in lost if name not in known and parameter_of(name) not in known]
    if lost:
        text = f"{len(lost):,} optimizer tensors are absent: {few(lost)}"
        yield Fault("state-missing", tuple(lost), manifest.path, text)


def _state_held(manifest: Manifest) -> KindsByParameter:
    """The state of each parameter, also what is stored as an object: what has another shape than its parameter."""
    return kinds_by_parameter(
        (*map(StateName.of, manifest.logical), *map(StateName.of_torch, manifest.entries))
    )


def _kept(kinds: Collection[str]) -> Sequence[str]:
    """The moments that an optimizer keeps: Adam's, Adamax's, or Lion's one where nothing counts steps, as Adam does."""
    if "exp_avg_sq" in kinds:
        return _MOMENTS
    if "exp_inf" in kinds:
        return _ADAMAX
    return _MOMENTS if STEP in kinds else _LION


def _without_a_part(
    manifest: Manifest, held: Mapping[str, set[str]], parts: Sequence[str]
) -> Iterator[str]:
    """State of kinds that a parameter lacks, and its like of one element type have."""
    for kind in parts:
        alike = {
            (place_of(of).template, manifest.logical[of].dtype)
            for of, kinds in held.items()
            if kind in kinds and of in manifest.logical
        }
        for of, kinds in held.items():
            weight = manifest.logical.get(of)
            if kind in kinds or weight is None:
                continue
            if (place_of(of).template, weight.dtype) in alike:
                yield of_kind(kind)(of)


def _bare_experts(manifest: Manifest, held: Mapping[str, set[str]]) -> Iterator[str]:
    """Experts without moments whose siblings have them."""
    stateful = {(p.template, p.layer) for p in map(place_of, held) if p.expert is not None}
    for name in manifest.logical:
        place = place_of(name)
        bare = not place.kind and place.expert is not None and name not in held
        if bare and (place.template, place.layer) in stateful:
            yield name


def _bare_parameters(manifest: Manifest, held: Mapping[str, set[str]]) -> Iterator[str]:
    """Few parameters without moments, in layers that are trained, of a kind that is trained."""
    places = [place_of(of) for of in held]
    templates = {p.template for p in places}
    layers = {p.layer_of_stack for p in places}
    dense = [
        (name, place)
        for name in manifest.logical
        if not (place := place_of(name)).kind
        and place.layer is not None
        and place.expert is None
        and place.template in templates
        and place.layer_of_stack in layers
    ]
    bare = [name for name, _ in dense if name not in held]
    if bare and _FEW * len(bare) <= len(dense):
        yield from bare


def _state_of_like(held: Mapping[str, set[str]], names: Sequence[str]) -> Iterator[str]:
    """The state that parameters without any lack: what each of their like has."""
    common: dict[str, set[str]] = {}
    for of, kinds in held.items():
        common.setdefault(place_of(of).template, set(kinds)).intersection_update(kinds)
    for name in names:
        yield from (of_kind(kind)(name) for kind in sorted(common[place_of(name).template]))


def _stepped(manifest: Manifest, held: Collection[str], names: Sequence[str]) -> Sequence[str]:
    """Those of the parameters that the optimizer's stored groups list: it steps no others.

    All where no groups are stored, or not of the parameters that have state: those are not in them by these names.
    """
    if not names:
        return names
    from intarsia.format.optimizer_state.groups_in_entries import torch_groups_of
    from intarsia.opened.entries import read_entries  # few checkpoints lack any

    entries = {n: e for n, e in manifest.entries.items() if n.startswith(TORCH_GROUPS)}
    alone = replace(manifest, entries=entries)  # others may be large
    try:
        groups = torch_groups_of(manifest, read_entries(alone, MAX_SMALL_BYTES))
    except IntarsiaError as error:
        error.raise_unless_fault()
        return names
    listed = {name for group in groups.each for name in group.members} if groups else set()
    return [name for name in names if name in listed or not listed.issuperset(held)]


def misshapen_state(manifest: Manifest, known: Collection[str] = ()) -> Iterator[Fault]:
    """State that does not have the shape of its parameter; an optimizer may keep one number of each in its place."""
    shaped = {
        state.kind
        for name, logical in manifest.logical.items()
        if logical.shape and (state := StateName.of(name)) and state.kind in SHAPED
    }
    for name, logical in manifest.logical.items():
        state = StateName.of(name)
        weight = manifest.logical.get(state.parameter) if state else None
        if state is None or weight is None or state.kind not in shaped:
            continue
        if name in known or weight.name in known:
            continue
        if logical.shape != weight.shape:
            text = f"`{name}` has shape {list(logical.shape)}, its parameter {list(weight.shape)}"
            files = few(manifest.files_of([name]))
            yield Fault("shape-wrong", (name,), files, text, logical.size)
