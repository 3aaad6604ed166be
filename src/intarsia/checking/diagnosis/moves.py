"""Whole tensors found under other names: experts, layers, projections in each other's place."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np

from intarsia.checking.diagnosis.evidence import Evidence
from intarsia.checking.diagnosis.hypothesis import Hypothesis, Score
from intarsia.checking.pairs import Pair
from intarsia.checkpoint import Checkpoint
from intarsia.layout import Layout, concat
from intarsia.mesh import Box
from intarsia.planning.manifest import Logical

PROBE = 32
"""Elements that are read at the start, the middle and the end of a tensor to recognise it."""

MOST_KIN = 4096
"""How many tensors that do not differ are looked at in search of one that was copied."""

Fingerprint = tuple[tuple[int, ...], str, bytes]


@dataclass(frozen=True)
class Move:
    """`to` of one side holds what the other side keeps under `source`; `side` is the one of `to`."""

    to: str
    source: str
    score: Score
    side: str = "B"


def find_moves(evidence: Sequence[Evidence]) -> dict[Pair, Move]:
    """Every differing tensor that holds, bit by bit, another tensor's elements.

    B's tensors are looked for in A and A's in B: the side on which more are found is the faulty
    one, for what was copied there is twice on it and once on the other.
    """
    found: dict[Pair, Move] = {}
    guessed = {}
    for side, turned in (("B", evidence), ("A", [_flipped(e) for e in evidence])):
        both = zip(turned, _guess(turned), strict=True)
        guessed[side] = [(e, source) for e, source in both if source is not None]
    for side in sorted(guessed, key=lambda side: -len(guessed[side])):
        whose = [e.pair if side == "B" else e.pair.flipped for e, _ in guessed[side]]
        named = [
            (pair, *guess)
            for pair, guess in zip(whose, guessed[side], strict=True)
            if pair not in found
        ]
        if not named:
            continue
        with ThreadPoolExecutor(evidence[0].budget.workers, "intarsia") as pool:
            scores = list(pool.map(lambda x: _confirm(x[1], x[2]), named))
        for (pair, e, source), score in zip(named, scores, strict=True):
            if score.holds:
                found[pair] = Move(e.pair.b.name, source, score, side)
    return found


def _flipped(e: Evidence) -> Evidence:
    return Evidence(e.b, e.a, e.pair.flipped, e.first, e.budget)


def _confirm(e: Evidence, source: str) -> Score:
    layout = Layout.of(source, e.a.manifest.logical[source].shape)
    return e.on_all(Hypothesis("", "", layout))


def _guess(evidence: Sequence[Evidence]) -> list[str | None]:
    """For each tensor of B the other one of A that its elements look like."""
    if not evidence:
        return []
    a, b = evidence[0].a, evidence[0].b
    wanted = [_fingerprint(b, e.pair.b) for e in evidence]
    known: dict[Fingerprint, list[str]] = {}
    _learn(a, (e.pair.a for e in evidence), known)
    seen = {e.name for e in evidence}
    lost = [e for e, w in zip(evidence, wanted, strict=True) if w is not None and w not in known]
    shapes = {(e.shape, e.pair.a.dtype) for e in lost}
    every = a.manifest.logical.values()
    kin = [x for x in every if (x.shape, x.dtype) in shapes and x.name not in seen]
    _learn(a, kin[:MOST_KIN], known)
    out: list[str | None] = []
    for e, w in zip(evidence, wanted, strict=True):
        names = [n for n in known.get(w, ()) if n != e.name] if w else []
        out.append(min(names, key=partial(_distance, e.name)) if names else None)
    return out


def _learn(
    side: Checkpoint, tensors: Iterable[Logical], known: dict[Fingerprint, list[str]]
) -> None:
    for x in tensors:
        fingerprint = _fingerprint(side, x)
        if fingerprint is not None:
            known.setdefault(fingerprint, []).append(x.name)


def _fingerprint(side: Checkpoint, x: Logical) -> Fingerprint | None:
    """A few elements of a tensor; None where they are all alike and tell nothing."""
    n = x.size
    if n < 4:
        return None
    flat = Layout.of(x.name, (n,))
    probe = flat
    if n > 4 * PROBE:
        starts = (0, n // 2, n - PROBE)
        probe = concat([flat.narrow(0, lo, lo + PROBE) for lo in starts])
    raw = side.read_box(probe, Box.whole(probe.shape), x.dtype)
    kinds = np.unique(raw.reshape(-1, x.dtype.itemsize), axis=0)
    return (x.shape, x.dtype.name, raw.tobytes()) if len(kinds) > 2 else None


def _distance(name: str, other: str) -> tuple[bool, int]:
    """Names of one pattern are near, and so are numbers that differ little."""
    far = pattern(name) != pattern(other)
    mine, theirs = numbers_in(name), numbers_in(other)
    gap = sum(abs(x - y) for x, y in zip(mine, theirs, strict=False))
    return far, gap


def pattern(name: str) -> str:
    """A name without its numbers: `model.layers.*.mlp.up_proj.weight`."""
    return re.sub(r"(?<=\.)\d+(?=\.)", "*", name)


def numbers_in(name: str) -> tuple[int, ...]:
    """The numbers of a name: layer, then expert."""
    return tuple(int(n) for n in re.findall(r"(?<=\.)\d+(?=\.)", name))
