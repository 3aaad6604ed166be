"""Tensors under each other's names, as one fault: experts permuted, layers shifted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from intarsia.checking.diagnosis.finding import Finding
from intarsia.checking.diagnosis.hypotheses.moves import Move
from intarsia.checking.diagnosis.hypothesis import Score
from intarsia.checking.diagnosis.names import as_ranges, where
from intarsia.checking.diagnosis.rearranged.matching import fewest_blocks
from intarsia.checking.fault import Fault
from intarsia.checking.naming import expert_of, layer_of, without_expert, without_layer
from intarsia.state.names import kind_of

GATED = ({"gate_proj", "up_proj"}, {"w1", "w3"})
SWAPPED = "gate-up-swapped"
MOVED = "tensors-swapped"
"""A name that holds another name's values, and no more is known."""

WEIGHT = "the weight"

Map = dict[int, int]


def faults_of_moves(
    findings: Iterable[Finding], names: Iterable[str], equal: Collection[str]
) -> Iterator[Fault]:
    """One fault for all experts that moved alike, one for all layers, one for each pair of roles.

    `names` are all tensors, `equal` those that both sides have alike.
    """
    moves = [f.move for f in findings if f.move is not None]
    kinds: dict[tuple[str, bool, str, tuple[str, ...]], list[Move]] = {}
    pairs = {(move.side, move.to, move.source) for move in moves}
    for move in moves:
        kind, *words = _kind(move)
        mutual = kind == "names" and (move.side, move.source, move.to) in pairs
        words = sorted(words) if mutual else words
        kinds.setdefault((move.side, mutual, kind, tuple(words)), []).append(move)
    names = list(names)
    for (side, mutual, kind, roles), moved in kinds.items():
        for group in _alike(kind, moved, names):
            tensors = tuple(m.to for m in group)
            if kind == "experts":
                found, text = _experts(group, names, equal)
            elif kind == "layers":
                found, text = _layers(group, names, equal)
            elif kind == "experts of layers":
                found, text = MOVED, _across(group)
            else:
                found, text = _swapped(side, mutual, *roles)
            text += ", and their numbers changed" if any(m.change for m in group) else ""
            score = sum((m.score for m in group), Score())
            yield Fault(found, tensors, where(tensors), f"{text}: {score}", score.differing)


def _alike(kind: str, moves: Sequence[Move], names: Iterable[str]) -> Iterator[list[Move]]:
    """Moves of tensors that went the same ways: those of one name each are distinguished otherwise.

    Experts that all went with their layers, of all `names`, went the way of these.
    """
    if kind == "names":
        yield list(moves)
        return
    by_name: dict[str, list[Move]] = {}
    for move in moves:
        by_name.setdefault(_template(move.to), []).append(move)
    layers = {layer_of(m.to) for m in moves} if kind == "layers" else set()
    every = Counter(_template(n) for n in names if layers and layer_of(n) in layers)
    same: dict[frozenset[tuple[object, ...]], list[Move]] = {}
    for template, group in by_name.items():
        whole = every[template] == len(group)
        ways = frozenset(
            (
                layer_of(m.to),
                layer_of(m.source),
                *(() if whole else map(expert_of, (m.to, m.source))),
            )
            for m in group
        )
        same.setdefault(ways, []).extend(group)
    yield from same.values()


def _template(name: str) -> str:
    return without_expert(without_layer(name))


def half_swapped(findings: Sequence[Finding]) -> list[Finding]:
    """The same findings, a gate that holds up being half of a swap where up holds most of gate."""
    swapped = {f.tensor: f for f in findings if f.kind == SWAPPED and f.move is None}
    out = []
    for f in findings:
        half = swapped.get(f.move.source) if f.move and _kind(f.move)[0] == "names" else None
        if half is not None and f.move is not None and f.move.side == half.side:
            f = replace(f, kind=half.kind, fault=half.fault, key=half.key, move=None)
        out.append(f)
    return out


def text_of_move(move: Move) -> str:
    """A move, as the diagnosis of its tensor."""
    other = "A" if move.side == "B" else "B"
    change = f", and {move.change.text}" if move.change else ""
    return f"{move.side} holds `{move.source}` of {other}{change}: {move.score}"


def _kind(move: Move) -> tuple[str, ...]:
    if layer_of(move.to) == layer_of(move.source):
        if without_expert(move.to) == without_expert(move.source):
            return ("experts",)
    elif without_layer(move.to) == without_layer(move.source):
        return ("layers",)
    elif without_expert(without_layer(move.to)) == without_expert(without_layer(move.source)):
        return ("experts of layers",)
    return ("names", *_roles(move.to, move.source))


def _roles(to: str, source: str) -> tuple[str, str]:
    """What two tensors are called for short: their modules, or the last words that tell them apart where modules do not.

    Two states of unlike kinds, or a state and a weight, are called by their kinds.
    """
    kinds = kind_of(to) or WEIGHT, kind_of(source) or WEIGHT
    if kinds[0] != kinds[1]:
        return kinds
    one, other = (without_expert(without_layer(name)).split(".") for name in (to, source))
    modules = (one[-2:][0], other[-2:][0])
    alike = modules[0] == modules[1] or "*" in modules
    if not alike:
        return modules
    apart = [
        pair for pair in zip(reversed(one), reversed(other), strict=False) if pair[0] != pair[1]
    ]
    if len(one) != len(other):
        return ".".join(one), ".".join(other)
    return apart[0] if apart else modules


def _swapped(side: str, mutual: bool, one: str, other: str) -> tuple[str, str]:
    if {one, other} in GATED and mutual:
        return SWAPPED, "gate and up swapped"
    if mutual:
        return MOVED, f"{one} and {other} hold each other's values in {side}"
    return MOVED, f"{one} holds the values of {other} in {side}"


def _experts(group: list[Move], names: list[str], equal: Collection[str]) -> tuple[str, str]:
    stems = {without_expert(m.to) for m in group}
    held = [name for name in names if without_expert(name) in stems]
    held += [m.source for m in group]  # which one side may have lost
    count = 1 + max((n for name in held if (n := expert_of(name)) is not None), default=0)
    maps: dict[int | None, Map] = {}
    for m in group:
        to, source = expert_of(m.to), expert_of(m.source)
        if to is not None and source is not None:
            maps.setdefault(layer_of(m.to), {})[to] = source
    alike = len({tuple(sorted(m.items())) for m in maps.values()}) == 1
    first = maps[min(maps, key=lambda layer: -1 if layer is None else layer)]
    whole = [first.get(e, e) for e in range(count)]
    side = group[0].side
    layers = f"in {len(maps)} layer{'s' if len(maps) > 1 else ''}"
    how = ": " if alike else ", in each layer another way; in the first: "
    how = f"{layers}{how}{_mapping(first)}"
    if all(_is_permutation(m, count) for m in maps.values()):
        return "experts-permuted", f"experts permuted in {side} {how}"
    if not _is_twice(group, equal):
        return MOVED, f"experts hold others in {side} {how}"
    if len({*first.values()}) == 1 and alike:
        source = next(iter(first.values()))
        text = f"expert {source} copied over {as_ranges(first)} of {side}, {layers}"
        return "experts-duplicated", text
    blocks = fewest_blocks(whole)
    if alike and blocks and len({*blocks}) == 1:
        size = count // len(blocks)
        lo = blocks[0] * size
        text = f"experts [{lo}:{lo + size}) in each of {len(blocks)} blocks of {size} of {side}"
        return "experts-duplicated", f"{text}, {layers}"
    return "experts-duplicated", f"experts duplicated in {side} {how}"


def _layers(group: list[Move], names: list[str], equal: Collection[str]) -> tuple[str, str]:
    stems = {without_layer(m.to) for m in group}
    layers = {
        k for name in names if without_layer(name) in stems and (k := layer_of(name)) is not None
    }
    found: Map = {}
    for m in group:
        to, source = layer_of(m.to), layer_of(m.source)
        if to is not None and source is not None:
            found[to] = source
    side, first = group[0].side, min(found)
    gaps = {to - source for to, source in found.items()}
    # Every tensor of these layers moved with them, or the layers did not.
    whole = {m.to for m in group} >= {
        name for name in names if without_layer(name) in stems and layer_of(name) in found
    }
    if whole and len(gaps) == 1 and len(found) > 1:
        (k,) = gaps
        # A shift is one only if every layer of it shifted.
        if {*found} == {at for at in layers if at >= first and at - k in layers}:
            text = f"layers shifted by {k} from layer {first} on: layer {first} of {side}"
            return "layers-shifted", f"{text} is layer {found[first]} of the other"
    around = {(to - source) % len(layers) for to, source in found.items()}
    every = {*found} == layers == {*range(len(layers))}
    if whole and every and len(around) == 1 and len(layers) > 2:
        (k,) = around
        k = k - len(layers) if k > len(layers) // 2 else k
        return "layers-shifted", f"layers of {side} shifted by {k} around the end"
    if {*found} == {*found.values()}:
        return "layers-permuted", f"layers permuted in {side}: {_mapping(found)}"
    if _is_twice(group, equal):
        return "layers-duplicated", f"layers duplicated in {side}: {_mapping(found)}"
    return MOVED, f"layers hold others in {side}: {_mapping(found)}"


def _across(group: list[Move]) -> str:
    """Experts that hold those of other layers."""
    ways = {
        (layer_of(m.to), expert_of(m.to), layer_of(m.source), expert_of(m.source)) for m in group
    }
    shown = [f"{e} of layer {k} holds {f} of layer {j}" for k, e, j, f in sorted(ways, key=str)]
    more = ", …" if len(shown) > 16 else ""
    return f"experts hold those of other layers in {group[0].side}: {', '.join(shown[:16])}{more}"


def _is_twice(group: list[Move], equal: Collection[str]) -> bool:
    """Whether something that moved stands in its own place as well, or in two others."""
    sources = [m.source for m in group]
    return len({*sources}) < len(sources) or any(name in equal for name in sources)


def _is_permutation(found: Mapping[int, int], count: int) -> bool:
    """Whether every number comes once, those that did not move included."""
    return {found.get(k, k) for k in range(count)} == {*range(count)}


def _mapping(found: Mapping[int, int]) -> str:
    shown = [f"{to} holds {source}" for to, source in sorted(found.items())]
    return ", ".join(shown[:16]) + (", …" if len(shown) > 16 else "")
