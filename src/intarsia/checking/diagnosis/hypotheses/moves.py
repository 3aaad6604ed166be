"""Whole tensors found under other names: experts, layers, projections in each other's place."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

import numpy as np

from intarsia.checking.diagnosis.evidence import Evidence
from intarsia.checking.diagnosis.hypotheses.values import changed_after
from intarsia.checking.diagnosis.hypothesis import Hypothesis, Score
from intarsia.checking.diagnosis.rearranged.keys import FEWEST_SIGNS, bits_of_number, negative
from intarsia.checking.naming import numbers_of_name, pattern, place_of
from intarsia.checking.pair.pairs import Pair
from intarsia.checkpoint import Checkpoint
from intarsia.frozen import frozen_open
from intarsia.layout import Layout, concat
from intarsia.mesh import Box
from intarsia.planning.manifest import Logical, Manifest
from intarsia.quantised import PartRole
from intarsia.run.sharing import share_out
from intarsia.state.names import kind_of
from intarsia.value.bits import bits_dtype

PROBE = 32
"""Elements that are read at the start, the middle and the end of a tensor to recognise it."""

TELLING_BITS = 40
"""The information, in bits, that elements of two values must hold to identify one tensor."""

MOST_RELATED = 4096
"""How many tensors that do not differ are looked at in search of one that was copied."""

Fingerprint = tuple[tuple[int, ...], str, bytes]


@frozen_open
class Move:
    """`to` of one side holds what the other side keeps under `source`; `side` is the one of `to`.

    `change` is what became of the numbers on the way, if anything.
    """

    to: str
    source: str
    score: Score
    side: str = "B"
    change: Hypothesis | None = None

    @property
    def equation(self) -> tuple[str, str]:
        """The tensors of A and of B that are equal."""
        return (self.source, self.to) if self.side == "B" else (self.to, self.source)


def find_moves(evidence: Sequence[Evidence]) -> dict[Pair, Move]:
    """Every differing tensor that holds another tensor's elements, bit by bit or all changed alike.

    B's tensors are looked for in A and A's in B: the side on which more are found is the faulty
    one, for what was copied there is twice on it and once on the other.
    """
    found: dict[Pair, Move] = {}
    for loose in (False, True):
        rest = [e for e in evidence if e.pair not in found]
        guessed = {}
        for side, turned in (("B", rest), ("A", [e.flipped for e in rest])):
            both = zip(turned, _guess(turned, loose), strict=True)
            guessed[side] = [(e, source) for e, source in both if source is not None]
        for side in sorted(guessed, key=lambda side: -len(guessed[side])):
            known = {move.equation for move in found.values()}
            for pair, move in _confirmed(side, guessed[side]):
                # A swap seen from its other side is no news of the tensor that is still open.
                if pair not in found and move.equation not in known:
                    found[pair] = move
    return found


def _confirmed(side: str, guessed: list[tuple[Evidence, str]]) -> Iterator[tuple[Pair, Move]]:
    if not guessed:
        return
    moves = share_out(guessed, guessed[0][0].budget.workers, lambda x: _confirm(side, *x))
    for (e, _), move in zip(guessed, moves, strict=True):
        if move is not None:
            yield (e.pair if side == "B" else e.pair.flipped), move


def _confirm(side: str, e: Evidence, source: str) -> Move | None:
    h = Hypothesis("", "", Layout.of(source, e.a.manifest.logical[source].shape))
    score = e.on_sample(h)
    if score.share >= 0.5:
        score = e.on_all(h)
        return Move(e.pair.b.name, source, score, side) if score.holds else None
    changed = changed_after(e, h)
    if changed is None:
        return None
    score, value = changed
    return Move(e.pair.b.name, source, score, side, value)


def _guess(evidence: Sequence[Evidence], loose: bool) -> list[str | None]:
    """For each tensor of B the other one of A that its elements, or their signs, look like."""
    if not evidence:
        return []
    a, b = evidence[0].a, evidence[0].b
    wanted = [_fingerprint(b, e.pair.b, loose) for e in evidence]
    known: dict[Fingerprint, list[str]] = {}
    _learn(a, (e.pair.a for e in evidence), known, loose)
    seen = {e.name for e in evidence}
    lost = [e for e, w in zip(evidence, wanted, strict=True) if w is not None and w not in known]
    shapes = {(e.shape, e.pair.a.dtype) for e in lost}
    every = a.manifest.logical.values()
    related = [x for x in every if (x.shape, x.dtype) in shapes and x.name not in seen]
    _learn(a, related[:MOST_RELATED], known, loose)
    out: list[str | None] = []
    for e, w in zip(evidence, wanted, strict=True):
        names = known.get(w, []) if w else []
        if loose and e.name in names:
            names = []
        # A is read as numbers of one type: what has another is reported by its types.
        names = [n for n in names if a.manifest.logical[n].dtype == e.pair.a.dtype]
        names = [n for n in names if n not in (e.name, e.pair.b.name)]
        if _is_common(a.manifest, names):
            names = []
        out.append(min(names, key=partial(_distance, e.name)) if names else None)
    return out


def is_table(manifest: Manifest, name: str) -> bool:
    """Whether a tensor is a part of quantised weights that many have alike: an order of groups, a code, a shape."""
    part = manifest.quantised.by_part.get(name)
    return part is not None and part[1].role in (PartRole.ORDER, PartRole.OTHER)


def _is_common(manifest: Manifest, names: Sequence[str]) -> bool:
    """Whether equal tensors are a table that layers have in common, and not one layer's own."""
    return any(is_table(manifest, n) for n in names[:1]) and len({place_of(n).layer for n in names}) > 1  # fmt: skip


def _learn(
    side: Checkpoint, tensors: Iterable[Logical], known: dict[Fingerprint, list[str]], loose: bool
) -> None:
    for x in tensors:
        fingerprint = _fingerprint(side, x, loose)
        if fingerprint is not None:
            known.setdefault(fingerprint, []).append(x.name)


def _fingerprint(side: Checkpoint, x: Logical, loose: bool) -> Fingerprint | None:
    """A few elements of a tensor, or their signs; None where they are alike and tell nothing."""
    n = x.size
    if n < 4:
        return None
    flat = Layout.of(x.name, (n,))
    probe = flat
    if n > 4 * PROBE:
        starts = (0, n // 2, n - PROBE)
        probe = concat([flat.narrow(0, lo, lo + PROBE) for lo in starts])
    raw = side.read_box(side.prove(x.name, probe, x.dtype), Box.whole(probe.shape))
    if loose:
        if not x.dtype.floating:
            return None
        signs = negative(raw.view(bits_dtype(x.dtype)), x.dtype)
        tells = FEWEST_SIGNS // 3 <= np.count_nonzero(signs) <= len(signs) - FEWEST_SIGNS // 3
        bits = np.packbits(signs ^ signs[:1]).tobytes()
        return (x.shape, "signs", bits) if tells else None
    kinds = np.unique(raw.reshape(-1, x.dtype.itemsize), axis=0)
    held = bits_of_number(raw.view(bits_dtype(x.dtype))) * probe.size
    return (
        (x.shape, x.dtype.name, raw.tobytes()) if len(kinds) > 2 or held >= TELLING_BITS else None
    )


def _distance(name: str, other: str) -> tuple[bool, bool, int]:
    """Names of one pattern are near, then those of one kind of state, then numbers close by."""
    far = pattern(name) != pattern(other)
    mine, theirs = numbers_of_name(name), numbers_of_name(other)
    gap = sum(abs(x - y) for x, y in zip(mine, theirs, strict=False))
    return far, kind_of(name) != kind_of(other), gap
