"""Padding of a vocabulary that holds numbers: rows that no token has, which a training touched all the same.

How many rows a vocabulary is padded to depends on the mesh, so padding is no part of a model: it is
neither carried nor compared.  Where it is not zero, that is reported.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from dataclasses import replace
from math import prod

import numpy as np
from numpy.typing import NDArray

from intarsia.checkpoint import Checkpoint
from intarsia.document import Document
from intarsia.format.registry import format_named
from intarsia.frozen import frozen
from intarsia.layout import Layout
from intarsia.planning.coalesce import grid
from intarsia.planning.manifest import Logical, Manifest, Stored
from intarsia.planning.whole_tensor import not_whole
from intarsia.planning.window import windows
from intarsia.run.budget import Budget
from intarsia.value import PLAIN
from intarsia.value.bits import bits_dtype


@frozen
class TrainedPadding(Document):
    """A stored tensor whose padding is not zero: its rows, and how many of them hold numbers."""

    tensor: str
    rows: int
    trained: int
    elements: int


def trained_padding(
    src: Manifest, budget: Budget, names: Set[str] | None = None
) -> tuple[TrainedPadding, ...]:
    """The padding of a checkpoint that is not zero; with `names`, in what holds these logical tensors."""
    padded = [
        s
        for s in not_whole(src.stored)
        if not s.layout.is_run
        and 0 < s.layout.mapped < s.layout.size
        and not format_named(src.format).has_gaps(s.name)
        and (names is None or not names.isdisjoint(s.layout.tensors))
    ]
    if not padded:
        return ()
    with Checkpoint(_as_stored(src, padded)) as checkpoint:
        found = (_trained(checkpoint, src, s, budget.window_bytes) for s in padded)
        return tuple(x for x in found if x is not None)


def _as_stored(src: Manifest, padded: Iterable[Stored]) -> Manifest:
    """The same files, with stored tensors as the logical ones: padding is then read as any element."""
    plain = {
        s.name: replace(s, layout=Layout.of(s.name, s.shape), value=PLAIN, key=s.on_disk)
        for s in padded
    }
    logical = {name: Logical(name, s.shape, s.dtype) for name, s in plain.items()}
    return replace(src, stored=plain, logical=logical)


def _trained(
    checkpoint: Checkpoint, src: Manifest, stored: Stored, window_bytes: int
) -> TrainedPadding | None:
    layout = stored.layout
    width = max(1, prod(src.logical[layout.tensors[0]].shape[1:]))
    whole = checkpoint.prover.tensor(stored.name)
    before, held = 0, list[NDArray[np.int64]]()
    for box in windows(stored.shape, stored.dtype.itemsize, window_bytes):
        part = layout.box(box.offsets, box.shape)
        if part.mapped == part.size:
            continue
        at = np.flatnonzero(_unmapped(part))
        bits = checkpoint.read_box(whole, box).view(bits_dtype(stored.dtype))
        # Both zeros are nothing: without the sign all other bits are clear.
        sign = 1 << (8 * stored.dtype.itemsize - 1)
        held.append(before + np.flatnonzero(bits[at] & ~np.array(sign, bits.dtype)))
        before += len(at)
    numbers = np.concatenate(held) if held else np.empty(0, np.int64)
    if not len(numbers):
        return None
    rows = len(np.unique(numbers // width))
    return TrainedPadding(stored.on_disk, before // width, rows, len(numbers))


def _unmapped(part: Layout) -> NDArray[np.bool_]:
    found = np.ones(part.size, np.bool_)
    for piece in part.pieces:
        found[piece.at + grid(piece.loops, "at", 1)] = False
    return found


def not_carried(found: Iterable[TrainedPadding]) -> Iterator[str]:
    """What a conversion says of trained padding."""
    for x in found:
        yield (
            f"{x.trained} of {x.rows} padding rows of `{x.tensor}` hold numbers ({x.elements:,}"
            " elements are not zero): they belong to no token of the vocabulary and are left out"
        )


def not_compared(found: Iterable[TrainedPadding], side: str) -> Iterator[str]:
    """What a comparison says of it."""
    for x in found:
        yield (
            f"not compared: {x.rows} padding rows of `{x.tensor}` in {side}, {x.trained} of which hold"
            f" numbers ({x.elements:,} elements are not zero)"
        )
