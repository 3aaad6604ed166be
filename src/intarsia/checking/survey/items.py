"""The stored tensors of a checkpoint as items that are read on their own, each byte once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

from intarsia.checking.naming import StackedMatrix, units_of
from intarsia.errors import few
from intarsia.frozen import frozen_open
from intarsia.mesh import Box
from intarsia.planning.manifest import Chunk, Manifest, Stored
from intarsia.state.names import kind_of


@frozen_open
class SurveyItem:
    """A stored tensor, or one matrix of it, with the chunks that hold it.

    `names` are all stored tensors that these chunks stand for: Megatron-FSDP's main weight is
    the weight too.
    """

    names: tuple[Stored, ...]
    units: tuple[StackedMatrix, ...]
    chunks: Sequence[Chunk]

    @property
    def stored(self) -> Stored:
        return self.names[0]

    @cached_property
    def kinds(self) -> set[str]:
        """What it is in training: a weight (empty), a main weight, a moment."""
        return {kind_of(s.layout.tensors[0] if s.layout.tensors else s.name) for s in self.names}

    @property
    def files(self) -> str:
        """The files that hold it, the first few of them."""
        return few(sorted({chunk.file for chunk in self.chunks}))

    @property
    def nbytes(self) -> int:
        return sum(chunk.box.size for chunk in self.chunks) * self.stored.dtype.itemsize


def items_of(manifest: Manifest) -> list[SurveyItem]:
    """The items of a checkpoint, each byte in one of them."""
    twins: dict[Any, list[Stored]] = {}
    keys = Counter([stored.key for stored in manifest.stored.values()])
    for stored in manifest.stored.values():
        if stored.chunks:
            # Two names of one tensor on disk have one key, and the same chunks.
            same = stored.chunks if keys[stored.key] > 1 else ()
            twins.setdefault((stored.key, same), []).append(stored)
    return [item for held in twins.values() for item in _cut(tuple(held))]


def _cut(names: tuple[Stored, ...]) -> Iterator[SurveyItem]:
    """One item per matrix where no chunk spans two of them, so that little is held at once."""
    stored, units = names[0], units_of(names[0])
    if not units or not stored.layout.size:
        return
    if len(units) == 1:
        if held := tuple([chunk for chunk in stored.chunks if chunk.box.size]):
            yield SurveyItem(names, (units[0],), held)
        return
    by_unit: dict[int, list[Chunk]] = {}
    for chunk in stored.chunks:
        if not chunk.box.size:
            continue
        first, last = (row // max(units[0].rows, 1) for row in _row_span(chunk.box, stored.shape))
        if first != last:
            yield SurveyItem(names, tuple(units), stored.chunks)
            return
        by_unit.setdefault(first, []).append(chunk)
    for k, chunks in by_unit.items():
        yield SurveyItem(names, (units[k],), tuple(chunks))


def _row_span(box: Box, shape: tuple[int, ...]) -> tuple[int, int]:
    first = last = 0
    for o, n, size in zip(box.offsets[:-1], box.shape[:-1], shape[:-1], strict=True):
        first, last = first * size + o, last * size + o + n - 1
    return first, last
