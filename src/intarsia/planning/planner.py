"""The planner: it matches destination tensors with their sources, and proves the move.

The proof is made of three small ones, which compose.  The boxes of a destination tensor
tile it; the chunks of a source tensor tile it; and each element that the destination's
layout names is held by exactly one source.  Whether boxes tile a tensor depends on shapes
alone, so one proof serves every tensor of the same template: a thousand ranks and tens of
thousands of tensors come down to a few dozen proofs.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from intarsia.frozen import frozen
from intarsia.layout import Piece, once
from intarsia.mesh import Mesh
from intarsia.planning.coalesce import merge_runs, runs_of
from intarsia.planning.copy import Copy
from intarsia.planning.inventory import LeftOut, Reason
from intarsia.planning.manifest import Manifest, Target
from intarsia.planning.plan import Plan
from intarsia.planning.proof import Gap, Proven, prover_of
from intarsia.planning.together import ProvenGroup, partners, windows_together
from intarsia.planning.window import WINDOW_BYTES


@frozen
class Cost:
    """What filling a tensor takes."""

    copies: int
    read_bytes: int
    needed_bytes: int


class Costs:
    """Costs of proven targets, each counted once for every template of shapes."""

    def __init__(self, window_bytes: int) -> None:
        self._window_bytes = window_bytes
        self._known: dict[Any, Cost] = {}

    def of(self, group: ProvenGroup) -> Cost:
        """What filling targets takes that move together."""
        base = group[0].template.start
        key = tuple([_kind(x, base) for x in group]) if group[1:] else _kind(group[0], base)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._count(group)
        return found

    def _count(self, group: ProvenGroup) -> Cost:
        count = read = needed = 0
        for windows in windows_together(group, self._window_bytes):
            found: list[Copy] = []
            for proven, window in windows:
                for box in proven.target.boxes:
                    part = box.meet(window) if proven.target.layout.size else None
                    if part is not None:
                        found += proven.copies(part)
            count += len(found)
            n, r = read_cost(found)
            needed, read = needed + n, read + r
        return Cost(count, read, needed)


def _kind(proven: Proven, base: int) -> Hashable:
    """What the cost of a target depends on: not where in a chunk it reads, if all read there together."""
    template, target = proven.template, proven.target
    types = [s.dtype.name for s in proven.sources]
    return template.kind, template.start - base, id(target.boxes), target.dtype.name, *types


def read_cost(found: Sequence[Copy]) -> tuple[int, int]:
    """The bytes that copies need, and the bytes that reading them together takes."""
    needed, read = 0, 0
    by_file: dict[str, list[tuple[Any, int]]] = {}
    for copy in found:
        itemsize = copy.stored.dtype.itemsize
        runs = runs_of(copy.piece, itemsize, copy.chunk.start_bytes)
        by_file.setdefault(copy.chunk.file, []).append((runs.starts, runs.length))
        size = 1
        for loop in copy.piece.loops:
            size *= loop.n if loop.at else 1
        needed += size * itemsize
    for runs_in_file in by_file.values():
        starts = np.concatenate([s for s, _ in runs_in_file])
        lengths = np.concatenate([np.full(len(s), n, np.int64) for s, n in runs_in_file])
        lo, hi = merge_runs(starts, lengths)
        read += int((hi - lo).sum())
    return needed, read


_UNASKED = Reason("")


def make_plan(
    src: Manifest,
    targets: Sequence[Target],
    *,
    to: str,
    mesh: Mesh,
    peak_memory_bytes: int,
    window_bytes: int = WINDOW_BYTES,
    drop: Mapping[str, Reason] | None = None,
    notes: Sequence[str] = (),
) -> Plan:
    """Match, count and prove; `drop` names the logical tensors to leave out, and why."""
    prover, costs = prover_of(src), Costs(window_bytes)
    gaps: list[Gap] = []
    proofs: list[Proven] = []
    copies = read = needed = 0
    used: dict[str, list[Piece]] = {}
    for target in targets:
        found = prover.attempt(target)
        if isinstance(found, Proven):
            proofs.append(found)
        else:
            # What is not there may be claimed to be without end; counting its windows would be, too.
            gaps += found
        for piece in target.layout.pieces:
            used.setdefault(piece.tensor, []).append(piece)
    for group in partners(proofs):
        cost = costs.of(group)
        copies += cost.copies
        read += cost.read_bytes
        needed += cost.needed_bytes
    left = list(_left_out(src, used, drop or {}))
    gaps += [
        Gap(
            x.tensor,
            x.elements,
            f"{x.elements:,} elements of `{x.tensor}` are not used",
            hint=f"{to} has no place for them: choose a format that keeps tensors by name; optimizer"
            " state is left out with --optimizer drop",
        )
        for x in left
        if not x.why
    ]
    return Plan(
        src=src,
        targets=tuple(targets),
        to=to,
        mesh=mesh,
        copies=copies,
        read_bytes=read,
        needed_bytes=needed,
        write_bytes=sum(t.nbytes for t in targets),
        peak_memory_bytes=peak_memory_bytes,
        proofs=tuple(proofs),
        gaps=tuple(dict.fromkeys(gaps)),
        left_out=tuple(x for x in left if x.why),
        notes=tuple(notes),
    )


def _left_out(
    src: Manifest, used: Mapping[str, Sequence[Piece]], drop: Mapping[str, Reason]
) -> Iterable[LeftOut]:
    """Source elements that no target takes; `why` is empty where nobody asked for that."""
    counts: dict[Any, int] = {}
    for name, logical in src.logical.items():
        pieces, size = used.get(name, ()), logical.size
        if len(pieces) == 1 and pieces[0].to == 0 and pieces[0].run == size:
            continue
        key = (size, *[(p.to, id(p.loops)) for p in pieces])  # `used` keeps them
        unused = counts.get(key)
        if unused is None:
            unused = counts[key] = size - once([p.flip() for p in pieces], 0, size)
        if unused:
            why = drop.get(name, _UNASKED)
            yield LeftOut(name, unused, why.text, why.lost)
