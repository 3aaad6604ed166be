"""Tensors of two checkpoints that should be equal, read window by window."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from intarsia.checkpoint import Checkpoint
from intarsia.family import table_for
from intarsia.mesh import Box
from intarsia.planning.manifest import Logical
from intarsia.planning.window import windows
from intarsia.run.budget import Budget
from intarsia.run.gather import Bytes


@dataclass(frozen=True, slots=True)
class Pair:
    """One logical tensor of A and the one of B that should equal it."""

    a: Logical
    b: Logical

    @property
    def flipped(self) -> Pair:
        return Pair(self.b, self.a)


@dataclass(frozen=True, slots=True)
class Matched:
    """The pairs of two checkpoints, and what has no partner."""

    pairs: tuple[Pair, ...]
    only_in_a: tuple[str, ...]
    only_in_b: tuple[str, ...]
    notes: tuple[str, ...]


def match(a: Checkpoint, b: Checkpoint) -> Matched:
    """Pairs of equal names; a tied tensor that one side leaves out is held against its twin."""
    left, right = a.manifest.logical, b.manifest.logical
    table = table_for(a.config) or table_for(b.config)
    tied = table.tied if table else {}
    pairs = [Pair(x, right[name]) for name, x in left.items() if name in right]
    notes: list[str] = []
    only: list[list[str]] = [[], []]
    for side, (ours, theirs) in enumerate(((left, right), (right, left))):
        for name in ours:
            twin = tied.get(name)
            if name in theirs:
                continue
            if twin is not None and twin in theirs:
                pair = Pair(ours[name], theirs[twin])
                pairs.append(pair if side == 0 else pair.flipped)
                notes.append(f"`{name}` is tied and stored on one side; compared with `{twin}`")
            else:
                only[side].append(name)
    return Matched(tuple(pairs), tuple(only[0]), tuple(only[1]), tuple(notes))


def read(checkpoint: Checkpoint, x: Logical, box: Box) -> Bytes:
    """The bytes of a box of a logical tensor."""
    return checkpoint.read_box(checkpoint.prover.tensor(x.name), box)


def read_windows(
    a: Checkpoint, b: Checkpoint, pair: Pair, budget: Budget
) -> Iterator[tuple[Box, Bytes, Bytes]]:
    """Both sides of a pair, one window at a time."""
    widest = max(pair.a.dtype.itemsize, pair.b.dtype.itemsize)
    for box in windows(pair.a.shape, widest, budget.window_bytes // 2):
        yield box, read(a, pair.a, box), read(b, pair.b, box)
