"""Tensors under each other's names, told as one fault: experts permuted, layers shifted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from intarsia.checking.diagnosis.finding import Finding
from intarsia.checking.diagnosis.matching import blocks_of
from intarsia.checking.diagnosis.moves import Move
from intarsia.checking.diagnosis.names import (
    expert_of,
    layer_of,
    listed,
    where,
    without_expert,
    without_layer,
)
from intarsia.checking.fault import Fault

GATED = ({"gate_proj", "up_proj"}, {"w1", "w3"})
SWAPPED = "gate-up-swapped"
Map = dict[int, int]


def faults_of_moves(findings: Iterable[Finding], names: Iterable[str]) -> Iterator[Fault]:
    """One fault for all experts that moved, one for all layers, one for each pair of roles."""
    moves = [f.move for f in findings if f.move is not None]
    kinds: dict[tuple[str, ...], list[Move]] = {}
    pairs = {(move.to, move.source) for move in moves}
    for move in moves:
        kind, *words = _kind(move)
        mutual = (move.source, move.to) in pairs
        words = sorted(words) if mutual else words
        kinds.setdefault((move.side, kind, *words), []).append(move)
    names = list(names)
    for (_, kind, *words), group in kinds.items():
        tensors = tuple(m.to for m in group)
        if kind == "experts":
            found, text = _experts(group, names)
        elif kind == "layers":
            found, text = _layers(group, names)
        else:
            found, text = _swapped(group, words)
        explained = sum(m.score.explained for m in group)
        differing = sum(m.score.differing for m in group)
        text += f": explains {explained:,} of {differing:,} differing elements"
        yield Fault(found, tensors, where(tensors), text)


def half_swapped(findings: Sequence[Finding]) -> list[Finding]:
    """The same findings, a gate that holds up being half of a swap where up holds most of gate."""
    swapped = {f.tensor: f for f in findings if f.kind == SWAPPED and f.move is None}
    out = []
    for f in findings:
        half = swapped.get(f.move.source) if f.move and _kind(f.move)[0] == "names" else None
        if half is not None:
            f = replace(f, kind=half.kind, fault=half.fault, key=half.key, move=None)
        out.append(f)
    return out


def told(move: Move) -> str:
    """A move, as the diagnosis of its tensor."""
    other = "A" if move.side == "B" else "B"
    change = f", and {move.change.text}" if move.change else ""
    return f"{move.side} holds `{move.source}` of {other}{change}: {move.score}"


def kind_of(move: Move) -> str:
    """The kind that one move alone would be."""
    kind, *words = _kind(move)
    if kind == "experts":
        return "experts-moved"
    return "layers-moved" if kind == "layers" else _swapped([move], words)[0]


def _kind(move: Move) -> tuple[str, ...]:
    if layer_of(move.to) == layer_of(move.source):
        if without_expert(move.to) == without_expert(move.source):
            return ("experts",)
    elif without_layer(move.to) == without_layer(move.source):
        return ("layers",)
    return ("names", _role(move.to), _role(move.source))


def _role(name: str) -> str:
    parts = without_expert(without_layer(name)).split(".")
    return parts[-2] if len(parts) > 1 else name


def _swapped(group: list[Move], words: list[str]) -> tuple[str, str]:
    one, other = words
    pairs = {(m.to, m.source) for m in group}
    mutual = all((source, to) in pairs for to, source in pairs)
    side = group[0].side
    if {one, other} in GATED and (mutual or len(group) == 1):
        return SWAPPED, "gate and up swapped"
    if mutual:
        return "tensors-swapped", f"{one} and {other} hold each other's values in {side}"
    return "tensors-swapped", f"{one} holds the values of {other} in {side}"


def _experts(group: list[Move], names: list[str]) -> tuple[str, str]:
    count = 1 + max((n for name in names if (n := expert_of(name)) is not None), default=0)
    maps: dict[int | None, Map] = {}
    for m in group:
        to, source = expert_of(m.to), expert_of(m.source)
        if to is not None and source is not None:
            maps.setdefault(layer_of(m.to), {})[to] = source
    alike = len({tuple(sorted(m.items())) for m in maps.values()}) == 1
    first = next(iter(maps.values()))
    whole = [first.get(e, e) for e in range(count)]
    side = group[0].side
    layers = f"in {len(maps)} layer{'s' if len(maps) > 1 else ''}"
    many = "" if alike else ", in each layer another way; in the first: "
    if all(_injective(m, count) for m in maps.values()):
        return "experts-permuted", f"experts permuted {layers}{many or ': '}{_mapping(first)}"
    if len({*first.values()}) == 1 and alike:
        source = next(iter(first.values()))
        text = f"expert {source} copied over {listed(first)} of {side}, {layers}"
        return "experts-duplicated", text
    blocks = blocks_of(whole)
    if alike and blocks and len({*blocks}) == 1:
        text = f"expert-parallel rank {blocks[0]}'s {count // len(blocks)} experts"
        return "experts-duplicated", f"{text} on all of {len(blocks)} ranks of {side}, {layers}"
    text = f"experts duplicated in {side} {layers}{many or ': '}{_mapping(first)}"
    return "experts-duplicated", text


def _layers(group: list[Move], names: list[str]) -> tuple[str, str]:
    count = 1 + max((n for name in names if (n := layer_of(name)) is not None), default=0)
    found: Map = {}
    for m in group:
        to, source = layer_of(m.to), layer_of(m.source)
        if to is not None and source is not None:
            found[to] = source
    side = group[0].side
    gaps = {to - source for to, source in found.items()}
    around = {gap % count for gap in gaps}
    if len(gaps) == 1 or (len(around) == 1 and count > 2):
        k = gaps.pop() if len(gaps) == 1 else around.pop()
        k = k - count if k > count // 2 else k
        text = f"layers shifted by {k} from layer {min(found)} on: layer {min(found)} of {side}"
        return "layers-shifted", f"{text} is layer {found[min(found)]} of the other"
    if _injective(found, count):
        return "layers-permuted", f"layers permuted: {_mapping(found)}"
    return "layers-duplicated", f"layers duplicated in {side}: {_mapping(found)}"


def _injective(found: Mapping[int, int], count: int) -> bool:
    """Whether no number comes twice, those that did not move included."""
    return len({found.get(k, k) for k in range(count)}) == count


def _mapping(found: Mapping[int, int]) -> str:
    shown = [f"{to} holds {source}" for to, source in sorted(found.items())]
    return ", ".join(shown[:16]) + (", …" if len(shown) > 16 else "")
