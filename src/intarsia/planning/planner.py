"""The planner: it matches destination tensors with their sources, and proves the move.

The proof is made of three small ones, which compose.  The boxes of a destination tensor
tile it; the chunks of a source tensor tile it; and each element that the destination's
layout names is held by exactly one source.  Whether boxes tile a tensor depends on shapes
alone, so one proof serves every tensor of the same template: a thousand ranks and tens of
thousands of tensors come down to a few dozen proofs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from intarsia.layout import Layout, cover, holes, unravel
from intarsia.mesh import Box, Mesh
from intarsia.planning.coalesce import merge, runs_of
from intarsia.planning.copy import Copy, copies_into, sources_of
from intarsia.planning.manifest import Manifest, Stored, Target
from intarsia.planning.plan import Gap, LeftOut, Plan
from intarsia.planning.tiling import tiling_fault
from intarsia.planning.window import windows

WINDOW_BYTES = 8 << 20
"""How much of a destination tensor moves at once, unless memory is scarcer."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What filling a tensor takes."""

    copies: int
    read_bytes: int
    needed_bytes: int


@dataclass
class Prover:
    """Proofs and costs, each made once for every template of shapes."""

    src: Manifest
    window_bytes: int = WINDOW_BYTES
    _tilings: dict[Any, str | None] = field(default_factory=dict)
    _facts: dict[Any, tuple[Cost, bool]] = field(default_factory=dict)

    def gaps(self, target: Target, sources: tuple[Stored, ...]) -> tuple[Cost, list[Gap]]:
        """What filling `target` costs, and the faults that forbid it."""
        faults = [Gap(target.name, 0, text) for text in self._tile_faults(target, sources)]
        if faults:
            # What is not there may be claimed to be without end; counting its windows would be, too.
            exact = self._exact(target, sources)
            return Cost(0, 0, 0), faults + ([] if exact else [self._explain(target, sources)])
        key = (
            self._pattern(target.layout, sources),
            id(target.boxes),
            target.dtype,
            tuple((s.dtype, *(self._box_key(s))) for s in sources),
        )
        known = self._facts.get(key)
        if known is None:
            known = self._prove(target, sources)
            self._facts[key] = known
        cost, exact = known
        if not exact:
            faults.append(self._explain(target, sources))
        return cost, faults

    def _box_key(self, stored: Stored) -> tuple[Any, ...]:
        if len(stored.chunks) == 1:
            return (stored.chunks[0].box,)
        return tuple(chunk.box for chunk in stored.chunks)

    def _pattern(self, layout: Layout, sources: tuple[Stored, ...]) -> Any:
        """What two tensors of one template have in common: everything but names."""
        if len(sources) == 1 and (sources[0].layout is layout or sources[0].layout == layout):
            return layout.shape
        order: dict[str, int] = {}
        return tuple(
            (
                x.shape,
                tuple(
                    (order.setdefault(p.tensor, len(order)), p.at, p.to, p.loops) for p in x.pieces
                ),
            )
            for x in (layout, *(s.layout for s in sources))
        )

    def _tile_faults(self, target: Target, sources: tuple[Stored, ...]) -> Iterable[str]:
        key = (target.shape, id(target.boxes))
        if key not in self._tilings:
            self._tilings[key] = tiling_fault(target.shape, target.boxes)
        if (fault := self._tilings[key]) is not None:
            yield f"the parts of `{target.name}` do not tile it: {fault}"
        for stored in sources:
            chunks = stored.chunks
            if len(chunks) == 1 and chunks[0].box == Box.whole(stored.shape):
                continue
            fault = tiling_fault(stored.shape, tuple(c.box for c in chunks))
            if fault is not None:
                yield f"the chunks of `{stored.key or stored.name}` in {self.src.path} do not tile it: {fault}"

    def _prove(self, target: Target, sources: tuple[Stored, ...]) -> tuple[Cost, bool]:
        exact = self._exact(target, sources)
        return self._cost(target, sources) if exact else Cost(0, 0, 0), exact

    def _exact(self, target: Target, sources: tuple[Stored, ...]) -> bool:
        same = len(sources) == 1 and sources[0].layout == target.layout
        return same or cover(target.layout, [s.layout for s in sources]).exact

    def _cost(self, target: Target, sources: tuple[Stored, ...]) -> Cost:
        count = read = needed = 0
        for window in windows(target.shape, target.dtype.itemsize, self.window_bytes):
            found: list[Copy] = []
            for box in target.boxes:
                part = box.meet(window) if target.layout.size else None
                if part is not None:
                    found += copies_into(target.layout, part, sources)
            count += len(found)
            n, r = read_cost(found)
            needed, read = needed + n, read + r
        return Cost(count, read, needed)

    def _explain(self, target: Target, sources: tuple[Stored, ...]) -> Gap:
        found = cover(target.layout, [s.layout for s in sources])
        lost = found.wanted - found.covered
        text = f"{lost:,} of {found.wanted:,} elements of `{target.name}` have no source"
        if not lost:
            text = f"{found.doubled:,} elements of `{target.name}` have more than one source"
        if found.first_missing is not None:
            tensor, element = found.first_missing
            shape = self.src.logical[tensor].shape if tensor in self.src.logical else None
            index = list(unravel(element, shape)) if shape is not None else [element]
            text += f"; first missing: {tensor}{index}"
        held = ", ".join(s.key or s.name for s in sources[:4])
        return Gap(target.name, lost or found.doubled, text + (f"; held by {held}" if held else ""))


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
        lo, hi = merge(starts, lengths)
        read += int((hi - lo).sum())
    return needed, read


def make_plan(
    src: Manifest,
    targets: Sequence[Target],
    *,
    to: str,
    mesh: Mesh,
    peak_memory_bytes: int,
    window_bytes: int = WINDOW_BYTES,
    drop: dict[str, str] | None = None,
    notes: Sequence[str] = (),
) -> Plan:
    """Match, count and prove; `drop` names the logical tensors to leave out, and why."""
    prover = Prover(src, window_bytes)
    gaps: list[Gap] = []
    copies = read = needed = 0
    used: dict[str, list[Layout]] = {}
    for target in targets:
        cost, faults = prover.gaps(target, sources_of(target.layout, src))
        gaps += faults
        copies, read, needed = (
            copies + cost.copies,
            read + cost.read_bytes,
            needed + cost.needed_bytes,
        )
        for name in target.layout.tensors:
            used.setdefault(name, []).append(target.layout)
    left = list(_left_out(src, used, drop or {}))
    gaps += [
        Gap(x.tensor, x.elements, f"{x.elements:,} elements of `{x.tensor}` are not used")
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
        gaps=tuple(gaps),
        left_out=tuple(x for x in left if x.why),
        notes=tuple(notes),
    )


def _left_out(
    src: Manifest, used: dict[str, list[Layout]], drop: dict[str, str]
) -> Iterable[LeftOut]:
    """Source elements that no target takes; `why` is empty where nobody asked for that."""
    for name, logical in src.logical.items():
        layouts = used.get(name, [])
        if len(layouts) == 1 and layouts[0].mapped == logical.size and len(layouts[0].tensors) == 1:
            continue
        if not layouts:
            if logical.size:
                yield LeftOut(name, logical.size, drop.get(name, ""))
            continue
        unused = sum(hi - lo for lo, hi in holes(layouts, name, logical.size))
        if unused:
            yield LeftOut(name, unused, drop.get(name, ""))
