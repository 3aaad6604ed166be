"""Writing DCP's files: every box and every object gets its place before any byte is written.

All formats whose bytes lie in `.distcp` files are laid out here; what they differ in is the
names, and what stands beside the tensors.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from intarsia.dtypes import DType
from intarsia.format.base import PAGE_BYTES, Arrangement, Held, Slot, WriteOptions
from intarsia.format.dcp.metadata import METADATA, Metadata, TensorRecord
from intarsia.format.dcp.metadata_write import write_metadata
from intarsia.format.dcp.optimizer_key import optimizer_key, with_optimizer_at
from intarsia.format.torch_file.torch_frame import Frame, frame
from intarsia.mesh import Box, Mesh, Rule, Shape
from intarsia.planning.chunks import Chunks, Places
from intarsia.planning.manifest import Chunk, Entry, Target
from intarsia.state.names import ROOT

LINE_BYTES = 64
_OF_RANK = re.compile(r"__(\d+)_\d+\.distcp")


@dataclass
class Files:
    """The data files of a checkpoint, one a rank, as far as they are laid out."""

    ranks: int
    folder: str = ""
    fixed: list[tuple[str, int, bytes]] = field(default_factory=list)
    _ends: list[int] = field(init=False)
    names: list[str] = field(init=False)
    _frames: dict[tuple[str, Shape], tuple[Frame, int]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self._ends = [0] * self.ranks
        self.names = [*map(file_of, range(self.ranks))]

    def place(
        self, dtype: DType, box: Box, holding: Sequence[int], stored: Box | None = None
    ) -> tuple[Slot, Chunk]:
        """Give a box to the rank that has the least to write of those that hold it.

        `stored` is the box in the tensor on disk, where that is another than the target.
        """
        stored = stored or box
        wrap, to = self.frame_of(dtype, stored.shape)
        rank, at, gap = self.take(holding, wrap, to)
        slot = Slot(box, self.folder + self.names[rank], at + wrap.start_bytes, wrap, gap)
        return slot, Chunk(stored, self.names[rank], at, wrap.length_bytes)

    def frame_of(self, dtype: DType, shape: Shape) -> tuple[Frame, int]:
        """What is wrapped around a box, and what its elements are aligned to."""
        known = self._frames.get((dtype.torch, shape))
        if known is None:
            wrap = frame(dtype, shape)
            known = self._frames[dtype.torch, shape] = wrap, alignment_bytes(wrap)
        return known

    def take(self, holding: Sequence[int], wrap: Frame, to: int) -> tuple[int, int, int]:
        """The rank that writes a box, where what is wrapped around it begins, and the gap before that."""
        ends = self._ends
        rank = min(holding, key=lambda r: (ends[r], r)) if holding[1:] else holding[0]
        end = ends[rank]
        gap = -(end + wrap.start_bytes) % to
        ends[rank] = end + gap + wrap.length_bytes
        return rank, end + gap, gap

    def append(self, name: str, data: bytes) -> Entry:
        """Put an object behind all that the first rank writes."""
        file, at = file_of(0), self._ends[0]
        self._ends[0] += len(data)
        self.fixed.append((self.folder + file, at, data))
        return Entry(name, file, at, len(data))

    @property
    def sizes(self) -> dict[str, int]:
        """The files that hold anything, and how long they are."""
        return {self.folder + file_of(rank): end for rank, end in enumerate(self._ends) if end}


def arrange(targets: Sequence[Target], options: WriteOptions) -> Arrangement:
    """The files of a checkpoint whose tensors are cut as the mesh asks."""
    held, key = cut_by(options.mesh, targets), optimizer_key(options.source)
    return lay_out(held, options.entries, options.mesh.size, key)


def cut_by(mesh: Mesh, targets: Iterable[Target]) -> Iterator[Held]:
    """Each target, with the ranks of a mesh that hold its boxes."""
    return ((t.name, t.dtype, t.shape, holders(mesh, t.shape, t.rule)) for t in targets)


def lay_out(
    held: Iterable[Held], entries: Mapping[str, bytes], ranks: int, key: str = ROOT
) -> Arrangement:
    """The files of a checkpoint, from the ranks that hold each box of each tensor; `key` is the optimizer's."""
    files = Files(ranks)
    slots, tensors = place_all(files, held)
    objects = {name: files.append(name, data) for name, data in sorted(entries.items())}
    paths = {name: (name,) for name in (*tensors, *objects)}
    metadata = with_optimizer_at(key, Metadata(tensors, objects, paths, {}))
    return Arrangement(files.sizes, slots, files.fixed, {METADATA: write_metadata(metadata)})


def place_all(
    files: Files, held: Iterable[Held]
) -> tuple[dict[str, tuple[Slot, ...]], dict[str, TensorRecord]]:
    """A place for every box of every tensor, and what the metadata say of it."""
    slots: dict[str, tuple[Slot, ...]] = {}
    tensors: list[tuple[str, DType, Shape, tuple[Box, ...], int]] = []
    placed: list[tuple[int, int, int]] = []
    known: dict[tuple[int, str], _Cut] = {}
    names = [files.folder + name for name in files.names]
    for name, dtype, shape, boxes in held:
        if (cut := known.get((id(boxes), dtype.torch))) is None:
            wraps = [files.frame_of(dtype, box.shape) for box in boxes]
            cut = known[id(boxes), dtype.torch] = _Cut(boxes, tuple(boxes), wraps)
        tensors.append((name, dtype, shape, cut.boxes, len(placed)))
        found = []
        for (box, holding), (wrap, to) in zip(boxes.items(), cut.wraps, strict=True):
            rank, at, gap = files.take(holding, wrap, to)
            placed.append((rank, at, wrap.length_bytes))
            found.append(Slot(box, names[rank], at + wrap.start_bytes, wrap, gap))
        slots[name] = tuple(found)
    places = Places(files.names, *np.array(placed, np.int64).reshape(-1, 3).T.copy())
    return slots, {
        name: TensorRecord(name, dtype, shape, Chunks(boxes, places, first))
        for name, dtype, shape, boxes, first in tensors
    }


class _Cut(NamedTuple):
    """What tensors have in common that the same ranks hold: `held` is kept so that nothing else comes to have its identity."""

    held: Mapping[Box, Sequence[int]]
    boxes: tuple[Box, ...]
    wraps: Sequence[tuple[Frame, int]]


def file_of(rank: int) -> str:
    """The file that a rank writes."""
    return f"__{rank}_0.distcp"


def rank_of(file: str) -> int | None:
    """The rank that wrote a file.

    >>> rank_of("iter_0000005/__3_0.distcp"), rank_of("common.pt")
    (3, None)
    """
    found = _OF_RANK.fullmatch(file.rpartition("/")[2])
    return int(found[1]) if found else None


def alignment_bytes(wrap: Frame) -> int:
    """What the elements of an archive are aligned to: a page where they are many, a line where few.

    Readers go by the offsets of the metadata, so the gaps before archives mean nothing to them.
    """
    return PAGE_BYTES if wrap.length_bytes >= 16 * PAGE_BYTES else LINE_BYTES


def holders(mesh: Mesh, shape: Shape, rule: Rule) -> Mapping[Box, list[int]]:
    """The ranks that hold each box of a tensor, worked out for the first layer and expert that the same ranks hold."""
    stage, expert = mesh.stage(rule), rule.expert
    if expert is not None:
        per_rank = -(-expert[1] // mesh.ep)
        expert = expert[0] // per_rank * per_rank, expert[1]
    layer = None if stage is None else (stage, mesh.pp)
    return _holders(mesh, shape, Rule(rule.tp, rule.ep, expert, layer, rule.grid))


@lru_cache(maxsize=1 << 14)
def _holders(mesh: Mesh, shape: Shape, rule: Rule) -> Mapping[Box, list[int]]:
    return mesh.holders(shape, rule)
