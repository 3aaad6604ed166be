"""Findings of many tensors as few faults."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from math import prod

from intarsia.checking.diagnosis.finding import LOST, UNEXPLAINED, Finding
from intarsia.checking.diagnosis.hypotheses.faults_of_moves import faults_of_moves, half_swapped
from intarsia.checking.diagnosis.hypothesis import Score
from intarsia.checking.diagnosis.names import as_ranges, where, with_numbers
from intarsia.checking.diagnosis.where.elements import DENSE, AxisBlock, DifferingElements
from intarsia.checking.diagnosis.where.files import wrong_files
from intarsia.checking.fault import Fault
from intarsia.checking.naming import (
    ModelPlace,
    expert_in,
    expert_of,
    layer_in,
    layer_of,
    place_of,
    without_layer,
)
from intarsia.checking.pair.quantised_differently import QuantisedDifferently
from intarsia.errors import few
from intarsia.family import Table
from intarsia.mesh import share
from intarsia.planning.manifest import Logical, Manifest
from intarsia.state.names import parameter_of

BLOCKS = ("shards-permuted", "heads-permuted", "strided-shard")
"""Kinds that look alike in a tensor whose heads are as large as its shards."""

WHOLE = (UNEXPLAINED, "zero", "nan")
MOST_TEXTS = 3
ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")


def summarise(findings: Sequence[Finding], a: Manifest, b: Manifest) -> tuple[Fault, ...]:
    """One fault for each cause, those that touch most tensors first."""
    names = list(a.logical)
    findings = with_lost_ranks(half_swapped(findings))
    differing = {f.tensor for f in findings}
    equal = a.logical.keys() & b.logical.keys() - differing
    moved = list(faults_of_moves(findings, names, equal))
    rest = _unified([f for f in findings if f.move is None])
    rest += [f.second for f in findings if f.second is not None]
    files, rest = wrong_files(rest, (("B", b), ("A", a)))
    ranks, rest = _lost_ranks(rest, a.logical, differing)
    groups: dict[tuple[str, Hashable], list[Finding]] = {}
    for f in rest:
        groups.setdefault((f.kind, f.key), []).append(f)
    plain = [_fault(kind, group, names) for (kind, _), group in groups.items()]
    faults = [*moved, *files, *ranks, *plain]
    return tuple(sorted(faults, key=lambda f: (f.kind == UNEXPLAINED, -len(f.tensors))))


def missing(
    side: str, names: Iterable[str], present: Iterable[str], table: Table | None = None
) -> Iterator[Fault]:
    """Faults for tensors that only the other side holds: layers, experts, single ones."""
    held = [*map(place_of, present)]
    stacks, layers = {p.stack for p in held}, {p.layer_of_stack for p in held}
    experts = {_expert(p) for p in held}
    groups: dict[str, list[str]] = {}
    for name in names:
        p, kind = place_of(name), "tensors-missing"
        if p.layer is not None and p.stack in stacks and p.layer_of_stack not in layers:
            kind = "layers-missing"
        elif p.expert is not None and _expert(p) not in experts:
            kind = "experts-missing"
        groups.setdefault(kind, []).append(name)
    for kind, lost in groups.items():
        text = f"{len(lost):,} tensor{'' if len(lost) == 1 else 's'}"
        if kind in _NUMBERED:
            what, number_of = _NUMBERED[kind]
            text = f"{what} {as_ranges(k for n in lost if (k := number_of(n)) is not None)}"
        if table and table.logical.keys().isdisjoint(map(parameter_of, lost)):
            text += f", which a {table.family} has not: {few(lost)}"
        yield Fault(kind, tuple(lost), where(lost), f"missing in {side}: {text}")


_NUMBERED = {"layers-missing": ("layers", layer_of), "experts-missing": ("experts", expert_of)}


def _expert(place: ModelPlace) -> tuple[str, int | None, int | None]:
    """An expert of one layer: each layer has its own."""
    return place.template.partition("experts.*")[0], place.layer, place.expert


def not_comparable(apart: QuantisedDifferently) -> Iterator[Fault]:
    """One fault for all weights that the two sides quantise differently."""
    if names := apart.names:
        yield Fault("quantised-differently", names, where(names), apart.text)


def _fault(kind: str, group: list[Finding], names: list[str]) -> Fault:
    tensors = tuple(f.tensor for f in group)
    texts = Counter(f.fault for f in group)
    text = texts.most_common(1)[0][0]
    if len(texts) > 1:
        text = "; ".join(f"{each} (in {count})" for each, count in texts.most_common(MOST_TEXTS))
        text += "; and others" if len(texts) > MOST_TEXTS else ""
    explained, differing = sum(f.explained for f in group), sum(f.differing for f in group)
    if len(group) > 1:
        alike = ", the same" if len(texts) == 1 else ";"
        text += f"{alike} in {len(group)} tensors{_layers(tensors, names)}"
    if twice := sum(f.second is not None for f in group):
        text += f"; {twice:,} of them also changed" if len(group) > 1 else ", and also changed"
    files = sorted({file for f in group for file in f.files}) if all(f.files for f in group) else []
    if files and not any(file in text for file in files):
        text += f"; all of it in {', '.join(files)}"
    if kind == UNEXPLAINED:
        text += f" ({differing:,} elements)"
        first = group[0].known or group[0].text
        text += f"; in {group[0].tensor}: {first}" if first else ""
    elif differing:
        text += f": {Score(differing, explained)}"
    return Fault(kind, tensors, where(tensors), text, differing)


def _layers(tensors: Iterable[str], names: Iterable[str]) -> str:
    patterns = {without_layer(n) for n in tensors}
    mine = {x for n in tensors if (x := layer_of(n)) is not None}
    every = {x for n in names if without_layer(n) in patterns and (x := layer_of(n)) is not None}
    return f" ({len(mine)} of {len(every)} layers)" if mine else ""


def _unified(findings: list[Finding]) -> list[Finding]:
    """Blocks in one order are one fault, whatever each tensor alone would call it."""
    groups: dict[Hashable, list[Finding]] = {}
    for f in findings:
        if f.kind in BLOCKS:
            groups.setdefault(f.key, []).append(f)
    names = {}
    for key, group in groups.items():
        votes = Counter(f.kind for f in group if not any(r in f.tensor for r in ATTENTION))
        if votes:
            names[key] = votes.most_common(1)[0][0]
    return [
        f if f.kind not in BLOCKS or f.key not in names else replace(f, kind=names[f.key])
        for f in findings
    ]


def _lost_ranks(
    findings: list[Finding], logical: Mapping[str, Logical], unequal: Set[str]
) -> tuple[list[Fault], list[Finding]]:
    """What an expert-parallel or a pipeline rank holds, where every matrix of it is wrong.

    `unequal` are all tensors that are not equal, whatever explains them.
    """
    faults: list[Fault] = []
    if not findings:
        return faults, findings
    for what, number in (("experts", expert_in), ("layers", layer_in)):
        numbered = {n: (n[: at.start("k")], int(at["k"])) for n in logical if (at := number(n))}
        for kind in WHOLE:
            alike = [f for f in findings if f.kind == kind and (f.all_over or kind == UNEXPLAINED)]
            wrong = [f for f in alike if f.tensor in numbered]
            places = [numbered[f.tensor] for f in wrong if f.whole]
            held, stems = {k for _, k in places}, {stem for stem, _ in places}
            like = {n: k for n, (stem, k) in numbered.items() if stem in stems}
            inside = {n for n, k in like.items() if k in held}
            group = [f for f in wrong if f.tensor in inside]
            matrices = {n for n in inside if len(logical[n].shape) > 1}
            full = len(matrices) > 1 and matrices <= {f.tensor for f in group}
            elsewhere = like.keys() & unequal - inside
            if not full or elsewhere or not _is_a_rank_s(held, 1 + max(like.values())):
                continue
            content = "stale" if kind == UNEXPLAINED else kind
            lost = {"zero": "is zero on one side", "nan": "is NaN on one side"}
            differs = lost.get(kind, "differs")
            every, some = (
                {x for n in names if (x := layer_of(n)) is not None} for names in (numbered, like)
            )
            part = what == "experts" and some != every
            text = f"every matrix of {with_numbers(what, held)}"
            text += f" in {with_numbers('layers', some)} {differs}" if part else f" {differs}"
            text += f", and of the other {what}{' there' if part else ''} none"
            tensors = tuple(f.tensor for f in group)
            elements = sum(f.differing for f in group)
            faults.append(Fault(LOST[content], tensors, where(tensors), text, elements))
            findings = [f for f in findings if f not in group]
    return faults, findings


def _is_a_rank_s(held: set[int], count: int) -> bool:
    """Whether some mesh has a rank that holds just these of `count` experts or layers."""
    shares = (share(count, n, rank) for n in range(2, count + 1) for rank in range(n))
    return any(n and held == {*range(first, first + n)} for first, n in shares)


KindAndKey = tuple[str, Hashable]

STALE = "rank-stale"
MANY = 3
"""Tensors that must show one rank's block before a few elements of another are explained by it."""


def with_lost_ranks(findings: Sequence[Finding]) -> list[Finding]:
    """The same findings; a block of a rank that many tensors lost is reported as that rank's."""
    blocks: Counter[KindAndKey] = Counter((f.kind, f.key) for f in findings if f.of_block)
    leading = [x for x, count in blocks.most_common() if count >= MANY]
    texts = {(f.kind, f.key): f.of_block for f in findings if f.of_block}
    return [_led(f, leading, texts) for f in findings]


def _led(f: Finding, leading: Sequence[KindAndKey], texts: Mapping[KindAndKey, str]) -> Finding:
    if f.where is None or not (f.of_block or f.kind == UNEXPLAINED):
        return f
    kind = STALE if f.kind == UNEXPLAINED else f.kind
    for leader in leading:
        cut = _block(f.where.differing, leader[1]) if leader[0] == kind else None
        if cut is not None:
            n = f.differing
            fault = f"{cut} {texts[leader]}"
            text = f"{fault} ({n:,} elements)"
            return replace(f, kind=kind, key=leader[1], fault=fault, text=text, explained=n)
    return f


def _block(elements: DifferingElements, key: Hashable) -> AxisBlock | None:
    """The block `((parts, rank),)` that the differences fill, on some axis."""
    match key:
        case ((int(parts), int(rank)),):
            pass
        case _:
            return None
    for axis, size in enumerate(elements.shape):
        first, count = share(size, parts, rank)
        lo, n = elements.box.offsets[axis], elements.box.shape[axis]
        block = prod(elements.shape) // max(size, 1) * count
        if 0 < count < size and first <= lo and lo + n <= first + count:
            return AxisBlock(axis, parts, rank) if elements.count >= DENSE * block else None
    return None
